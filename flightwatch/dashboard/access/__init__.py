"""Who is asking, what they may do, and the one gate every request passes."""
