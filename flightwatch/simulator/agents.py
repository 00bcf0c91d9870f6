"""Simulated rows on their way to the bus: one numbered batch per node and lane, as that node's agent would send."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout

from flightwatch import __version__
from flightwatch.core.catalogue import TABLES
from flightwatch.core.clock import Clock
from flightwatch.core.errors import Backpressure, TransientError
from flightwatch.core.protocols import Row
from flightwatch.core.vocabulary import TOPIC_OF_LANE, Lane
from flightwatch.pipeline.batch import Batch, BatchHeader
from flightwatch.pipeline.bus.base import Ack, Bus
from flightwatch.pipeline.codec import encode

#: Batches on their way before the next one waits for the oldest.
IN_FLIGHT = 256
BATCH_ROWS = 2_000


class SimulatedAgents:
    """Sends rows in the names of their nodes.

    Parameters
    ----------
    sign: signs each batch; None where ingest takes unsigned ones. timeout_seconds: longest wait for the bus.
    """

    def __init__(
        self,
        bus: Bus,
        clock: Clock,
        cluster: str,
        sign: Callable[[bytes], bytes] | None = None,
        timeout_seconds: float = 30.0,
    ) -> None:
        self._bus, self._clock, self._cluster, self._sign = bus, clock, cluster, sign
        self._timeout = timeout_seconds
        self._id, self._spool = secrets.token_hex(6), secrets.token_hex(8)
        self._seq: dict[tuple[str, Lane], int] = {}
        self._lane_of = {name: table.lane for name, table in TABLES.items() if table.lane is not None}
        self._waiting: deque[Future[Ack]] = deque()
        self.sent_rows = 0

    def send(self, rows: Iterable[Row]) -> None:
        """Send rows and wait until the bus has them.

        Raises
        ------
        TransientError: the bus is away; what of these rows it has is unknown.
        """
        parts: dict[tuple[str, Lane], list[Row]] = {}
        for row in rows:
            parts.setdefault((str(row.values["node"]), self._lane_of[row.table]), []).append(row)
        for (node, lane), mine in parts.items():
            for begin in range(0, len(mine), BATCH_ROWS):
                self._publish(node, lane, mine[begin : begin + BATCH_ROWS])
        while self._waiting:
            self._settle()

    def _publish(self, node: str, lane: Lane, rows: list[Row]) -> None:
        seq = self._seq[node, lane] = self._seq.get((node, lane), 0) + 1
        header = BatchHeader(
            f"{node}-{self._id}", self._spool, lane.value, seq, node, self._cluster, self._clock.now_ms(), __version__
        )
        value = encode(Batch(header, rows), sign=self._sign)
        while True:
            try:
                self._waiting.append(self._bus.publish(TOPIC_OF_LANE[lane].value, node, value))
                break
            except Backpressure:
                if self._waiting:
                    self._settle()
                else:
                    self._clock.sleep_s(0.1)
        self.sent_rows += len(rows)
        if len(self._waiting) > IN_FLIGHT:
            self._settle()

    def _settle(self) -> None:
        try:
            self._waiting.popleft().result(self._timeout)
        except FutureTimeout as error:
            raise TransientError("the bus did not acknowledge simulated rows in time") from error
