"""FP8 numerics: amax that jumps, a scale that collapses, overflow that stays, before the loss moves.

Reads `training_scalars` named `fp8.<quantity>.<layer>` with quantity amax, scale, overflow or underflow,
one value per job or one per rank. Each series is compared with its own recent past; a change that one
rank alone shows, while the other ranks that report the same layer do not, is a suspect device, anything
else is the model or the recipe.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from flightwatch.core.vocabulary import FindingKind, FindingScope, FindingState, Severity
from flightwatch.detectors.contract import Finding, Frames, Needs
from flightwatch.detectors.grouped import MAD_TO_SIGMA, BoolArray, FloatArray, sorted_median

_NAME = re.compile(r"(?:^|[./])fp8[./](amax|scale|overflow|underflow)[./](.+)$", re.IGNORECASE)
_WORDS = {"amax": "largest values jumped", "scale": "scales collapsed", "overflow": "values overflow",
          "underflow": "values underflow"}  # fmt: skip


@dataclass(frozen=True)
class NumericsThresholds:
    """Defaults.

    Attributes
    ----------
    ratio, z: amax above, or scale below, its recent level by this factor and this robust z of the logarithm.
    overflow, underflow: share of values that is too much, and `share_factor` times the recent level.
    history, minimum, refresh: steps of the level, fewest before speaking, steps between two updates of it.
    floor: smallest believable scatter of the logarithm. of_five: so many of five steps must deviate.
    clear_steps: steps without any deviation until it is over. reporters: fewest ranks among which one is alone.
    """

    ratio: float = 8.0
    z: float = 6.0
    overflow: float = 0.01
    underflow: float = 0.2
    share_factor: float = 5.0
    history: int = 100
    minimum: int = 20
    refresh: int = 10
    floor: float = 0.1
    of_five: int = 3
    clear_steps: int = 10
    reporters: int = 4


@dataclass(frozen=True)
class _Series:
    """All FP8 series of one run: steps x columns; a column is one quantity of one layer on one rank (-1: the job)."""

    job: str | None
    run: str | None
    cluster: str | None
    steps_S: np.ndarray
    times_S: FloatArray
    quantity_C: tuple[str, ...]
    layer_C: tuple[str, ...]
    rank_C: tuple[int, ...]
    node_C: tuple[str | None, ...]
    values_SC: FloatArray


class NumericsDetector:
    """Finds kind `numerics` (scope job; scope rank where one rank alone deviates, then a hardware suspect).

    Does not see: layers whose values nobody reports, values reduced over ranks (they are equal everywhere and name
    nobody), a slow growth that the level follows.
    """

    name = "numerics"
    version = "1"
    needs = Needs(
        {
            "training_scalars": ("ts", "cluster", "node", "job", "run", "step", "rank", "name", "value",
                                 "nonfinite_count"),
        },
        steps=200,
    )  # fmt: skip

    def __init__(self, thresholds: NumericsThresholds | None = None) -> None:
        self.thresholds = thresholds or NumericsThresholds()

    def score(self, frames: Frames) -> list[Finding]:
        """See `contract.Detector`."""
        found: list[Finding] = []
        for series in _series_of(frames):
            found += self._of_run(series)
        return sorted(found, key=lambda one: (one.detected_at or 0, one.id))

    def _of_run(self, series: _Series) -> Iterable[Finding]:
        on_SC, excess_SC = self._deviating(series)
        open_: Finding | None = None
        last = -1
        for t in np.nonzero(on_SC.any(axis=1))[0].tolist():
            if open_ is not None and t - last > self.thresholds.clear_steps:
                yield self._cleared(series, open_, last)
                open_ = None
            last = t
            rank = self._alone(series, on_SC[t], excess_SC[t], t)
            if open_ is None:
                open_ = self._say(series, t, on_SC[t], excess_SC[t], rank)
                yield open_
            elif open_.scope == FindingScope.RANK and rank != open_.rank:
                said = self._say(series, t, on_SC[t], excess_SC[t], None)
                open_ = replace(
                    said, id=open_.id, state=FindingState.CHANGED, first_seen_at=open_.first_seen_at,
                    first_step=open_.first_step,
                )  # fmt: skip
                yield open_
        if open_ is not None and len(on_SC) - 1 - last >= self.thresholds.clear_steps:
            yield self._cleared(series, open_, last)

    def _deviating(self, series: _Series) -> tuple[BoolArray, FloatArray]:
        """Say which columns deviate in which steps, and by how much (1 at the threshold), by rows before each step."""
        limits, values = self.thresholds, series.values_SC
        quantity = np.array(series.quantity_C)
        logarithmic = (quantity == "amax") | (quantity == "scale")
        sign = np.where(quantity == "scale", -1.0, 1.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            # A tensor of zeros has amax 0 and says nothing; a scale of 0 has collapsed.
            empty = (quantity == "amax")[None, :] & (values == 0)
            worse = np.where(logarithmic, sign * np.log(np.where(empty, np.nan, np.abs(values))), values)
        broken = np.isinf(values)
        share = np.where(quantity == "overflow", limits.overflow, limits.underflow)
        excess = np.zeros(worse.shape)
        centre = scatter = np.full(worse.shape[1], np.nan)
        enough = np.zeros(worse.shape[1], dtype=bool)
        for t in range(len(worse)):
            if t % limits.refresh == 0 and t:
                past = worse[max(0, t - limits.history) : t]
                past = np.where(np.isfinite(past), past, np.nan)
                centre = sorted_median(past.T)
                scatter = MAD_TO_SIGMA * sorted_median(np.abs(past - centre).T)
                enough = np.isfinite(past).sum(axis=0) >= limits.minimum
            shift = worse[t] - centre
            jump = np.minimum(shift / np.log(limits.ratio), shift / np.maximum(scatter, limits.floor) / limits.z)
            over = np.minimum(worse[t] / share, worse[t] / np.maximum(limits.share_factor * centre, 1e-12))
            excess[t] = np.where(enough, np.nan_to_num(np.where(logarithmic, jump, over), posinf=100.0), 0.0)
            excess[t] = np.where(enough & broken[t], 100.0, excess[t])
        high = excess >= 1.0
        often = np.zeros(high.shape, dtype=np.int8)
        for back in range(min(5, len(high))):
            often[back:] += high[: len(high) - back]
        return high & (often >= limits.of_five), np.minimum(excess, 100.0)

    def _alone(self, series: _Series, on_C: BoolArray, excess_C: FloatArray, t: int) -> int | None:
        """Return the one rank that deviates where at least three others report the same and hardly do."""
        columns = np.nonzero(on_C)[0].tolist()
        ranks = {series.rank_C[c] for c in columns}
        if len(ranks) != 1 or min(ranks) < 0:
            return None
        for c in columns:
            same = [
                i for i, (quantity, layer) in enumerate(zip(series.quantity_C, series.layer_C, strict=True))
                if (quantity, layer) == (series.quantity_C[c], series.layer_C[c]) and series.rank_C[i] >= 0
            ]  # fmt: skip
            known = ~np.isnan(series.values_SC[max(0, t - 4) : t + 1, same]).all(axis=0)
            follow = any(excess_C[i] >= 0.5 for i in same if i != c)
            if np.count_nonzero(known) < self.thresholds.reporters or follow:
                return None
        return ranks.pop()

    def _say(self, series: _Series, t: int, on_C: BoolArray, excess_C: FloatArray, rank: int | None) -> Finding:
        columns = sorted(
            np.nonzero(on_C)[0].tolist(), key=lambda c: (-excess_C[c], series.quantity_C[c], series.layer_C[c])
        )
        worst = columns[0]
        layers = list(dict.fromkeys(series.layer_C[c] for c in columns))
        quantities = list(dict.fromkeys(series.quantity_C[c] for c in columns))
        node = series.node_C[worst] if rank is not None else None
        where = f"layer {layers[0]}" + (f" and {len(layers) - 1} more" if len(layers) > 1 else "")
        what = ", ".join(_WORDS[one] for one in quantities)
        step = int(series.steps_S[t])
        if rank is None:
            text = f"FP8 of {series.job or 'the job'}: {what} in {where} since step {step}; "
            text += "the recipe or the model, not hardware."
        else:
            text = f"FP8 on rank {rank} alone{f' ({node})' if node else ''}: {what} in {where} since step {step}; "
            text += "its peers are as before: a hardware suspect."
        base = Finding(
            detector=self.name, detector_version=self.version, kind=FindingKind.NUMERICS, scope=FindingScope.JOB,
            summary=text, score=round(float(excess_C[worst]), 3), threshold=1.0, severity=Severity.P3,
            detected_at=_ms(series.times_S[t]), first_seen_at=_ms(series.times_S[t]), cluster=series.cluster,
            job=series.job, run=series.run, first_step=step, detected_step=step, blames_hardware=rank is not None,
            confidence=0.8 if rank is None else 0.6,
            evidence={
                "quantities": quantities, "layers": layers[:16], "layers_affected": len(layers),
                "value": float(series.values_SC[t, worst]),
                "ranks": sorted({series.rank_C[c] for c in columns if series.rank_C[c] >= 0})[:64],
            },
        )  # fmt: skip
        if rank is None:
            return replace(base, targets=(series.job or "job",), id=base.id)
        return replace(base, scope=FindingScope.RANK, rank=rank, node=node, targets=(f"rank {rank}",), id=base.id)

    def _cleared(self, series: _Series, finding: Finding, last: int) -> Finding:
        at = min(last + self.thresholds.clear_steps, len(series.steps_S) - 1)
        return replace(
            finding, state=FindingState.CLEARED, detected_at=_ms(series.times_S[at]),
            detected_step=int(series.steps_S[at]), summary="FP8 values are back at their level: over.",
        )  # fmt: skip


def _series_of(frames: Frames) -> Iterable[_Series]:
    rows = frames.get("training_scalars")
    if rows is None or rows.empty or not {"step", "name", "value"} <= set(rows.columns):
        return
    names = {str(name): found for name in pd.unique(rows["name"].dropna()) if (found := _NAME.search(str(name)))}
    if not names:
        return
    rows = rows[rows["name"].isin(list(names))].dropna(subset=["step"])
    keys = [name for name in ("job", "run") if name in rows]
    groups = rows.groupby(keys, sort=True, dropna=False, observed=True) if keys else [((), rows)]
    for key, group in groups:
        labels = dict(zip(keys, key if isinstance(key, tuple) else (key,), strict=False))
        if len(group):
            yield _one_run(_word(labels.get("job")), _word(labels.get("run")), group, names)


def _one_run(job: str | None, run: str | None, rows: pd.DataFrame, names: dict[str, re.Match[str]]) -> _Series:
    rank = rows["rank"].fillna(-1).to_numpy(dtype=float) if "rank" in rows else np.full(len(rows), -1.0)
    value = rows["value"].to_numpy(dtype=float)
    if "nonfinite_count" in rows:
        value = np.where(np.isnan(value) & (rows["nonfinite_count"].fillna(0) > 0).to_numpy(), np.inf, value)
    labels = list(zip(rows["name"].astype(object).astype(str), rank.astype(int).tolist(), strict=True))
    columns = {label: i for i, label in enumerate(sorted(set(labels)))}
    steps_S, row_of = np.unique(rows["step"].to_numpy(dtype=float).astype(np.int64), return_inverse=True)
    column_of = np.array([columns[label] for label in labels])
    values = np.full((len(steps_S), len(columns)), np.nan)
    values[row_of, column_of] = value
    times = np.full(len(steps_S), np.nan)
    if "ts" in rows:
        # The last moment at which a step's value arrived, whatever the order of rows.
        known = rows["ts"].to_numpy(dtype=float)
        np.fmax.at(times, row_of, known)
    node_of: dict[int, str] = {}
    if "node" in rows:
        placed = rows.assign(rank=rank)[["rank", "node"]].dropna().drop_duplicates("rank", keep="last")
        node_of = {int(r): str(node) for r, node in zip(placed["rank"], placed["node"], strict=True)}
    found = [names[name] for name, _ in columns]
    cluster = _word(rows["cluster"].iloc[0]) if "cluster" in rows else None
    return _Series(
        job, run, cluster, steps_S, times, tuple(one[1].lower() for one in found), tuple(one[2] for one in found),
        tuple(r for _, r in columns), tuple(node_of.get(r) for _, r in columns), values,
    )  # fmt: skip


def _word(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _ms(value: float) -> int | None:
    return int(value) if np.isfinite(value) else None
