"""Live hang evidence: flight recorders and stacks of the ranks on this node."""
