"""The live loop: windows from the store, detectors, new statements to the bus.

Time is the data's: a cycle reads up to the newest row that has arrived, so late rows are scored again
with the window they fall into and a paused pipeline makes nobody silent. Ids are deterministic, so an
overlap of two loops changes nothing; a lease keeps it to one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pandas as pd

from flightwatch.core.clock import Clock
from flightwatch.core.errors import StaleGeneration, TransientError
from flightwatch.detectors.contract import Detector, Finding
from flightwatch.detectors.registry import all_detectors
from flightwatch.pipeline.control.leases import Lease, Leases
from flightwatch.pipeline.detection.run import run_detectors
from flightwatch.pipeline.detection.settings import DetectSettings
from flightwatch.pipeline.detection.tracker import FindingTracker
from flightwatch.pipeline.detection.window import STANDING, moment, needed_tables, read_window
from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.detection_reads import arrival_sql, open_findings_sql

log = logging.getLogger(__name__)

ROLE = "detection"
TRAINING = ("rank_steps", "op_timings", "training_scalars")
DAY_MS = 86_400_000
MARGIN_MS = 600_000


@dataclass
class Cycle:
    """What one cycle did.

    Attributes
    ----------
    until_ms: data time up to which it read; None when nothing had arrived. rows: rows read. said: findings published.
    """

    until_ms: int | None = None
    rows: int = 0
    said: list[Finding] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


class DetectionLoop:
    """Runs all detectors over the store, again and again.

    Parameters
    ----------
    publish: takes new findings; raises TransientError when the bus is away (they are offered again).
    leases, holder: who may run; None: this process alone (single machine).
    """

    def __init__(
        self,
        store: Store,
        publish: Callable[[Sequence[Finding]], None],
        clock: Clock,
        settings: DetectSettings,
        detectors: Sequence[Detector] | None = None,
        leases: Leases | None = None,
        holder: str = "",
    ) -> None:
        self._store, self._publish, self._clock, self._settings = store, publish, clock, settings
        chosen = all_detectors() if detectors is None else list(detectors)
        self._detectors = [one for one in chosen if one.name not in settings.disabled]
        self._needed = needed_tables(self._detectors)
        self._leases, self._holder = leases, holder
        self._lease: Lease | None = None
        self._tracker = FindingTracker(settings.clear_after_seconds)
        self._arrived: dict[str, int] = {}
        self._before_ms = 0
        self._unsent: list[Finding] = []
        self._recovered = False
        self.wake = threading.Event()

    def run(self, stop: threading.Event) -> None:
        """Run cycles until told to stop; woken by `wake` (ingest sets it) and by the interval."""
        while not stop.is_set():
            try:
                if self._may_run():
                    self.cycle()
            except TransientError as error:
                log.warning("Detection waits: %s", error)
            self.wake.wait(self._settings.interval_seconds)
            self.wake.clear()
        if self._leases is not None and self._lease is not None:
            self._leases.release(self._lease)

    def _may_run(self) -> bool:
        if self._leases is None:
            return True
        try:
            if self._lease is not None:
                self._lease = self._leases.renew(self._lease, self._settings.lease_seconds)
                return True
        except StaleGeneration:
            self._lease = None
        self._lease = self._leases.acquire(ROLE, self._holder, self._settings.lease_seconds)
        # Somebody else may have spoken meanwhile: what is open is read again.
        self._recovered = False
        return self._lease is not None

    def cycle(self) -> Cycle:
        """Run one cycle; nothing when nothing has arrived since the last one.

        Raises
        ------
        TransientError: the store or the bus is away; the next cycle does the same work again.
        """
        begin = self._clock.monotonic_s()
        done = Cycle()
        self._send([])
        until = self._news()
        if until is None:
            return done
        self._recover(until)
        frames = self._frames(until)
        done.until_ms, done.rows = until, sum(len(frame) for frame in frames.values())
        outcome = run_detectors(self._detectors, frames)
        ran = {one.name for one in self._detectors} - set(outcome.failures)
        fresh = self._tracker.fresh(outcome.findings, ran, self._before_ms, until)
        self._before_ms = until
        for finding in fresh:
            if finding.detector in self._settings.shadow:
                log.info("In shadow: %s", finding.summary)
        done.said = [one for one in fresh if one.detector not in self._settings.shadow]
        done.failures = outcome.failures
        done.seconds = self._clock.monotonic_s() - begin
        self._send(done.said)
        return done

    def _send(self, findings: list[Finding]) -> None:
        """Offer findings in order; what the bus does not take now is offered first next time."""
        self._unsent += findings
        while self._unsent:
            self._publish(self._unsent[:1])
            self._unsent.pop(0)

    def _news(self) -> int | None:
        """Return the newest data time when rows have arrived since the last cycle."""
        since = self._clock.now_ms() - DAY_MS
        newest: int | None = None
        changed = False
        for table in self._needed:
            for row in self._store.rows(arrival_sql(table), {"since": moment(since)}):
                arrived, ts = _millis(row["last_arrival"]), _millis(row["last_ts"])
                changed = changed or arrived != self._arrived.get(table)
                self._arrived[table] = arrived
                if table not in STANDING:
                    newest = ts if newest is None else max(newest, ts)
        return newest if changed else None

    def _recover(self, until: int) -> None:
        if self._recovered:
            return
        for row in self._store.rows(open_findings_sql(), {"since": moment(until - 2 * DAY_MS)}):
            mark = (row["last_class"], tuple(row["last_targets"]), row["last_severity"])
            onset = None if row["onset"] is None else _millis(row["onset"])
            self._tracker.remember(str(row["id"]), str(row["last_detector"]), mark, until, onset)
        for row in self._store.rows(arrival_sql("findings"), {"since": moment(until - 2 * DAY_MS)}):
            # What ended before the last statement of an earlier process has been said.
            self._before_ms = max(self._before_ms, _millis(row["last_ts"]))
        self._recovered = True

    def _frames(self, until: int) -> dict[str, pd.DataFrame]:
        onset = self._tracker.earliest_onset_ms()

        def since_of(table: str) -> int:
            seconds = self._settings.steps_seconds if table in TRAINING else self._settings.history_seconds
            since = until - seconds * 1000
            # An open finding keeps its onset in view, for a day at most: baselines lie before it.
            return since if onset is None else max(min(since, onset - MARGIN_MS), until - DAY_MS)

        return read_window(self._store, self._needed, since_of, until)


def _millis(value: object) -> int:
    return int(pd.Timestamp(value).timestamp() * 1000) if not isinstance(value, (int, float)) else int(value)  # type: ignore[arg-type]
