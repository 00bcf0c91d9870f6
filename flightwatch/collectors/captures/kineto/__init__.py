"""Kineto traces (torch.profiler, libkineto): streamed reading, op self times, flame graph, difference, merge."""
