"""Where NaN and Inf began: the first origin in dependency order, not on the wall clock.

Order: step, forward before backward, stage, op index. One rank alone is a hardware suspect; a whole
tensor-parallel group at the same place is data or overflow. A NaN check alone is weak: about one in a
hundred silent data errors shows as NaN.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from flightwatch.core.vocabulary import FindingKind, FindingScope, Severity
from flightwatch.detectors.contract import Finding, Frames, Needs
from flightwatch.detectors.dense_steps import has_positive
from flightwatch.detectors.rank_matrix import RunSteps, runs_of

PHASE_ORDER = {"forward": 0, "loss": 1, "backward": 2, "optimizer": 3}


@dataclass(frozen=True)
class NonfiniteThresholds:
    """Defaults: steps at the start in which a loss-scale search may overflow; quiet steps after which a new origin is a
    new finding; share of ranks that makes it everybody's."""

    start_steps: int = 20
    quiet_steps: int = 20
    everybody: float = 0.5


@dataclass(frozen=True)
class _Origin:
    rank: int | None
    node: str | None
    device: int | None
    phase: str | None
    where: str | None
    parameters_finite: bool


class NonfiniteDetector:
    """Finds kind `nonfinite` (scope rank where one rank began it, else job).

    Blind: values that are wrong and finite; ranks whose probe checks only after the reduction (then all ranks show it).
    """

    name = "nonfinite"
    version = "1"
    needs = Needs(
        {
            "rank_steps": ("ts", "job", "run", "step", "rank", "nonfinite_count"),
            "events": ("ts", "node", "device", "job", "run", "rank", "source", "code", "attrs"),
            "placements": ("job", "run", "rank", "tp", "pp", "dp"),
        },
        steps=100,
    )

    def __init__(self, thresholds: NonfiniteThresholds | None = None) -> None:
        self.thresholds = thresholds or NonfiniteThresholds()

    def score(self, frames: Frames) -> list[Finding]:
        """See `contract.Detector`."""
        found: list[Finding] = []
        if has_positive(frames, "nonfinite_count"):
            for run in runs_of(frames):
                found += self._of_run(run, frames)
        if not found:
            found += self._of_events(frames)
        return found

    def _of_run(self, run: RunSteps, frames: Frames) -> Iterable[Finding]:
        count = run.channel("nonfinite_count")
        if count is None:
            return
        bad = np.nan_to_num(count) > 0
        loss = run.channel("loss")
        last = -(10**9)
        for at in np.nonzero(bad.any(axis=1))[0].tolist():
            fresh = at - last > self.thresholds.quiet_steps
            last = at
            if not fresh:
                continue
            ranks = np.nonzero(bad[at])[0].tolist()
            early = int(run.steps_S[at]) < self.thresholds.start_steps
            finite_loss = loss is None or np.isfinite(loss[at]).any()
            if early and finite_loss and len(ranks) > self.thresholds.everybody * run.shape[1]:
                continue
            yield self._say(run, frames, at, ranks)

    def _say(self, run: RunSteps, frames: Frames, at: int, ranks: list[int]) -> Finding:
        layout, step = run.layout, int(run.steps_S[at])
        origin = _first_event(frames, run.job, run.run, step)
        position = self._first_rank(run, ranks, origin)
        alone = position is not None
        everybody = len(ranks) > self.thresholds.everybody * run.shape[1]
        node = layout.node_R[position] if position is not None else None
        device = int(layout.device_R[position]) if position is not None else -1
        where = f" in {origin.where}" if origin and origin.where else ""
        phase = f" ({origin.phase})" if origin and origin.phase else ""
        many = f"Non-finite values on {len(ranks)} ranks at step {step}{where}"
        if alone and position is not None:
            rank = int(layout.ranks_R[position])
            text = f"Non-finite values began on rank {rank} ({node}){where}{phase} at step {step}, on no other rank: "
            text += "a hardware suspect."
        elif everybody:
            text = f"{many}: after the reduction, or overflow; no rank can be named."
        else:
            text = f"{many}: data or overflow."
        return Finding(
            detector=self.name,
            detector_version=self.version,
            kind=FindingKind.NONFINITE,
            scope=FindingScope.RANK if alone else FindingScope.JOB,
            summary=text,
            score=float(len(ranks)),
            severity=Severity.P2,
            detected_at=int(run.end_ms_S[at]) if np.isfinite(run.end_ms_S[at]) else None,
            cluster=run.cluster,
            node=node,
            job=run.job,
            run=run.run,
            device=device if device >= 0 else None,
            rank=int(layout.ranks_R[position]) if position is not None else None,
            targets=tuple(f"rank {int(layout.ranks_R[i])}" for i in ranks[:16]),
            first_step=step,
            detected_step=step,
            blames_hardware=alone,
            confidence=0.8 if alone else 0.5,
            evidence={
                "ranks": [int(layout.ranks_R[i]) for i in ranks[:64]],
                "phase": origin.phase if origin else None,
                "op": origin.where if origin else None,
            },
        )

    def _first_rank(self, run: RunSteps, ranks: list[int], origin: _Origin | None) -> int | None:
        """Return the one rank where it began, or None when several did at the same place."""
        if len(ranks) == 1:
            return ranks[0]
        if origin is not None and origin.rank is not None:
            at = np.nonzero(run.layout.ranks_R == origin.rank)[0]
            if len(at) and origin.parameters_finite:
                return int(at[0])
        stage = run.layout.axis_R["pp"]
        first = [i for i in ranks if stage[i] == stage[ranks].min()]
        spread_downstream = len(first) == 1 and stage[ranks].max() > stage[ranks].min()
        return first[0] if spread_downstream else None

    def _of_events(self, frames: Frames) -> Iterable[Finding]:
        """Without per-rank counts: the probe's own events."""
        events = frames.get("events")
        if events is None or events.empty or "code" not in events:
            return
        rows = events[events["code"].astype(object).astype(str).str.startswith("nonfinite")]
        if rows.empty:
            return
        keys = [name for name in ("job", "run") if name in rows]
        groups = rows.groupby(keys, sort=True, dropna=False, observed=True) if keys else [((), rows)]
        for key, group in groups:
            labels = dict(zip(keys, key if isinstance(key, tuple) else (key,), strict=False))
            ordered = _ordered(group)
            first = ordered.iloc[0]
            same = ordered[ordered["order"] == first["order"]]
            origin = _origin(first)
            alone = len(same) == 1 and origin.rank is not None and origin.parameters_finite
            ts = first["ts"] if "ts" in first and first["ts"] == first["ts"] else None
            yield Finding(
                detector=self.name, detector_version=self.version, kind=FindingKind.NONFINITE,
                scope=FindingScope.RANK if alone else FindingScope.JOB,
                summary=f"Non-finite values began {'on rank ' + str(origin.rank) if alone else 'on several ranks'}"
                f"{' in ' + origin.where if origin.where else ''}{' (' + origin.phase + ')' if origin.phase else ''}.",
                score=float(len(same)), severity=Severity.P2, detected_at=None if ts is None else int(ts),
                node=origin.node, device=origin.device, rank=origin.rank if alone else None,
                job=_word(labels.get("job")), run=_word(labels.get("run")),
                targets=tuple(f"rank {int(rank)}" for rank in same["rank"].dropna().head(16)) if "rank" in same else (),
                first_step=_step(first), detected_step=_step(first), blames_hardware=alone,
                confidence=0.7 if alone else 0.5, evidence={"phase": origin.phase, "op": origin.where},
            )  # fmt: skip


def _first_event(frames: Frames, job: str | None, run: str | None, step: int) -> _Origin | None:
    events = frames.get("events")
    if events is None or events.empty or "code" not in events:
        return None
    rows = events[events["code"].astype(object).astype(str).str.startswith("nonfinite")]
    for column, wanted in (("job", job), ("run", run)):
        if column in rows and wanted is not None:
            rows = rows[(rows[column] == wanted) | rows[column].isna()]
    if rows.empty:
        return None
    ordered = _ordered(rows)
    near = ordered[(ordered["order"].map(lambda order: order[0]) - step).abs() <= 1]
    if near.empty:
        return None
    first = near.iloc[0]
    same = near[near["order"] == first["order"]]
    origin = _origin(first)
    return origin if len(same) == 1 else _Origin(None, None, None, origin.phase, origin.where, False)


def _ordered(rows: pd.DataFrame) -> pd.DataFrame:
    """Sort events by (step, phase, stage, op index); what an event does not say counts as 0."""
    order = []
    for _, row in rows.iterrows():
        code = str(row["code"]).split(":")
        phase = code[1] if len(code) > 1 else str(_attribute(row, "phase") or "")
        order.append(
            (_number(_attribute(row, "step")), PHASE_ORDER.get(phase, 1), _number(_attribute(row, "stage")),
             _number(_attribute(row, "op_index")))
        )  # fmt: skip
    return rows.assign(order=pd.Series(order, index=rows.index, dtype=object)).sort_values("order", kind="stable")


def _attribute(row: pd.Series, name: str) -> object:
    value = row.get(f"attrs.{name}")
    return None if value is None or value != value else value


def _number(value: object) -> int:
    try:
        return int(float(str(value)))
    except ValueError:
        return 0


def _step(row: pd.Series) -> int | None:
    return _number(_attribute(row, "step")) if _attribute(row, "step") is not None else None


def _origin(row: pd.Series) -> _Origin:
    code = str(row["code"]).split(":")
    where = _attribute(row, "module") or _attribute(row, "op")
    rank, device = row.get("rank"), row.get("device")
    finite = str(_attribute(row, "parameters_finite") or "true").lower() in ("true", "1", "yes")
    return _Origin(
        int(rank) if rank is not None and rank == rank else None,
        _word(row.get("node")),
        int(device) if device is not None and device == device else None,
        code[1] if len(code) > 1 else None,
        None if where is None else str(where),
        finite,
    )


def _word(value: object) -> str | None:
    return value if isinstance(value, str) else None
