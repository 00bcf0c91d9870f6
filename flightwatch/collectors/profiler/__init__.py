"""On-demand profiles without a code change: the agent answers the profiler inside every torch (libkineto)."""
