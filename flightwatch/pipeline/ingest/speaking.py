"""What ingest itself has to say: events about columns it does not know and nodes that two agents claim."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Mapping
from concurrent.futures import Future

from flightwatch import __version__
from flightwatch.core.clock import Clock
from flightwatch.core.errors import FlightwatchError
from flightwatch.core.protocols import Row
from flightwatch.core.vocabulary import EventSeverity, EventSource, Lane, Topic
from flightwatch.pipeline.batch import Batch, BatchHeader
from flightwatch.pipeline.bus.base import Ack, Bus
from flightwatch.pipeline.codec import encode
from flightwatch.pipeline.ingest.plan import Plan

logger = logging.getLogger(__name__)

_REPEAT_SECONDS = 3600.0
_WAITING = 100


class Speaker:
    """Publishes events on the pipeline's own topic, each at most once an hour. Thread-safe.

    They take the ordinary path: numbered, so that a repeated send is stored once.
    """

    def __init__(self, bus: Bus, clock: Clock, cluster: str, node: str) -> None:
        self._bus = bus
        self._clock = clock
        self._cluster = cluster
        self._node = node
        self._agent_id = f"ingest:{secrets.token_hex(8)}"
        self._said: dict[tuple[str, ...], float] = {}
        self._agents: dict[str, tuple[str, str]] = {}
        self._seq = 0
        self._waiting: list[bytes] = []
        self._on_its_way: Future[Ack] | None = None
        self._lock = threading.Lock()

    def about(self, plan: Plan) -> None:
        """Say what a stored range gives reason to say."""
        with self._lock:
            for (table, column), rows in plan.dropped.items():
                self._say(
                    ("unknown_column", table, column),
                    self._node,
                    f"column {column} of table {table} is unknown to this program and was dropped ({rows} rows so far)",
                    {"table": table, "column": column, "rows": str(rows)},
                )
            for node, agents in plan.agents.items():
                for agent in sorted(agents):
                    self._watch(node, agent)
            self._send()

    def _watch(self, node: str, agent: str) -> None:
        """Two agents take turns only when both run: a reinstalled agent replaces the old one for good.

        Parts of the server ("detect:...", "ingest:...") write in the name of their node and are no agents.
        """
        if not node or ":" in agent:
            return
        last, previous = self._agents.setdefault(node, (agent, ""))
        if last != agent:
            if previous == agent:
                self._say(
                    ("duplicate_node", node),
                    node,
                    f"two agents report as node {node!r}: give each machine its own flightwatch.node",
                    {"agents": f"{last} {agent}"},
                )
            self._agents[node] = (agent, last)

    def _say(self, key: tuple[str, ...], node: str, message: str, attrs: Mapping[str, str]) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._said.get(key, float("-inf")) < _REPEAT_SECONDS:
            return
        self._said[key] = now_s
        logger.warning("%s", message)
        if len(self._waiting) >= _WAITING:
            return
        self._seq += 1
        now_ms = self._clock.now_ms()
        header = BatchHeader(
            self._agent_id, "1", Lane.EVENTS.value, self._seq, node, self._cluster, now_ms, __version__
        )
        values: dict[str, object] = {
            "ts": now_ms,
            "source": EventSource.AGENT.value,
            "code": f"ingest:{key[0]}",
            "severity": EventSeverity.WARNING.value,
            "message": message,
            "attrs": dict(attrs),
        }
        self._waiting.append(encode(Batch(header, [Row("events", values)])))  # type: ignore[arg-type]

    def _send(self) -> None:
        """Send in order, one at a time; what fails is sent again next time."""
        if self._on_its_way is not None:
            if not self._on_its_way.done():
                return
            if self._on_its_way.exception() is None:
                self._waiting.pop(0)
            self._on_its_way = None
        if self._waiting:
            try:
                self._on_its_way = self._bus.publish(Topic.DEAD.value, self._agent_id, self._waiting[0])
            except FlightwatchError as error:
                logger.info("ingest's own event waits: %s", error)
