"""Output of communication libraries: log lines, watchdogs, RAS reports, per-collective records, stacks.

The structured objects (`WatchdogLine`, `LibraryLine`, `RasReport`, `StackDump`) are what hang analysis
reads; the rows made from them are what is stored.
"""
