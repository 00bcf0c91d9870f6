"""Contracts between the parts: what a row is, what collects it, what carries it away.

Every implementation of a contract here passes the contract's suite in `tests/contracts/`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol, TypeAlias, runtime_checkable

#: What a cell can hold. Times are int milliseconds since the epoch (UTC). None is "unknown".
Value: TypeAlias = (
    "bool | int | float | str | Sequence[int] | Sequence[str]"
    " | Mapping[str, float] | Mapping[str, int] | Mapping[str, str] | None"
)


@dataclass(slots=True)
class Row:
    """One row on its way to a table.

    Attributes
    ----------
    table: a name in the catalogue.
    values: column to value. A missing column and None both mean "unknown" (NULL), never 0.
        `ts` is int milliseconds since the epoch, or None where a capture carries no time.
        `received_at`, `src_partition`, `src_offset` are set by ingest, never by a collector;
        `cluster` and `node` are set by the agent where a collector leaves them out.
    """

    table: str
    values: dict[str, Value]


@dataclass(slots=True)
class Note:
    """Something a parser wants a person to know: why a value is NULL, what was skipped.

    Attributes
    ----------
    level: "info", "warning" (a value is doubtful) or "error" (a part could not be read: the file is malformed).
    where: position in the capture, for example "line 12" or "gpu 0000:01:00.0 ecc".
    text: one sentence.
    """

    level: str
    where: str
    text: str


@runtime_checkable
class Collector(Protocol):
    """Reads one source on this machine.

    One instance lives as long as the agent and may keep open files and previous values.
    The runner never calls one instance from two threads at once, times every call, and counts
    success, failure and NoData apart.
    """

    name: str
    interval_seconds: float

    def collect(self, now_ms: int) -> Iterable[Row]:
        """Read the source once.

        Parameters
        ----------
        now_ms: time to stamp rows with, milliseconds since the epoch.

        Raises
        ------
        NoData: the hardware or file is not on this machine.
        """


@dataclass(frozen=True, slots=True)
class CaptureContext:
    """What is known about a capture from outside its bytes.

    Attributes
    ----------
    source: how messages name it, for example "bundle.tar!node1/dmesg.txt".
    at_ms: time of the capture, or None when unknown (rows then keep `ts` None unless the text has one).
    node: node name, or None when unknown.
    """

    source: str = ""
    at_ms: int | None = None
    node: str | None = None


class Sink(Protocol):
    """Takes rows from collectors towards the bus. Thread-safe."""

    def emit(self, rows: Iterable[Row]) -> None:
        """Queue rows; returns at once. What does not fit is counted by lane, never silently lost."""

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until everything emitted so far is on the bus or in the disk spool; False on timeout."""


class BlobSink(Protocol):
    """Takes large files (traces, dumps) towards the bus as checked chunks."""

    def put(self, blob_id: str, kind: str, data: BinaryIO, attributes: Mapping[str, str]) -> None:
        """Queue one blob. Raises Backpressure when the blobs lane has no room."""


@dataclass(frozen=True, slots=True)
class Command:
    """A verified command from the control server to this node."""

    id: str
    type: str
    node: str
    job: str
    actor: str
    issued_at_ms: int
    expires_at_ms: int
    arguments: Mapping[str, Value] = field(default_factory=dict)


class CommandSource(Protocol):
    """Where an agent reads commands that already passed signature, node, expiry and replay checks."""

    def poll(self) -> Sequence[Command]:
        """Return new commands, oldest first; an empty sequence when there are none."""
