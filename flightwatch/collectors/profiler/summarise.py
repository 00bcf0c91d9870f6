"""Op sums of one trace, in a process of its own: `python -m flightwatch.collectors.profiler.summarise FILE RANK`.

Prints one JSON object: `steps` (optimizer steps seen), `ops` (op, kind, calls, self_us). It runs at the lowest
priority and within a fixed amount of memory, so that a trace of any size or content cannot hurt the agent.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import Any

from flightwatch.core.errors import BadRecord

MEMORY_BYTES = 1_000_000_000
SECONDS = 300
#: The most expensive ops are kept; the rest of a trace's names are one-offs.
MOST_OPS = 2000
_LONGEST_NAME = 400
_STEP_WORDS = ("Optimizer.step#", "ProfilerStep#")


def summarise(path: str, rank: int) -> dict[str, Any]:
    """Return the sums of a trace, from a child process.

    Raises
    ------
    BadRecord: the child failed: the trace is damaged beyond reading or too large to analyse.
    """
    import subprocess  # an agent that never sends a trace does not pay for it

    command = [sys.executable, "-m", "flightwatch.collectors.profiler.summarise", path, str(rank)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=SECONDS, check=False, stdin=subprocess.DEVNULL)
        found = json.loads(done.stdout) if done.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise BadRecord(f"the trace could not be analysed: {error}") from error
    if not isinstance(found, dict):
        raise BadRecord(f"the trace could not be analysed (status {done.returncode})")
    return found


def main(arguments: list[str]) -> int:
    """Read the trace and print its sums."""
    from flightwatch.collectors.captures.kineto.ops import RankTrace
    from flightwatch.collectors.captures.kineto.stream import TraceReader, open_trace

    os.nice(19)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    path, rank = arguments[0], int(arguments[1])
    with open(path, "rb") as stream:
        trace = RankTrace(path, rank).read(TraceReader(open_trace(stream)))
    costs = trace.costs()
    steps = {word: sum(cost.calls for cost in costs if cost.op.startswith(word)) for word in _STEP_WORDS}
    ops = [[cost.op[:_LONGEST_NAME], cost.kind, cost.calls, round(cost.self_us, 3)] for cost in costs[:MOST_OPS]]
    damage = next((note.text for note in trace.notes if note.level == "error"), "")
    json.dump({"steps": max(steps.values()), "ops": ops, "damage": damage}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
