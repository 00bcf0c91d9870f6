"""What is asked of the broker, how far each rank is, and what it tells the control server."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import cast

from flightwatch.collectors.profiler.processes import Process
from flightwatch.core.errors import BadRecord
from flightwatch.core.protocols import Command

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
DEFAULT_SECONDS = 120
DEFAULT_BYTES = 2_000_000_000
DEFAULT_ROUNDUP = 50


class RankState(str, Enum):
    """How far one rank of a request is."""

    WAITING = "waiting"
    ARMED = "armed"
    READING = "reading"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


ENDED = (RankState.DONE, RankState.FAILED, RankState.STOPPED)


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """One request as a node sees it: the ranks of it that should be here.

    Attributes
    ----------
    run: attempt; "" takes the one that runs.
    start_step: first step; 0 takes the next multiple of `roundup`.
    max_seconds: the request fails when no trace came so long after it arrived.
    max_bytes: largest trace of one rank; of times of blocks, what its rows may take in the store.
    blocks: times of the model's blocks by the probe, and no trace.
    """

    id: str
    job: str
    run: str
    ranks: tuple[int, ...]
    steps: int
    start_step: int
    roundup: int
    max_seconds: float
    max_bytes: int
    stacks: bool
    shapes: bool
    memory: bool
    blocks: bool = False


def request_of(command: Command) -> ProfileRequest:
    """Return the request in a verified command.

    Raises
    ------
    BadRecord: its id is not a plain word, or its ranks are not numbers.
    """
    given: Mapping[str, object] = command.arguments
    name, ranks = str(given.get("request", "")), given.get("ranks")
    if not _ID.fullmatch(name):
        raise BadRecord(f"command {command.id}: {name!r} is not the id of a profile")
    if not isinstance(ranks, list) or not ranks:
        raise BadRecord(f"command {command.id}: it names no rank")

    def whole(key: str, default: int) -> int:
        return cast(int, given.get(key, default))

    return ProfileRequest(
        id=name,
        job=command.job,
        run=str(given.get("run", "")),
        ranks=tuple(sorted(set(ranks))),
        steps=max(1, whole("steps", 1)),
        start_step=whole("start_step", 0),
        roundup=whole("wait_steps", DEFAULT_ROUNDUP),
        max_seconds=float(whole("max_seconds", DEFAULT_SECONDS)),
        max_bytes=whole("max_bytes", DEFAULT_BYTES),
        stacks=bool(given.get("stacks", False)),
        shapes=bool(given.get("shapes", False)),
        memory=bool(given.get("memory", False)),
        blocks=bool(given.get("blocks", False)),
    )


@dataclass(frozen=True, slots=True)
class Progress:
    """What the control server is told about one rank.

    Attributes
    ----------
    reason: one sentence, "" while all is well.
    first_step, steps: what the trace holds, None before it was read.
    """

    request: str
    rank: int
    state: RankState
    reason: str = ""
    first_step: int | None = None
    steps: int | None = None
    bytes: int | None = None


@dataclass(slots=True)
class RankJob:
    """One rank of one request.

    Attributes
    ----------
    process: the rank's process once it is known.
    folder: folder libkineto writes into, "" before the configuration was handed out.
    armed_s: monotonic time of the last hand-out.
    attempts: how often the configuration was handed out.
    """

    request: ProfileRequest
    rank: int
    begun_s: float
    state: RankState = RankState.WAITING
    process: Process | None = None
    folder: str = ""
    armed_s: float = 0.0
    attempts: int = 0

    @property
    def file_stem(self) -> str:
        """Name libkineto's file begins with; another one for each hand-out."""
        return f"rank{self.rank}-{self.attempts}"
