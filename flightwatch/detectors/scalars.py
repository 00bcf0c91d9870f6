"""Loss and gradient norm: spikes, and the norm that rises before the loss does.

A spike is a robust z above 6 of the logarithm's residual to the recent level (a real spike was only 2.3
times its level), or 100 times the running mean (beta 0.99, MindSpore's shipped default), or not finite.
A suspicious value is not folded into the level.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from flightwatch.core.vocabulary import FindingKind, FindingScope, FindingState, Severity
from flightwatch.detectors.contract import Finding, Frames, Needs
from flightwatch.detectors.dense_steps import has_values
from flightwatch.detectors.grouped import FloatArray, sorted_median
from flightwatch.detectors.rank_matrix import RunSteps, runs_of


@dataclass(frozen=True)
class ScalarThresholds:
    """Defaults.

    Attributes
    ----------
    z, ratio: robust z of the log residual and smallest ratio to the recent level, both needed. far: this many times the
    running mean is suspicious at once. history, minimum: steps of the level, and fewest before speaking.
    floor: smallest believable scatter of the logarithm. back: steps in a row at the level until it is over.
    rank_z, rank_ratio: one rank's own gradient norm against all ranks, when ranks report different ones.
    """

    z: float = 6.0
    loss_ratio: float = 1.3
    grad_ratio: float = 2.5
    far: float = 100.0
    history: int = 100
    minimum: int = 20
    few: int = 2
    few_factor: float = 2.4
    few_loss_ratio: float = 1.6
    settled_step: int = 200
    loss_floor: float = 0.02
    grad_floor: float = 0.12
    back: int = 5
    rank_z: float = 10.0
    rank_ratio: float = 1.5


@dataclass(frozen=True)
class _Series:
    """One named scalar of one run: steps, values, times."""

    kind: FindingKind
    job: str | None
    run: str | None
    cluster: str | None
    steps: np.ndarray
    values: FloatArray
    times: FloatArray


class ScalarDetector:
    """Finds kinds `loss_spike` and `grad_norm` (scope job; scope rank for one rank's own gradient norm).

    Blind: a post-reduce norm is equal on all ranks and names nobody; pre-reduce norms differ by data, so only a large,
    lasting difference of one rank speaks; FSDP and ZeRO-3 have no per-rank norm of the whole gradient. Skipped
    iterations of a loss-scale search at the start are no alarm.
    """

    name = "scalars"
    version = "1"
    needs = Needs(
        {
            "training_scalars": ("ts", "job", "run", "step", "rank", "name", "value", "nonfinite_count"),
            "rank_steps": ("ts", "job", "run", "step", "rank", "loss", "grad_norm"),
        },
        steps=200,
    )

    def __init__(self, thresholds: ScalarThresholds | None = None) -> None:
        self.thresholds = thresholds or ScalarThresholds()

    def score(self, frames: Frames) -> list[Finding]:
        """See `contract.Detector`."""
        found: list[Finding] = []
        said: set[tuple[str | None, str | None, FindingKind]] = set()
        for series in _series_of(frames):
            found += self._of_series(series)
            said.add((series.job, series.run, series.kind))
        if not has_values(frames, ("loss", "grad_norm")):
            return found
        for run in runs_of(frames, minimum_steps=2):
            for column, kind in (("loss", FindingKind.LOSS_SPIKE), ("grad_norm", FindingKind.GRAD_NORM)):
                values = run.channel(column)
                if values is None:
                    continue
                if (run.job, run.run, kind) not in said:
                    middle = _worst(values.astype(float))
                    found += self._of_series(
                        _Series(kind, run.job, run.run, run.cluster, run.steps_S, middle, run.end_ms_S)
                    )
                if kind == FindingKind.GRAD_NORM:
                    found += self._ranks(run, values)
        return found

    def _of_series(self, series: _Series) -> Iterable[Finding]:
        limits = self.thresholds
        loss = series.kind == FindingKind.LOSS_SPIKE
        floor, ratio = (limits.loss_floor, limits.loss_ratio) if loss else (limits.grad_floor, limits.grad_ratio)
        level: list[float] = []
        mean = math.nan
        open_: Finding | None = None
        calm = 0
        for i, value in enumerate(series.values.tolist()):
            if math.isfinite(value) and value <= 0:
                continue
            enough = len(level) >= limits.minimum
            least, wanted = ratio, limits.z
            if not enough and series.steps[i] >= limits.settled_step and len(level) >= limits.few:
                enough, wanted = True, 0.0
                least = limits.few_loss_ratio if loss else limits.few_factor * ratio
            recent = np.array(level[-limits.history :])
            centre = float(np.median(recent[-20:])) if len(recent) else math.nan
            scatter = max(floor, 1.4826 * float(np.median(np.abs(np.diff(recent)))) / 1.2) if len(recent) > 2 else floor
            residual = math.log(value) - centre if math.isfinite(value) and len(recent) else math.inf
            z = residual / scatter
            bad = enough and (
                not math.isfinite(value) or (z > wanted and residual > math.log(least)) or value > limits.far * mean
            )
            if not bad and math.isfinite(value):
                level.append(math.log(value))
                mean = value if math.isnan(mean) else 0.99 * mean + 0.01 * value
            if bad and open_ is None:
                open_ = self._say(series, i, value, math.exp(centre), z)
                yield open_
            if bad and open_ is not None and not math.isfinite(value) and open_.severity != Severity.P2:
                open_ = self._say(series, i, value, math.exp(centre), z, open_)
                yield open_
            calm = 0 if bad else calm + 1
            if open_ is not None and calm >= limits.back:
                yield self._cleared(series, i, open_)
                open_ = None

    def _say(
        self, series: _Series, i: int, value: float, level: float, z: float, before: Finding | None = None
    ) -> Finding:
        what = "Loss" if series.kind == FindingKind.LOSS_SPIKE else "Gradient norm"
        finite = math.isfinite(value)
        text = f"{what} of {series.job or 'the job'} is {value:.4g} at step {int(series.steps[i])}"
        text += f", {value / level:.1f} times its recent level {level:.4g}." if finite else ", not finite."
        return Finding(
            detector=self.name,
            detector_version=self.version,
            kind=series.kind,
            scope=FindingScope.JOB,
            summary=text,
            score=round(min(z, 1e6), 2),
            threshold=self.thresholds.z,
            severity=Severity.P3 if finite else Severity.P2,
            detected_at=_ms(series.times[i]),
            first_seen_at=before.first_seen_at if before else _ms(series.times[i]),
            cluster=series.cluster,
            job=series.job,
            run=series.run,
            targets=(series.job or "job",),
            first_step=before.first_step if before else int(series.steps[i]),
            detected_step=int(series.steps[i]),
            state=FindingState.CHANGED if before else FindingState.RAISED,
            blames_hardware=False,
            confidence=0.9,
            evidence={"value": value, "level": round(level, 6), "ratio": round(value / level, 3) if finite else None},
            id=before.id if before else "",
        )

    def _cleared(self, series: _Series, i: int, finding: Finding) -> Finding:
        from dataclasses import replace

        return replace(
            finding,
            state=FindingState.CLEARED,
            detected_at=_ms(series.times[i]),
            detected_step=int(series.steps[i]),
            summary=finding.summary.split(" is ")[0] + " is back at its level: over.",
        )

    def _ranks(self, run: RunSteps, values: FloatArray) -> Iterable[Finding]:
        """One rank whose own gradient norm leaves the others': a silent error on one device looks so."""
        with np.errstate(divide="ignore", invalid="ignore"):
            log_norm = np.log(np.where(values > 0, values, np.nan).astype(float))
        role = run.layout.role_groups()
        centred = log_norm - role.to_ranks(role.medians(log_norm))
        if not np.nanmax(np.abs(centred), initial=0.0) > 1e-6 or run.shape[1] < 4:
            return
        limits = self.thresholds
        first = centred[: limits.minimum]
        usual = sorted_median(first.T)
        scatter = np.maximum(1.4826 * sorted_median(np.abs(first - usual).T), limits.grad_floor / 2)
        pooled = max(float(np.nanmedian(scatter)), 1e-3)
        z = (centred - usual) / np.maximum(scatter, pooled)
        with np.errstate(invalid="ignore"):
            high = (np.abs(z) > limits.rank_z) & (np.abs(centred - usual) > math.log(limits.rank_ratio))
        high[: limits.minimum] = False
        # Three of five steps: gradients of one batch can be odd, a broken device stays so.
        often = np.zeros(high.shape, dtype=int)
        for shift in range(5):
            often[shift:] += high[: len(high) - shift] if shift else high
        for rank in np.nonzero((often >= 3).any(axis=0))[0].tolist():
            at = int(np.argmax(often[:, rank] >= 3))
            node, device = run.layout.node_R[rank], int(run.layout.device_R[rank])
            yield Finding(
                detector=self.name, detector_version=self.version, kind=FindingKind.GRAD_NORM, scope=FindingScope.RANK,
                summary=f"Rank {int(run.layout.ranks_R[rank])} ({node}) has a gradient norm unlike its peers' since "
                f"step {int(run.steps_S[max(0, at - 2)])}: data, or a silent error of its device.",
                score=round(float(abs(z[at, rank])), 2), threshold=limits.rank_z, severity=Severity.P3,
                detected_at=_ms(run.end_ms_S[at]), cluster=run.cluster, node=node, job=run.job, run=run.run,
                device=device if device >= 0 else None, rank=int(run.layout.ranks_R[rank]),
                targets=(f"rank {int(run.layout.ranks_R[rank])}",), first_step=int(run.steps_S[max(0, at - 2)]),
                detected_step=int(run.steps_S[at]), blames_hardware=True, confidence=0.6,
                evidence={"log_ratio_to_peers": round(float(centred[at, rank]), 3)},
            )  # fmt: skip


def _worst(values_SR: FloatArray) -> FloatArray:
    """Median over ranks; not finite where most known ranks are not finite."""
    known = ~np.isnan(values_SR) | np.isnan(values_SR)
    finite = np.where(np.isfinite(values_SR), values_SR, np.nan)
    middle = sorted_median(finite)
    infinite = np.isinf(values_SR).sum(axis=1) > 0.5 * known.sum(axis=1)
    return np.where(infinite, np.inf, middle)


def kind_of_scalar(name: str) -> FindingKind | None:
    """Return which kind a scalar's name belongs to: "lm loss" is a loss, "loss scale" is not."""
    plain = name.lower().replace("_", " ").replace("-", " ").replace("/", " ").strip()
    if "scale" in plain or "valid" in plain or "eval" in plain:
        return None
    if "grad norm" in plain or plain in ("gradnorm", "grad norm"):
        return FindingKind.GRAD_NORM
    return FindingKind.LOSS_SPIKE if plain.split(" ")[-1] == "loss" else None


def _series_of(frames: Frames) -> Iterator[_Series]:
    rows = frames.get("training_scalars")
    if rows is None or rows.empty or not {"step", "name", "value"} <= set(rows.columns):
        return
    if "rank" in rows:
        whole = rows["rank"].isna() | (rows["rank"] < 0)
        rows = rows[whole] if whole.any() else rows
    keys = [name for name in ("job", "run") if name in rows]
    for key, group in rows.groupby([*keys, "name"], sort=True, dropna=False, observed=True):
        parts = key if isinstance(key, tuple) else (key,)
        kind = kind_of_scalar(str(parts[-1]))
        if kind is None:
            continue
        labels = dict(zip(keys, parts, strict=False))
        group = group.dropna(subset=["step"]).sort_values("step", kind="stable").drop_duplicates("step", keep="last")
        times = group["ts"].to_numpy(dtype=float) if "ts" in group else np.full(len(group), np.nan)
        values = group["value"].to_numpy(dtype=float)
        if "nonfinite_count" in group:
            values = np.where(np.isnan(values) & (group["nonfinite_count"].fillna(0) > 0), np.inf, values)
        yield _Series(
            kind, _text(labels.get("job")), _text(labels.get("run")), _cluster(group), group["step"].to_numpy(), values,
            times,
        )  # fmt: skip


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _cluster(rows: pd.DataFrame) -> str | None:
    return _text(rows["cluster"].iloc[0]) if "cluster" in rows and len(rows) else None


def _ms(value: float) -> int | None:
    return int(value) if np.isfinite(value) else None
