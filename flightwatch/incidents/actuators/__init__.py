"""Ways to take a node out of work, one file a scheduler."""
