"""The agent's disk spool: batches that wait for the bus, in the file format of the local log.

One folder belongs to one running agent. Each lane is a log of its own, so that its files are deleted
as they are acknowledged or evicted. The spool also keeps the agent's identity and its sequence numbers:
after a clean stop they continue; after a kill a new spool id starts at 1, because nobody can know which
numbers were given to batches that were only in memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import secrets
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flightwatch.core.errors import ConfigError, Refused, TransientError
from flightwatch.core.settings import setting
from flightwatch.core.vocabulary import EVICTION_ORDER, Lane
from flightwatch.pipeline.bus.folder import MOUNTS, prepare
from flightwatch.pipeline.bus.segment import Entry
from flightwatch.pipeline.bus.segments import NothingReadable, SegmentedLog

logger = logging.getLogger(__name__)

#: Share of `spool.rows_bytes` that each lane may count on; a lane may borrow what others leave unused.
LANE_SHARES: Mapping[Lane, float] = {Lane.EVENTS: 0.15, Lane.SCALARS: 0.15, Lane.SAMPLES: 0.45, Lane.OPS: 0.25}
_PREFETCH_BYTES = 256_000


@dataclass(frozen=True)
class SpoolSettings:
    """The section `[spool]`: batches of one agent, in memory and on disk."""

    folder: str = setting("", "folder of the agent's disk spool; empty: spool in flightwatch.data_dir")
    batch_seconds: float = setting(2.0, "longest time a row waits for its batch to fill", minimum=0.05)
    batch_bytes: int = setting(500_000, "size at which a batch is sent without waiting", minimum=1_000)
    urgent_seconds: float = setting(0.05, "longest wait of events of severity warning and above", minimum=0.0)
    memory_bytes: int = setting(8_000_000, "bytes of unacknowledged batches in memory", minimum=100_000)
    spill_seconds: float = setting(5.0, "a batch not acknowledged for so long goes to disk", minimum=0.1)
    rows_bytes: int = setting(512_000_000, "disk for rows while the bus is away", minimum=1_000_000)
    blobs_bytes: int = setting(2_000_000_000, "disk for traces and dumps on their way", minimum=1_000_000)
    segment_bytes: int = setting(4_000_000, "size of one spool file", minimum=100_000)
    drain_bytes_per_second: int = setting(
        250_000, "speed at which a backlog is sent after an outage, events excepted", minimum=1_000
    )
    blob_bytes_per_second: int = setting(10_000_000, "speed at which traces and dumps are sent", minimum=10_000)
    stall_seconds: float = setting(180.0, "a batch without answer for so long is sent again", minimum=1.0)


@dataclass(frozen=True, slots=True)
class Sealed:
    """One encoded batch with its number.

    Attributes
    ----------
    position: where it stands in the spool's log, None while it is only in memory.
    made_at_s: monotonic time at which it was made in this process.
    """

    lane: Lane
    spool_id: str
    seq: int
    rows: int
    created_at_ms: int
    value: bytes
    position: int | None = None
    made_at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Evicted:
    """Consecutive batches that were given up."""

    lane: Lane
    spool_id: str
    first_seq: int
    last_seq: int
    rows: int
    reason: str


class _LaneLog:
    """Backlog of one lane on disk."""

    def __init__(self, folder: Path, segment_bytes: int, acknowledged: int) -> None:
        self._log = SegmentedLog(folder, 1, segment_bytes, durable=False)
        self.tail = self._log.ends()[0]
        self.head = min(max(acknowledged, self._log.begin_offset(0)), self.tail)
        self._ready: deque[Sealed] = deque()
        self.size_bytes = self._log.size_bytes() if self.head < self.tail else 0

    @property
    def is_empty(self) -> bool:
        return self.head == self.tail

    def append(self, batches: Sequence[Sealed], now_ms: int) -> None:
        entries = [Entry(0, _key(batch), batch.value) for batch in batches]
        self.tail = self._log.append(entries, now_ms)[-1] + 1
        self.size_bytes = self._log.size_bytes()

    def first(self, lane: Lane) -> Sealed | None:
        if not self._ready and self.head < self.tail:
            result = self._log.read(0, self.head, _PREFETCH_BYTES)
            self._ready.extend(_sealed(lane, record.offset, record.key, record.value) for record in result.records)
            if not result.records:
                logger.error("spool of lane %s: %d batches cannot be read", lane.value, self.tail - self.head)
                self.head = self.tail
        return self._ready[0] if self._ready else None

    def pop(self) -> None:
        position = self._ready.popleft().position
        if position is not None:
            self.head = position + 1
        if not self._ready:
            # Files go as a whole, so trimming batch by batch would only cost time.
            self._log.trim(0, self.head)
            self.size_bytes = self._log.size_bytes() if self.head < self.tail else 0

    def evict(self, lane: Lane) -> list[Evicted]:
        """Give up the oldest file (or all, when there is only one); say what was in it."""
        numbers = self._log.numbers()
        end = self._log.file_end(numbers[0], 0)
        end = self.tail if end is None else end
        lost: list[Sealed] = []
        position = self.head
        while position < end:
            result = self._log.read(0, position, 4_000_000)
            lost += [_sealed(lane, record.offset, record.key, b"") for record in result.records if record.offset < end]
            if not result.records:
                break
            position = result.next
        self.head = max(self.head, end)
        self._ready.clear()
        if len(numbers) == 1:
            self._log.seal()
        self._log.trim(0, self.head)
        self.size_bytes = self._log.size_bytes() if self.head < self.tail else 0
        return _ranges(lost, "evicted")

    def close(self) -> None:
        self._log.close()


def _key(batch: Sealed) -> str:
    return f"{batch.spool_id} {batch.seq} {batch.rows} {batch.created_at_ms}"


def _sealed(lane: Lane, position: int, key: str, value: bytes) -> Sealed:
    spool_id, seq, rows, created = key.split(" ")
    return Sealed(lane, spool_id, int(seq), int(rows), int(created), value, position)


def _ranges(batches: Sequence[Sealed], reason: str) -> list[Evicted]:
    ranges: list[Evicted] = []
    for batch in batches:
        last = ranges[-1] if ranges else None
        if last and last.spool_id == batch.spool_id and last.last_seq + 1 == batch.seq:
            ranges[-1] = Evicted(last.lane, last.spool_id, last.first_seq, batch.seq, last.rows + batch.rows, reason)
        else:
            ranges.append(Evicted(batch.lane, batch.spool_id, batch.seq, batch.seq, batch.rows, reason))
    return ranges


class Spool:
    """Identity, sequence numbers and disk backlog of one agent. Not thread-safe.

    Raises
    ------
    ConfigError: the folder cannot be used. Refused: another agent uses it.
    """

    def __init__(self, folder: Path, settings: SpoolSettings | None = None, mounts: Path = MOUNTS) -> None:
        prepare(folder, mounts)
        self.folder = folder
        self.settings = settings or SpoolSettings()
        self._lock = self._take_lock()
        try:
            state = self._read_state()
            clean = state.get("clean") is True
            self.agent_id: str = state.get("agent_id") or secrets.token_hex(8)
            self.spool_id: str = state["spool_id"] if clean else secrets.token_hex(8)
            self._next_seq = {lane: int(state["next_seq"].get(lane.value, 1)) if clean else 1 for lane in Lane}
            self._acknowledged = {str(lane): int(head) for lane, head in state.get("acknowledged", {}).items()}
            # Files are opened when they hold something or are to: an agent whose bus answers keeps none open.
            self._logs: dict[Lane, _LaneLog] = {}
            for lane in Lane:
                if (folder / lane.value).exists() and self._log(lane).is_empty:
                    self._close_log(lane)
            self.save(clean=False)
        except TransientError as error:
            os.close(self._lock)
            raise ConfigError(f"the spool cannot be used: {error}") from error

    def _log(self, lane: Lane) -> _LaneLog:
        if lane not in self._logs:
            folder, size = self.folder / lane.value, self.settings.segment_bytes
            try:
                self._logs[lane] = _LaneLog(folder, size, self._acknowledged.get(lane.value, 0))
            except NothingReadable as error:
                # An agent that does not start is worse than a lost backlog: after a power cut that is a whole fleet.
                logger.error("%s", error)
                self._set_aside(folder)
                self._logs[lane] = _LaneLog(folder, size, 0)
        return self._logs[lane]

    def _set_aside(self, folder: Path) -> None:
        aside = folder.with_name(f"{folder.name}.damaged-{secrets.token_hex(4)}")
        try:
            folder.rename(aside)
        except OSError as error:
            raise TransientError(f"{folder}: {error.strerror}") from error
        logger.error("%s is now %s; the batches in it are lost, delete it at leisure", folder, aside)

    def _close_log(self, lane: Lane) -> None:
        log = self._logs.pop(lane)
        self._acknowledged[lane.value] = log.head
        log.close()

    def _take_lock(self) -> int:
        handle = os.open(self.folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(handle)
            raise Refused(f"another agent uses the spool {self.folder}: stop it, or set spool.folder") from error
        return handle

    def _read_state(self) -> dict[str, Any]:
        path = self.folder / "state.json"
        try:
            state = json.loads(path.read_text(encoding="utf-8"))
            return state if isinstance(state, dict) and "spool_id" in state and "next_seq" in state else {}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            # Without it the numbers restart under a new spool id; what is on disk is still sent.
            logger.warning("%s cannot be read (%s): batches get a new spool id", path, error)
            return {}

    def save(self, *, clean: bool) -> None:
        """Write identity, numbers and acknowledged positions.

        Parameters
        ----------
        clean: every numbered batch is acknowledged or on disk, so a later start may continue the numbers.
        """
        state = {
            "agent_id": self.agent_id,
            "spool_id": self.spool_id,
            "clean": clean,
            "next_seq": {lane.value: seq for lane, seq in self._next_seq.items()},
            "acknowledged": self._acknowledged | {lane.value: log.head for lane, log in self._logs.items()},
        }
        temporary = self.folder / "state.json.new"
        try:
            handle = os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with open(handle, "w", encoding="utf-8") as file:
                json.dump(state, file)
            os.replace(temporary, self.folder / "state.json")
        except OSError as error:
            raise TransientError(f"{temporary}: {error.strerror}") from error

    def following_seq(self, lane: Lane) -> int:
        """Return the number of the next batch of a lane."""
        return self._next_seq[lane]

    def use_seq(self, lane: Lane) -> None:
        """Say that a batch with `following_seq` exists now."""
        self._next_seq[lane] += 1

    def append(self, batches: Sequence[Sealed], now_ms: int) -> None:
        """Store batches of one lane behind its backlog. Raises TransientError when nothing was stored."""
        self._log(batches[0].lane).append(batches, now_ms)

    def first(self, lane: Lane) -> Sealed | None:
        """Return the oldest batch on disk."""
        return self._logs[lane].first(lane) if lane in self._logs else None

    def pop(self, lane: Lane) -> None:
        """Forget the batch that `first` returned: it was acknowledged."""
        self._logs[lane].pop()

    def backlog(self, lane: Lane) -> int:
        """Return the number of batches of a lane on disk."""
        return self._logs[lane].tail - self._logs[lane].head if lane in self._logs else 0

    def size_bytes(self, lane: Lane) -> int:
        """Return the disk a lane's backlog takes."""
        return self._logs[lane].size_bytes if lane in self._logs else 0

    @property
    def used(self) -> bool:
        """Say whether a batch was on disk since the start."""
        return bool(self._logs)

    def blob_room_bytes(self) -> int:
        """Return how much more the blobs lane may take."""
        return self.settings.blobs_bytes - self.size_bytes(Lane.BLOBS)

    def enforce_quotas(self) -> list[Evicted]:
        """Evict the oldest files, blobs first and events last, while rows take more than their quota."""
        evicted: list[Evicted] = []
        rows_lanes = [lane for lane in EVICTION_ORDER if lane is not Lane.BLOBS]
        while sum(self.size_bytes(lane) for lane in rows_lanes) > self.settings.rows_bytes:
            over = [lane for lane in rows_lanes if self.size_bytes(lane) > self._share_bytes(lane)]
            evicted += self._logs[over[0]].evict(over[0])
        return evicted

    def _share_bytes(self, lane: Lane) -> float:
        return LANE_SHARES[lane] * self.settings.rows_bytes

    def make_room(self, needed_by: Lane) -> list[Evicted]:
        """Evict one file of the least important lane that has any, because the disk itself is full.

        Lanes more important than `needed_by` are left alone; empty when nothing can be given up.
        """
        for lane in EVICTION_ORDER:
            if self.backlog(lane):
                return self._logs[lane].evict(lane)
            if lane is needed_by:
                break
        return []

    def close(self, *, clean: bool) -> None:
        """Write the state and let the folder go."""
        with contextlib.suppress(TransientError):
            self.save(clean=clean)
        for log in self._logs.values():
            log.close()
        os.close(self._lock)
