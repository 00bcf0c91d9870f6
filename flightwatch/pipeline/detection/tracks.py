"""The memory of one shard between cycles: what is open, what was said, how far data had come."""

from __future__ import annotations

from dataclasses import dataclass, field

import pandas as pd

from flightwatch.detectors.contract import Finding
from flightwatch.pipeline.detection.arrivals import DAY_MS
from flightwatch.pipeline.detection.settings import DetectSettings
from flightwatch.pipeline.detection.shards import Shard
from flightwatch.pipeline.detection.tracker import FindingTracker
from flightwatch.pipeline.detection.window import moment, read_window
from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.detection_reads import arrival_sql, open_findings_sql

TRAINING = ("rank_steps", "op_timings", "training_scalars", "collectives", "dumps")
MARGIN_MS = 600_000


@dataclass
class Track:
    """One shard at work.

    Attributes
    ----------
    epoch: of the shard's lease; another one means that somebody else may have spoken meanwhile.
    tracker: open findings. before_ms: data time of the cycle before. unsent: findings the bus has not taken yet.
    """

    shard: Shard
    epoch: int
    tracker: FindingTracker
    before_ms: int = 0
    recovered: bool = False
    unsent: list[Finding] = field(default_factory=list)

    def recover(self, store: Store, until_ms: int, names: set[str]) -> None:
        """Read from the store what earlier processes left open of this shard's detectors; does so once.

        Raises
        ------
        TransientError: the store is away.
        """
        if self.recovered:
            return
        since = {"since": moment(until_ms - 2 * DAY_MS), "mark": moment(0)}
        for row in store.rows(open_findings_sql(), since):
            if row["last_detector"] not in names:
                continue
            mark = (row["last_class"], tuple(row["last_targets"]), row["last_severity"])
            onset = None if row["onset"] is None else _millis(row["onset"])
            self.tracker.remember(str(row["id"]), str(row["last_detector"]), mark, until_ms, onset)
        for row in store.rows(arrival_sql("findings"), since):
            # What ended before the last statement of an earlier process has been said.
            self.before_ms = max(self.before_ms, _millis(row["last_ts"]))
        self.recovered = True

    def frames(
        self, store: Store, needed: dict[str, set[str]], until_ms: int, late_ms: int | None, settings: DetectSettings
    ) -> dict[str, pd.DataFrame]:
        """Read the windows: as long as the settings say, back to open findings, and to where late rows reach.

        A day at most. Raises TransientError: the store is away.
        """
        onset = self.tracker.earliest_onset_ms()
        # Baselines lie before an onset, and before the first late row.
        wanted = [one - MARGIN_MS for one in (onset, late_ms) if one is not None]

        def since_of(table: str) -> int:
            seconds = settings.steps_seconds if table in TRAINING else settings.history_seconds
            return max(min([until_ms - seconds * 1000, *wanted]), until_ms - DAY_MS)

        return read_window(store, needed, since_of, until_ms, self.shard.number, self.shard.of)


def _millis(value: object) -> int:
    return int(pd.Timestamp(value).timestamp() * 1000) if not isinstance(value, (int, float)) else int(value)  # type: ignore[arg-type]
