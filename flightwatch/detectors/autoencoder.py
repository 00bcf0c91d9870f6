"""Joint patterns of a device's readings that healthy devices do not show, by a small autoencoder.

Off unless a model file is configured. The input is a window of residuals: what a device reads, less the median of the
devices that are as busy, less its own level at the start; so a load change or a healthy spread is none. What the
bottleneck cannot give back is the error; above a multiple of what healthy windows show, for some time, is a finding of
P4 that names the readings with the largest share of the error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from flightwatch.core.vocabulary import FindingKind, FindingScope, FindingState, Severity
from flightwatch.detectors.anomaly import busy_cells
from flightwatch.detectors.autoencoder_model import FloatArray, Model
from flightwatch.detectors.contract import Finding, Frames, Needs
from flightwatch.detectors.grouped import sorted_median
from flightwatch.detectors.series import A_MOMENT, Grid, Spell, cells, first_median, grid_of, spells
from flightwatch.detectors.statement import About, place, state_findings

#: Readings that are learned where most devices have them.
COLUMNS = ("temp_c", "mem_temp_c", "hotspot_c", "power_w", "voltage_mv", "sm_clock_mhz", "mem_clock_mhz", "util_pct",
           "fan_pct")  # fmt: skip
WINDOW = 6
#: Samples that make a device's own level.
LEVEL_SAMPLES = 30


@dataclass(frozen=True)
class AutoencoderThresholds:
    """Defaults.

    Attributes
    ----------
    factor: error over the model's limit. hold_s, clear_s: for how long, and how long below until it is over.
    most_open: findings open at once. most_windows: windows scored in one look (CPU budget); the newest count.
    """

    factor: float = 3.0
    hold_s: float = 120.0
    clear_s: float = 300.0
    most_open: int = 5
    most_windows: int = 500_000


class AutoencoderDetector:
    """Finds kind `anomaly` (scope device, P4, never blames hardware).

    Parameters
    ----------
    model: trained on stored healthy windows by `flightwatch detect train`.

    Does not see: readings the model was not trained with, what was odd from the start, what moves on all devices.
    """

    name = "autoencoder"
    needs = Needs({"device_samples": ("ts", "cluster", "node", "device", "job", *COLUMNS)}, seconds=3600)

    def __init__(self, model: Model, thresholds: AutoencoderThresholds | None = None) -> None:
        self.model = model
        self.version = f"1-{model.version}"
        self.thresholds = thresholds or AutoencoderThresholds()

    def score(self, frames: Frames) -> list[Finding]:
        """See `contract.Detector`."""
        grid = grid_of(frames, "device_samples", ("node", "device"))
        residual = None if grid is None else residuals(grid, frames, self.model.columns)
        if grid is None or residual is None or grid.shape[0] < self.model.window:
            return []
        share_TDC = self._errors(residual)
        size_TD = share_TDC.mean(axis=2) / self.model.limit
        odd = np.nan_to_num(size_TD) > self.thresholds.factor
        # What moves on a fifth of all devices at once is a change of the cluster.
        odd[odd.mean(axis=1) > 0.2] = False
        hold, clear = (cells(one, grid.interval_s, 3) for one in (self.thresholds.hold_s, self.thresholds.clear_s))
        found: list[Finding] = []
        for spell in spells(odd, hold, clear):
            found += self._say(grid, spell, size_TD, share_TDC)
        return self._limited(sorted(found, key=lambda one: one.detected_at or 0))

    def _errors(self, residual_TDC: FloatArray) -> FloatArray:
        """Return the error of each reading in the window that ends at each time, [T, D, C]; NaN where not scored."""
        times, devices, count = residual_TDC.shape
        window = self.model.window
        first = max(window - 1, times - max(1, self.thresholds.most_windows // max(1, devices)))
        errors = np.full((times, devices, count), np.nan)
        for end in range(first, times):
            part = residual_TDC[end - window + 1 : end + 1].transpose(1, 0, 2)
            known = np.isfinite(part).all(axis=(1, 2))
            if known.any():
                errors[end, known] = self.model.errors(part[known]).mean(axis=1)
        return errors

    def _say(self, grid: Grid, spell: Spell, size_TD: FloatArray, share_TDC: FloatArray) -> Iterable[Finding]:
        node, device = grid.keys_D[spell.target]
        share = share_TDC[spell.said, spell.target]
        order = np.argsort(-np.nan_to_num(share))[:3]
        names = [self.model.columns[at] for at in order.tolist()]
        size, listed = float(size_TD[spell.said, spell.target]), ", ".join(names)
        about = About(
            kind=FindingKind.ANOMALY,
            scope=FindingScope.DEVICE,
            node=str(node),
            device=int(device),
            score=size,
            threshold=self.thresholds.factor,
            severity=Severity.P4,
            blames_hardware=False,
            confidence=0.5,
            targets=(f"{node}/{int(device)}",),
            summary=f"{place(node, int(device))} shows readings that healthy devices do not have together: {listed}.",
            evidence={"model": self.model.version, "readings": names, "error_over_limit": round(size, 2)},
        )
        return state_findings(self.name, self.version, grid, spell, about)

    def _limited(self, found: list[Finding]) -> list[Finding]:
        """Keep at most `most_open` open at once."""
        kept: list[Finding] = []
        open_: set[str] = set()
        for finding in found:
            if finding.state == FindingState.CLEARED:
                if finding.id in open_:
                    open_.remove(finding.id)
                    kept.append(finding)
            elif len(open_) < self.thresholds.most_open:
                open_.add(finding.id)
                kept.append(finding)
        return kept


def residuals(grid: Grid, frames: Frames, columns: Sequence[str]) -> FloatArray | None:
    """Return what devices read less what devices as busy read, less their own first level, [T, D, C].

    None when a column is not there.
    """
    busy = busy_cells(grid, frames)
    parts = []
    for name in columns:
        values = grid.column(name, forward_cells=A_MOMENT)
        if values is None:
            return None
        result = np.full(values.shape, np.nan)
        for side in (busy, ~busy):
            part = np.where(side, values, np.nan)
            if np.isfinite(part).any():
                result = np.where(np.isfinite(part), part - sorted_median(part)[:, None], result)
        parts.append(result - first_median(result, LEVEL_SAMPLES))
    return np.stack(parts, axis=2)


def training_windows(frames: Frames) -> tuple[FloatArray, tuple[str, ...]]:
    """Return windows to train with, [N, W, C], and their columns: those that nine of ten samples have.

    Windows do not overlap; the first `LEVEL_SAMPLES` samples of a device, in which its level is learned, are left out.
    """
    grid = grid_of(frames, "device_samples", ("node", "device"))
    if grid is None:
        return np.empty((0, WINDOW, 0)), ()
    known = {name: grid.column(name, forward_cells=A_MOMENT) for name in COLUMNS}
    columns = tuple(name for name, one in known.items() if one is not None and np.isfinite(one).mean() > 0.9)
    residual = residuals(grid, frames, columns) if columns else None
    if residual is None:
        return np.empty((0, WINDOW, 0)), ()
    ends = range(LEVEL_SAMPLES + WINDOW, grid.shape[0] + 1, WINDOW)
    windows = [residual[end - WINDOW : end].transpose(1, 0, 2) for end in ends]
    joined = np.concatenate(windows) if windows else np.empty((0, WINDOW, len(columns)))
    return joined[np.isfinite(joined).all(axis=(1, 2))], columns
