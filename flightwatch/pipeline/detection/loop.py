"""The live loop: windows from the store, detectors, new statements to the bus.

Time is the data's: a cycle reads up to the newest row that has arrived, so late rows are scored again
with the window they fall into and a paused pipeline makes nobody silent. Ids are deterministic, so an
overlap of two loops changes nothing; leases keep every shard to one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from flightwatch.core.clock import Clock
from flightwatch.core.errors import TransientError
from flightwatch.detectors.contract import Detector, Finding
from flightwatch.detectors.registry import all_detectors
from flightwatch.pipeline.control.detection import DetectorSetting
from flightwatch.pipeline.control.erasures import Erasure
from flightwatch.pipeline.detection.arrivals import Arrivals, News
from flightwatch.pipeline.detection.blind import JUDGE_ABSENCE, BlindWatch, Sight
from flightwatch.pipeline.detection.roster import Roster, RosterKeeper
from flightwatch.pipeline.detection.run import run_detectors
from flightwatch.pipeline.detection.settings import DetectSettings
from flightwatch.pipeline.detection.shards import Membership, Shard, all_shards
from flightwatch.pipeline.detection.tracker import FindingTracker
from flightwatch.pipeline.detection.tracks import Track
from flightwatch.pipeline.detection.window import needed_tables
from flightwatch.pipeline.store.client import Store

log = logging.getLogger(__name__)


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
    blind: bool = False


class DetectionLoop:
    """Runs all detectors over the store, again and again.

    Parameters
    ----------
    publish: takes new findings; raises TransientError when the bus is away (they are offered again).
    membership: which shards this process holds; None: this process alone does everything (single machine).
    changed: reads what people changed about detectors (`DetectorSettings.all`); None: the file alone decides.
    escalate: told of findings just published, with the frames that made them; asks agents for more.
    behind_s: ingest's lag in seconds, for the blind rule; None: judged by arrivals alone.
    chores: done by whoever holds the fleet's shard; returns simulations just erased, of which nothing is kept.
    """

    def __init__(
        self,
        store: Store,
        publish: Callable[[Sequence[Finding]], None],
        clock: Clock,
        settings: DetectSettings,
        detectors: Sequence[Detector] | None = None,
        membership: Membership | None = None,
        changed: Callable[[], Mapping[str, DetectorSetting]] | None = None,
        escalate: Callable[[Sequence[Finding], Mapping[str, pd.DataFrame]], None] | None = None,
        behind_s: Callable[[], float | None] | None = None,
        cluster: str = "default",
        chores: Callable[[], Sequence[Erasure]] | None = None,
    ) -> None:
        self._store, self._publish, self._clock, self._settings = store, publish, clock, settings
        chosen = all_detectors() if detectors is None else list(detectors)
        self._roster = RosterKeeper(chosen, settings, changed)
        # What a detector that is switched on later needs is watched from the start.
        self._arrivals = Arrivals(store, clock, needed_tables(chosen))
        self._blind = BlindWatch(cluster, settings.blind_seconds, behind_s)
        self._escalate = escalate
        self._membership = membership
        self._chores = chores
        self._tracks: dict[str, Track] = {}
        self._last: Roster | None = None
        self.wake = threading.Event()

    def notice(self, rows: Mapping[str, int]) -> None:
        """Take note of rows that ingest has stored: wakes the loop. Quick; may be called from any thread."""
        if not self._arrivals.concerned(rows):
            return
        self.wake.set()

    def run(self, stop: threading.Event) -> None:
        """Run cycles until told to stop; woken by `wake` (ingest sets it) and by the interval."""
        while not stop.is_set():
            begin = self._clock.monotonic_s()
            try:
                self.cycle()
            except TransientError as error:
                log.warning("Detection waits: %s", error)
            busy = self._clock.monotonic_s() - begin
            # Rows arrive all the time: the pause keeps detection from taking the machine.
            longest = self._settings.interval_seconds
            pause = min(longest, max(self._settings.soonest_seconds, busy * (1 / self._settings.duty - 1)))
            stop.wait(pause)
            self.wake.wait(longest - pause if not stop.is_set() else 0)
            self.wake.clear()
        if self._membership is not None:
            try:
                self._membership.leave()
            except TransientError as error:
                log.warning("The shards were not given up, others take them when the leases end: %s", error)

    def cycle(self) -> Cycle:
        """Run one cycle over every shard held; nothing when nothing has arrived since the last one.

        Raises
        ------
        TransientError: store, bus or control database is away; the next cycle does the same work again.
        """
        begin = self._clock.monotonic_s()
        done = Cycle()
        for track in self._held():
            self._send(track, [])
        if self._chores is not None and any(track.shard.fleet for track in self._tracks.values()):
            self._forget(self._chores())
        roster = self._roster.now()
        if roster is not self._last:
            # A detector that was switched on or retuned is asked about what is there already.
            if self._last is not None:
                for track in self._tracks.values():
                    track.tracker.forget(self._last.shadow - roster.shadow)
            self._last = roster
            self._arrivals.forget()
        news = self._arrivals.news()
        sight = self._blind.look(self._clock.now_ms(), self._arrivals.received_ms)
        done.blind = sight.blind
        try:
            for track in list(self._tracks.values()):
                self._of_shard(track, roster, news, sight, done)
        except TransientError:
            # What had arrived is judged again: a shard may not have had its turn.
            self._arrivals.forget()
            raise
        done.seconds = self._clock.monotonic_s() - begin
        return done

    def _held(self) -> list[Track]:
        """Return a track per shard held; a shard that is new, or was somebody else's meanwhile, starts afresh."""
        alone = [(shard, 0) for shard in all_shards(1)]
        held = alone if self._membership is None else self._membership.shards()
        before, self._tracks = self._tracks, {}
        for shard, epoch in held:
            known = before.get(shard.name)
            if known is None or known.epoch != epoch:
                known = Track(shard, epoch, FindingTracker(self._settings.clear_after_seconds))
                self._arrivals.forget()
            self._tracks[shard.name] = known
        return list(self._tracks.values())

    def _forget(self, erased: Sequence[Erasure]) -> None:
        for one in erased:
            for track in self._tracks.values():
                # Kept steps would state it again.
                track.tracker.drop(one.column, one.value)
                track.steps = None

    def _of_shard(self, track: Track, roster: Roster, news: News | None, sight: Sight, done: Cycle) -> None:
        said = list(sight.said) if track.shard.fleet else []
        frames: dict[str, pd.DataFrame] = {}
        if news is not None:
            late = [one for one in (track.late_ms, news.late_since_ms) if one is not None]
            track.late_ms, track.waits = min(late, default=None), news
        news = track.waits if self._clock.monotonic_s() >= track.due_s else None
        if news is not None:
            track.due_s = self._clock.monotonic_s() + (self._settings.fleet_seconds if track.shard.fleet else 0.0)
            found, frames = self._judged(track, roster, news, sight, done)
            said += found
        if not said or not self._may_speak(track.shard):
            return
        done.said += said
        self._send(track, said)
        if self._escalate is not None:
            self._escalate(said, frames)

    def _judged(
        self, track: Track, roster: Roster, news: News, sight: Sight, done: Cycle
    ) -> tuple[list[Finding], dict[str, pd.DataFrame]]:
        detectors = [one for one in roster.running if track.shard.has(one)]
        judging = [one for one in detectors if not (sight.blind and one.name in JUDGE_ABSENCE)]
        track.recover(self._store, news.until_ms, {one.name for one in detectors}, self._blind)
        frames = track.frames(self._store, needed_tables(judging), news.until_ms, self._settings)
        outcome = run_detectors(judging, frames)
        # What a detector that was switched off had stated is cleared in time.
        ran = ({one.name for one in judging} - set(outcome.failures)) | roster.off
        before_ms = track.before_ms if track.late_ms is None else min(track.before_ms, track.late_ms)
        stated = track.lasting(outcome.findings, self._clock.monotonic_s())
        fresh = track.tracker.fresh(stated, ran, before_ms, news.until_ms)
        track.before_ms, track.late_ms, track.waits = news.until_ms, None, None
        done.until_ms = news.until_ms
        done.rows += sum(len(frame) for frame in frames.values())
        done.rows += track.steps.rows_read if track.steps is not None else 0
        done.failures |= outcome.failures
        for finding in fresh:
            if finding.detector in roster.shadow:
                log.info("In shadow: %s", finding.summary)
        return [one for one in fresh if one.detector not in roster.shadow], frames

    def _may_speak(self, shard: Shard) -> bool:
        if self._membership is None or self._membership.still_holds(shard):
            return True
        log.warning("The shard %s passed to another process meanwhile: it speaks.", shard.name)
        self._tracks.pop(shard.name, None)
        return False

    def _send(self, track: Track, findings: list[Finding]) -> None:
        """Offer findings in order; what the bus does not take now is offered first next time."""
        track.unsent += findings
        while track.unsent:
            self._publish(track.unsent[:1])
            track.unsent.pop(0)
