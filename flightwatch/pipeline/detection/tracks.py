"""The memory of one shard between cycles: what is open, what was said, how far data had come."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pandas as pd

from flightwatch.core.vocabulary import FindingKind, FindingScope, FindingState, Severity
from flightwatch.detectors.contract import Finding
from flightwatch.detectors.dense_steps import DenseFrames, DenseRun
from flightwatch.pipeline.detection.arrivals import DAY_MS, News
from flightwatch.pipeline.detection.blind import HOLD_SECONDS, BlindWatch
from flightwatch.pipeline.detection.blind import NAME as BLIND
from flightwatch.pipeline.detection.settings import DetectSettings
from flightwatch.pipeline.detection.shards import Shard
from flightwatch.pipeline.detection.step_matrix import StepMatrix
from flightwatch.pipeline.detection.tracker import FindingTracker
from flightwatch.pipeline.detection.window import moment, read_window
from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.detection_reads import arrival_sql, jobs_of_shard, open_findings_sql

TRAINING = ("rank_steps", "op_timings", "training_scalars", "collectives", "dumps")
MARGIN_MS = 600_000


@dataclass
class Track:
    """One shard at work.

    Attributes
    ----------
    epoch: of the shard's lease; another one means that somebody else may have spoken meanwhile.
    tracker: open findings. before_ms: data time of the cycle before. unsent: findings the bus has not taken yet.
    waits: what has arrived since the last look, late_ms: how far back its rows reach. due_s: monotonic time from which
    on this shard may look again. missing_s: monotonic time since which it is stated that ranks are missing.
    """

    shard: Shard
    epoch: int
    tracker: FindingTracker
    before_ms: int = 0
    recovered: bool = False
    unsent: list[Finding] = field(default_factory=list)
    waits: News | None = None
    late_ms: int | None = None
    due_s: float = float("-inf")
    steps: StepMatrix | None = None
    missing_s: dict[str, float] = field(default_factory=dict)

    def recover(self, store: Store, until_ms: int, names: set[str], blind: BlindWatch) -> None:
        """Read from the store what earlier processes left open of this shard's detectors; does so once.

        Raises
        ------
        TransientError: the store is away.
        """
        if self.recovered:
            return
        since = {"since": moment(until_ms - 2 * DAY_MS), "mark": moment(0)}
        mine = jobs_of_shard(self.shard.number, self.shard.of)
        for row in store.rows(open_findings_sql(mine), since):
            if row["detector"] in names:
                self.tracker.remember(finding_of(row), until_ms, _millis_or_none(row["onset"]))
            elif row["detector"] == BLIND and self.shard.fleet:
                blind.take_over(finding_of(row))
        for row in store.rows(arrival_sql("findings"), since):
            # What ended before the last statement of an earlier process has been said.
            self.before_ms = max(self.before_ms, _millis(row["last_ts"]))
        self.recovered = True

    def lasting(self, findings: Sequence[Finding], now_s: float) -> list[Finding]:
        """Leave out that ranks are missing until it was stated for `HOLD_SECONDS`; `now_s` is monotonic."""
        stated = {one.id for one in findings if one.kind == FindingKind.COVERAGE}
        self.missing_s = {id_: self.missing_s.get(id_, now_s) for id_ in stated}
        return [one for one in findings if now_s - self.missing_s.get(one.id, float("-inf")) >= HOLD_SECONDS]

    def frames(
        self, store: Store, needed: dict[str, set[str]], until_ms: int, settings: DetectSettings
    ) -> dict[str, pd.DataFrame]:
        """Read the windows: as long as the settings say, back to open findings, and to where late rows reach.

        A day at most. Steps of ranks are kept between calls: only what arrived is read.
        Raises TransientError: the store is away.
        """
        onset = self.tracker.earliest_onset_ms()
        # Baselines lie before an onset, and before the first late row.
        wanted = [one - MARGIN_MS for one in (onset, self.late_ms) if one is not None]

        def since_of(table: str) -> int:
            seconds = settings.steps_seconds if table in TRAINING else settings.history_seconds
            return max(min([until_ms - seconds * 1000, *wanted]), until_ms - DAY_MS)

        number, of = self.shard.number, self.shard.of
        if "rank_steps" not in needed:
            return read_window(store, needed, since_of, until_ms, number, of, settings.sample_rows)
        if self.steps is None:
            self.steps = StepMatrix(store, settings.step_cells, where=jobs_of_shard(number, of))
        runs = self.steps.refresh(since_of("rank_steps"), until_ms)
        # Where nobody sends steps they are derived from the summaries of ops.
        derived = {"op_timings"} if runs else set()
        rest = {table: columns for table, columns in needed.items() if table not in {"rank_steps", *derived}}
        tables = read_window(store, rest, since_of, until_ms, number, of, settings.sample_rows)
        return DenseFrames({**tables, "rank_steps": step_times(runs)}, runs)


def step_times(runs: list[DenseRun]) -> pd.DataFrame:
    """Return when each step of each run was, as one rank saw it: rows of `rank_steps` for who asks only that."""
    parts = [
        pd.DataFrame(
            {
                "ts": np.nanmin(run.start_ms_SF, axis=1, initial=np.inf),
                "job": run.job,
                "run": run.run,
                "cluster": run.cluster,
                "step": run.steps_S.astype(float),
                "rank": float(run.ranks_R[0]),
            }
        )
        for run in runs
        if len(run.steps_S)
    ]
    if not parts:
        return pd.DataFrame(columns=["ts", "job", "run", "cluster", "step", "rank"])
    joined = pd.concat(parts, ignore_index=True)
    known: pd.DataFrame = joined[np.isfinite(joined["ts"].to_numpy())]
    return known


def finding_of(row: Mapping[str, Any]) -> Finding:
    """Return the finding that a row of the findings table tells."""
    given = {field.name: row[field.name] for field in fields(Finding) if field.name in row}
    given |= {
        "kind": FindingKind(row["kind"]), "scope": FindingScope(row["scope"]), "severity": Severity(row["severity"]),
        "state": FindingState(row["state"]), "class_": row["class"], "node": row["node"] or None,
        "targets": tuple(row["targets"]), "blames_hardware": bool(row["blames_hardware"]),
        "evidence": json.loads(row["evidence"] or "{}"), "detected_at": _millis(row["detected_at"]),
        "first_seen_at": _millis_or_none(row["first_seen_at"]),
    }  # fmt: skip
    return Finding(**given)


def _millis_or_none(value: object) -> int | None:
    return None if value is None or pd.isna(value) else _millis(value)  # type: ignore[call-overload]


def _millis(value: object) -> int:
    return int(pd.Timestamp(value).timestamp() * 1000) if not isinstance(value, (int, float)) else int(value)  # type: ignore[arg-type]
