"""Profiler requests from the control database to the nodes, and their traces back into a folder."""
