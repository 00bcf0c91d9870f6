"""Messages of the bus as statements of findings, each taken once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from flightwatch.core.errors import BadRecord
from flightwatch.core.vocabulary import Topic
from flightwatch.incidents.fast_events import FastEvents
from flightwatch.incidents.statements import Statement, statement_of, statement_of_finding
from flightwatch.pipeline.batch import BatchHeader
from flightwatch.pipeline.bus.base import Bus, Message, Partition, Subscription
from flightwatch.pipeline.codec.read import block_of, open_message, signature_of

TOPICS = (Topic.FINDINGS.value, Topic.EVENTS.value)
Verify = Callable[[BatchHeader, bytes, bytes | None], None]


@dataclass
class Taken:
    """One batch.

    Attributes
    ----------
    positions: (topic, partition) to (incarnation, next offset), as the control database stores it.
    offsets: the same for the bus.
    """

    statements: list[Statement] = field(default_factory=list)
    positions: dict[tuple[str, int], tuple[str, int]] = field(default_factory=dict)
    offsets: dict[Partition, int] = field(default_factory=dict)


class Intake:
    """Reads a subscription from where the control database says that the engine is.

    Parameters
    ----------
    positions: as stored with what was made of the messages before.
    verify: checks signatures of agents; None accepts all (single machine).
    """

    def __init__(
        self,
        bus: Bus,
        subscription: Subscription,
        positions: dict[tuple[str, int], tuple[str, int]],
        fast: FastEvents,
        verify: Verify | None = None,
    ) -> None:
        self._bus, self._subscription, self._fast, self._verify = bus, subscription, fast, verify
        self._positions = dict(positions)
        self._unstored = Taken()
        self._aligned: dict[Partition, int] = {}
        self._incarnations: dict[Partition, str] = {}
        #: Messages and rows that could not be read; ingest puts them into the dead letters.
        self.unreadable = 0

    def read(self, max_bytes: int, timeout_seconds: float, now_ms: Callable[[], int]) -> Taken:
        """Return the next batch; empty on timeout. Raises TransientError when the bus is away.

        Positions and offsets are those since the last `done`.
        """
        taken = Taken([], self._unstored.positions, self._unstored.offsets)
        for message in self._wanted(self._subscription.poll(max_bytes, timeout_seconds)):
            try:
                self._take(message, taken)
            except BadRecord:
                self.unreadable += 1
            key = (message.partition.topic, message.partition.number)
            taken.positions[key] = (self._incarnations[message.partition], message.offset + 1)
            taken.offsets[message.partition] = message.offset + 1
        moment = now_ms()
        for cluster, finding in self._fast.findings(moment):
            taken.statements.append(statement_of_finding(finding, cluster, moment, fast=True))
        return taken

    def done(self, taken: Taken) -> None:
        """Note that a batch is stored, and tell the bus. Raises StaleGeneration where a partition passed to another."""
        self._positions |= taken.positions
        self._unstored = Taken()
        for partition, offset in taken.offsets.items():
            self._subscription.commit(partition, offset)

    def _wanted(self, messages: Sequence[Message]) -> list[Message]:
        """Leave out what was taken before; go back where the database knows less than the bus's group."""
        first: dict[Partition, int] = {}
        for message in messages:
            first.setdefault(message.partition, message.offset)
        rewound = set()
        for partition in self._newly_assigned():
            expected = self._expected(partition)
            if expected is not None:
                begin = max(expected, self._bus.begin_offset(partition))
                if first.get(partition, self._subscription.position(partition)) > begin:
                    self._subscription.seek(partition, begin)
                    rewound.add(partition)
        return [
            message for message in messages
            if message.partition not in rewound and message.offset >= (self._expected(message.partition) or 0)
        ]  # fmt: skip

    def _newly_assigned(self) -> list[Partition]:
        assignment = self._subscription.assignment()
        fresh = [one for one, generation in assignment.items() if self._aligned.get(one) != generation]
        for partition in fresh:
            self._incarnations[partition] = self._bus.incarnation(partition)
        self._aligned = dict(assignment)
        return fresh

    def _expected(self, partition: Partition) -> int | None:
        incarnation, offset = self._positions.get((partition.topic, partition.number), ("", 0))
        return offset if incarnation and incarnation == self._incarnations.get(partition) else None

    def _take(self, message: Message, taken: Taken) -> None:
        events = message.partition.topic == Topic.EVENTS.value
        opened = open_message(message.value)
        if events and self._verify is not None:
            self._verify(opened.header, *signature_of(message.value))
        table = "events" if events else "findings"
        for section in opened.sections:
            if section.table != table:
                continue
            block = block_of(section)
            names = list(block.columns)
            for cells in zip(*block.columns.values(), strict=True):
                row = dict(zip(names, cells, strict=True))
                row.setdefault("node", opened.identity.node)
                row.setdefault("cluster", opened.identity.cluster)
                if events:
                    self._fast.see([row])
                    continue
                try:
                    taken.statements.append(statement_of(row))
                except BadRecord:
                    self.unreadable += 1
