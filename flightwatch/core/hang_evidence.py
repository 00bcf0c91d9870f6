"""What is known about a hang, as parsers hand it to the verdict (`detectors/hang.py`).

Nothing here trusts a clock: positions are sequence numbers inside a process group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: Run phases in which no step is expected, and how long each may last (seconds) before it counts as a standstill.
QUIET_PHASE_SECONDS: Mapping[str, float] = {
    "rendezvous": 900.0, "init": 1800.0, "compile": 3600.0, "restore": 1800.0, "evaluate": 3600.0, "checkpoint": 1800.0,
}  # fmt: skip


@dataclass(slots=True)
class CollectiveRecord:
    """One entry of a flight recorder that had not finished when the dump was made.

    Attributes
    ----------
    group: name of the process group (vocabulary.process_group_name where the members are known).
    seq: sequence number inside the group; for a send or receive the group's point-to-point number.
    op: name without the library's prefix ("all_to_all", "send").
    peer: global rank of the other side of a send or receive, None when unknown or not point to point.
    shape: input sizes and element types as text, for comparison between ranks.
    bytes, dtype: of the input, None and "" when unknown.
    started: it had begun on the device.
    created_ns: enqueue time on the rank's own clock, nanoseconds since the epoch; for display only.
    frame: innermost user frame as "function (file:line)", "" when the recorder kept none.
    """

    group: str
    seq: int
    op: str
    is_p2p: bool = False
    peer: int | None = None
    shape: str = ""
    bytes: int | None = None
    dtype: str = ""
    started: bool = False
    created_ns: int | None = None
    frame: str = ""


@dataclass(slots=True)
class RankDump:
    """One rank's flight-recorder dump, reduced.

    Attributes
    ----------
    status: ok, empty (no entry) or unreadable.
    pending: unfinished records, oldest first.
    reached: process group to the highest collective sequence number enqueued.
    completed: process group to the highest collective sequence number known to be finished.
    members: process group to its sorted global ranks, where the dump tells.
    newest_ns: when its newest entry was made, nanoseconds on the rank's own clock: tells two dumps of one rank apart.
    """

    rank: int
    status: str
    pending: list[CollectiveRecord] = field(default_factory=list)
    reached: dict[str, int] = field(default_factory=dict)
    completed: dict[str, int] = field(default_factory=dict)
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    newest_ns: int | None = None


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """What one log line says about one rank's progress in one group (watchdog, status lines).

    Attributes
    ----------
    rank: global rank where the line tells it, else the rank it prints.
    global_rank: False when `rank` may be local to the group.
    group: name printed for the group, "" when none.
    stuck_seq, enqueued_seq, completed_seq: sequence numbers, None where not printed.
    op: operation, "" when not printed.
    """

    rank: int
    global_rank: bool = True
    group: str = ""
    op: str = ""
    stuck_seq: int | None = None
    enqueued_seq: int | None = None
    completed_seq: int | None = None


@dataclass(frozen=True, slots=True)
class RasMismatch:
    """One communicator in which ranks launched different numbers of operations (NCCL RAS).

    Attributes
    ----------
    listed: ranks the report names; by the tool's habit those of the smaller side.
    listed_seq, other_seq: operation counts of the listed ranks and of all others.
    total: ranks in the communicator.
    """

    communicator: str
    op: str
    listed: tuple[int, ...]
    listed_seq: int
    other_seq: int
    total: int


@dataclass(frozen=True, slots=True)
class RankStack:
    """The main thread's stack of one process, innermost frame first.

    Attributes
    ----------
    rank: None when the capture does not tell.
    frames: "function (file:line)".
    waits_for: what the frames say it is in: input, collective, checkpoint, device or unknown.
    """

    rank: int | None
    frames: tuple[str, ...]
    waits_for: str = "unknown"


@dataclass(frozen=True, slots=True)
class RankFault:
    """A line that says a device, host thread or link failed.

    Attributes
    ----------
    kind: device (CUDA or HIP error, GPU hang), host (watchdog thread stuck, lock held), process (ended by an error of
        its own, such as no memory) or link (retries exceeded).
    rank: global rank, None when unknown.
    text: one phrase for the sentence.
    """

    kind: str
    rank: int | None
    text: str
    local_rank: int | None = None


@dataclass(frozen=True, slots=True)
class AbsentRank:
    """A rank that a library itself names as the one that did not come.

    Attributes
    ----------
    rank: global rank.
    seq: collective it did not join, None when not said.
    waiting: ranks that say so.
    source: the report, for the sentence.
    """

    rank: int
    seq: int | None
    waiting: tuple[int, ...]
    source: str


@dataclass(frozen=True, slots=True)
class CallMismatch:
    """Two ranks of which torch itself says that they called different things (TORCH_DISTRIBUTED_DEBUG=DETAIL).

    Attributes
    ----------
    first, second: (global rank, operation, shape as printed).
    seq: collective they differ in, None when not said.
    """

    first: tuple[int, str, str]
    second: tuple[int, str, str]
    seq: int | None = None


@dataclass(slots=True)
class HangEvidence:
    """Everything that was found, and the ranks that should exist where that is known."""

    dumps: Mapping[int, RankDump] = field(default_factory=dict)
    progress: list[ProgressReport] = field(default_factory=list)
    ras: list[RasMismatch] = field(default_factory=list)
    stacks: list[RankStack] = field(default_factory=list)
    faults: list[RankFault] = field(default_factory=list)
    absent: list[AbsentRank] = field(default_factory=list)
    mismatches: list[CallMismatch] = field(default_factory=list)
    world_size: int | None = None
