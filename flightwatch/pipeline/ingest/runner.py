"""Ingest as one object: its threads, its counters, its hook for whoever waits for new rows."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

from flightwatch.core.clock import Clock, SystemClock
from flightwatch.core.errors import FlightwatchError
from flightwatch.core.logs import Occasionally
from flightwatch.core.vocabulary import Topic
from flightwatch.pipeline.bus.base import Bus
from flightwatch.pipeline.ingest.consumer import Consumer
from flightwatch.pipeline.ingest.metrics import IngestMetrics
from flightwatch.pipeline.ingest.partition_work import Tools
from flightwatch.pipeline.ingest.plan import Plan, Planner, Verify
from flightwatch.pipeline.ingest.settings import GROUP, IngestSettings, fast_group
from flightwatch.pipeline.ingest.speaking import Speaker
from flightwatch.pipeline.ingest.writer import Writer
from flightwatch.pipeline.store.client import Store

logger = logging.getLogger(__name__)

#: Topics with few, urgent rows: a thread of their own, so that no bulk insert stands before them.
FAST_TOPICS = (Topic.EVENTS.value, Topic.FINDINGS.value, Topic.DEAD.value)
BULK_TOPICS = (Topic.SAMPLES.value, Topic.SCALARS.value, Topic.OPS.value)
#: Written by the pipeline alone (access lists of the broker see to that), so without agents' signatures.
PIPELINE_TOPICS = frozenset((Topic.FINDINGS.value, Topic.DEAD.value))


class Ingest:
    """Stores what is on the bus. Several in several processes share the partitions.

    Parameters
    ----------
    bus, store: handles that others may use at the same time; the store has been migrated.
    cluster, node: names in events that ingest writes about itself.
    verify: checks signatures; None accepts every batch (single machine: the bus belongs to one user).
    on_rows: called after each stored range with rows per table, from ingest's threads; must be quick.
    """

    def __init__(
        self,
        bus: Bus,
        store: Store,
        settings: IngestSettings,
        clock: Clock | None = None,
        *,
        cluster: str = "default",
        node: str = "",
        verify: Verify | None = None,
        on_rows: Callable[[Mapping[str, int]], None] | None = None,
    ) -> None:
        self.metrics = IngestMetrics()
        self._bus = bus
        self._store = store
        self._settings = settings
        self._clock = clock or SystemClock()
        self._verify = verify
        self._on_rows = on_rows
        self._speaker = Speaker(bus, self._clock, cluster, node or socket.gethostname())
        self._trouble = Occasionally(30.0)

    def run(self, stop: threading.Event) -> None:
        """Ingest on two threads until `stop` is set; returns when both have stored what they had read."""
        threads = [
            threading.Thread(target=self._keep_running, args=(topics, linger, stop), name=f"ingest-{name}")
            for name, topics, linger in (
                ("events", FAST_TOPICS, self._settings.events_linger_seconds),
                ("samples", BULK_TOPICS, self._settings.samples_linger_seconds),
            )
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _keep_running(self, topics: Sequence[str], linger_seconds: float, stop: threading.Event) -> None:
        while not stop.is_set():
            try:
                with ThreadPoolExecutor(2, f"{threading.current_thread().name}-insert") as executor:
                    self.consumer(topics, executor, linger_seconds).run(stop)
            except FlightwatchError as error:
                self._again_later(topics, str(error), stop)
            except Exception as error:  # A fault in one thread must not end ingest: what was announced is repeated.
                logger.exception("ingest of %s stopped and starts again", ", ".join(topics))
                self._again_later(topics, repr(error), stop)

    def _again_later(self, topics: Sequence[str], error: str, stop: threading.Event) -> None:
        self.metrics.failed(error)
        if self._trouble.due():
            logger.warning("ingest of %s starts again in 1 s: %s", ", ".join(topics), error)
        stop.wait(1.0)

    def consumer(self, topics: Sequence[str], executor: Executor, linger_seconds: float) -> Consumer:
        """Return a consumer of FAST_TOPICS or BULK_TOPICS, for callers that turn it themselves."""
        group = fast_group() if topics == FAST_TOPICS else GROUP
        return Consumer(topics, self._bus.subscribe(topics, group), self._tools(executor, linger_seconds))

    def _tools(self, executor: Executor, linger_seconds: float) -> Tools:
        planner = Planner(self._settings.late_days, self._settings.future_seconds, self._verify, PIPELINE_TOPICS)
        return Tools(
            bus=self._bus,
            store=self._store,
            clock=self._clock,
            settings=self._settings,
            linger_seconds=linger_seconds,
            planner=planner,
            writer=Writer(self._bus, self._store, self._clock, self.metrics),
            metrics=self.metrics,
            executor=executor,
            on_stored=self._stored,
        )

    def _stored(self, plan: Plan) -> None:
        rows = plan.rows
        self.metrics.stored(rows)
        self.metrics.add(
            bytes=plan.bytes,
            messages=len(plan.messages),
            gaps=sum(gap.batches for gap in plan.gaps),
            duplicates=plan.duplicates,
        )
        self._speaker.about(plan)
        if self._on_rows is not None and rows:
            self._on_rows(rows)
