"""The configuration handed to libkineto: built from integers, booleans and a path the agent chose, nothing else."""

from __future__ import annotations

import re

from flightwatch.core.errors import BadRecord

WARMUP_STEPS = 1
_PATH = re.compile(r"/[A-Za-z0-9._/+@-]{1,200}")


def config_text(
    path: str, *, steps: int, start_step: int, roundup: int, stacks: bool, shapes: bool, memory: bool
) -> str:
    """Return the text.

    Parameters
    ----------
    path: file the trace is written to; libkineto puts the pid before its suffix.
    steps: optimizer steps to record.
    start_step: first step; when it is over already, libkineto takes the next multiple of `roundup`.
    stacks, shapes, memory: record Python stacks, input shapes, allocations.

    Raises
    ------
    BadRecord: the path holds a character outside letters, digits and ._/+@-.
    """
    if not _PATH.fullmatch(path):
        raise BadRecord(f"{path!r}: the profiler's file must be an absolute path of plain characters")
    lines = [
        f"ACTIVITIES_LOG_FILE={path}",
        # A start before the end of the warm-up makes libkineto record 500 ms instead of steps.
        f"PROFILE_START_ITERATION={max(WARMUP_STEPS + 1, int(start_step))}",
        f"PROFILE_START_ITERATION_ROUNDUP={max(1, int(roundup))}",
        f"ACTIVITIES_ITERATIONS={int(steps)}",
        # A warm-up of one step keeps the start of the profiler out of the first recorded step.
        f"ACTIVITIES_WARMUP_ITERATIONS={WARMUP_STEPS}",
    ]
    options = (
        ("PYTHON_STACK_TRACE", stacks), ("PROFILE_REPORT_INPUT_SHAPES", shapes), ("PROFILE_PROFILE_MEMORY", memory),
    )  # fmt: skip
    lines += [f"{name}=true" for name, wanted in options if wanted]
    return "\n".join(lines) + "\n"
