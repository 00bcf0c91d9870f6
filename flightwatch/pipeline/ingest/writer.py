"""Carries out plans: letters to the bus, blocks to the store, in an order that any interruption leaves repairable."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from flightwatch.core.clock import Clock
from flightwatch.core.errors import BadRecord, StaleGeneration, TransientError
from flightwatch.core.vocabulary import Topic
from flightwatch.pipeline import dead
from flightwatch.pipeline.bus.base import Bus
from flightwatch.pipeline.codec.read import open_message
from flightwatch.pipeline.ingest import lanes
from flightwatch.pipeline.ingest.metrics import IngestMetrics
from flightwatch.pipeline.ingest.plan import Block, Plan
from flightwatch.pipeline.store import presence
from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.positions import LANES

logger = logging.getLogger(__name__)

_ACK_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Mode:
    """How blocks of a range go in.

    Attributes
    ----------
    tokens: the deduplication window still remembers this range's tokens, if it was inserted before.
    presence: the range may have been inserted before, whole or in part: look what is there.
    """

    tokens: bool = True
    presence: bool = False


class Writer:
    """Stores plans. One call at a time per plan; several plans may be written by several threads."""

    def __init__(self, bus: Bus, store: Store, clock: Clock, metrics: IngestMetrics) -> None:
        self._bus = bus
        self._store = store
        self._clock = clock
        self._metrics = metrics

    def write(self, plan: Plan, mode: Mode, owned: Callable[[], bool]) -> None:
        """Store everything of a plan that is not stored yet. May be called again after any error.

        Parameters
        ----------
        owned: says just before each insert whether the partition is still certainly ours.

        Raises
        ------
        TransientError, ConfigError, Backpressure: call again later with the same plan.
        StaleGeneration: ownership is no longer certain; announce the intent again first.
        """
        self._send_letters(plan)
        while plan.done < len(plan.blocks):
            self._insert(plan, plan.blocks[plan.done], mode, owned)
            plan.done += 1
            # A block the store rejected has left letters: they are acknowledged before its successor goes in.
            self._send_letters(plan)
        self._remember_lanes(plan, mode, owned)

    def _send_letters(self, plan: Plan) -> None:
        if plan.sent == len(plan.letters):
            return
        rng = plan.range
        # Letters are numbered per range and per step, so that a repeated range sends the same numbers.
        letters = plan.letters[plan.sent :]
        place = f"{rng.partition.topic}/{rng.partition.number}"
        spool = f"{rng.incarnation}:{rng.start}-{rng.end}:{plan.sent}"
        acks = [
            self._bus.publish(Topic.DEAD.value, place, message)
            for message in dead.batches(letters, f"dead:{place}", spool)
        ]
        for ack in acks:
            try:
                ack.result(_ACK_SECONDS)
            except FutureTimeout as error:
                raise TransientError("the bus did not acknowledge dead letters") from error
        plan.sent = len(plan.letters)
        self._metrics.add(dead=len(letters))
        logger.warning("%s: %d dead letters, first: %s", place, len(letters), letters[0].reason)

    def _insert(self, plan: Plan, block: Block, mode: Mode, owned: Callable[[], bool]) -> None:
        if mode.tokens:
            try:
                self._put(block.table, block.rows, block.token, owned)
            except BadRecord:
                self._insert_by_message(plan, block, owned)
                return
        if mode.presence:
            missing = presence.absent(self._store, block.table, block.rows)
            if missing.any():
                rest = block.rows.filter(pa.array(missing))
                # Other rows than the whole block's: another token, which tells how many of which.
                self._put(block.table, rest, f"{block.token}:absent{rest.num_rows}", owned)

    def _put(self, table: str, rows: pa.Table, token: str, owned: Callable[[], bool]) -> None:
        if not owned():
            raise StaleGeneration("ownership of the partition is not certain any more")
        self._store.insert_block(table, rows, token)
        self._metrics.add(inserts=1)

    def _insert_by_message(self, plan: Plan, block: Block, owned: Callable[[], bool]) -> None:
        """Find the message the store rejects; never after an unknown outcome, only after a definite refusal."""
        for number in np.unique(block.message):
            rows = block.rows.filter(pa.array(block.message == number))
            message = plan.messages[int(number)]
            try:
                self._put(block.table, rows, f"{block.token}:message{message.offset}", owned)
            except BadRecord as error:
                opened = open_message(message.value)
                first = next(s.first_row for s in opened.sections if s.table == block.table)
                plan.letters.append(
                    dead.some_rows(
                        message, first, error.reason, block.table, _plain_rows(rows), opened.identity.node,
                        opened.identity.cluster,
                    )
                )  # fmt: skip

    def _remember_lanes(self, plan: Plan, mode: Mode, owned: Callable[[], bool]) -> None:
        if not plan.lanes:
            return
        rows = lanes.block(plan.range, plan.lanes, 1 + sum(block.days for block in plan.blocks), self._clock.now_ms())
        if mode.presence:
            missing = presence.absent(self._store, LANES, rows)
            rows = rows.filter(pa.array(missing))
        if rows.num_rows:
            self._put(LANES, rows, plan.range.token(LANES), owned)


def _plain_rows(rows: pa.Table) -> list[dict[str, object]]:
    """Return rows as a producer would have sent them."""
    from_bus = {"received_at", "src_partition", "src_offset"}
    kept = rows.select([name for name in rows.column_names if name not in from_bus])
    kept = kept.set_column(kept.column_names.index("ts"), "ts", kept.column("ts").cast(pa.int64()))
    return [
        {name: dict(cell) if isinstance(cell, list) and cell and isinstance(cell[0], tuple) else cell
         for name, cell in row.items() if cell is not None}
        for row in kept.to_pylist()
    ]  # fmt: skip


class Backoff:
    """Growing waits between tries, without jitter: one process, one store."""

    def __init__(self, longest_seconds: float) -> None:
        self._longest = longest_seconds
        self.failures = 0

    def failed(self) -> float:
        """Count a failure; return how long to wait."""
        self.failures += 1
        return min(self._longest, 0.25 * float(2 ** min(self.failures - 1, 12)))

    def succeeded(self) -> None:
        """Start again with short waits."""
        self.failures = 0
