"""ECC errors, row remapping and retired pages of devices, corrected errors of host memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from flightwatch.core.vocabulary import FindingKind, FindingScope, Severity
from flightwatch.detectors.contract import Finding, Frames, Needs
from flightwatch.detectors.grouped import FloatArray
from flightwatch.detectors.series import ALWAYS, Grid, Spell, cells, grid_of, spells
from flightwatch.detectors.statement import About, place, state_findings


@dataclass(frozen=True)
class MemoryErrorThresholds:
    """Defaults: a ramp is at least so many corrected errors in so many different samples inside the window, and so many
    times the usual of its peers; a statement is over after so long without new errors."""

    ramp_errors: float = 10.0
    ramp_samples: int = 4
    ramp_window_s: float = 1800.0
    times_peers: float = 10.0
    quiet_s: float = 3600.0


class MemoryErrorDetector:
    """Finds kind `ecc`. ECC switched off is "not available", never "clean": then nothing is said here.

    Does not see: errors the driver does not count, and corrected errors too rare to be a ramp.
    """

    name = "memory_errors"
    version = "1"
    needs = Needs(
        {
            "device_samples": ("ts", "node", "device", "ecc_corrected_total", "ecc_uncorrected_total", "remap_pending",
                               "remap_failure", "retired_pages_total", "remapped_rows_total"),
            "node_samples": ("ts", "node", "edac_corrected_total", "edac_uncorrected_total"),
        },
        seconds=7200,
    )  # fmt: skip

    def __init__(self, thresholds: MemoryErrorThresholds | None = None) -> None:
        self.thresholds = thresholds or MemoryErrorThresholds()

    def score(self, frames: Frames) -> list[Finding]:
        """See `contract.Detector`."""
        found: list[Finding] = []
        devices = grid_of(frames, "device_samples", ("node", "device"))
        if devices is not None:
            found += self._flags(devices)
            found += self._uncorrected(devices, "ecc_uncorrected_total")
            found += self._ramps(devices, "ecc_corrected_total")
        nodes = grid_of(frames, "node_samples", ("node",))
        if nodes is not None:
            found += self._uncorrected(nodes, "edac_uncorrected_total")
            found += self._ramps(nodes, "edac_corrected_total")
        return found

    def _flags(self, grid: Grid) -> Iterable[Finding]:
        for column, text, severity in (
            ("remap_failure", "could not remap a broken memory row: replace it", Severity.P2),
            (
                "remap_pending",
                "waits for a reset to remap a memory row: drain the node and reset the device",
                Severity.P3,
            ),
        ):
            values = grid.column(column, forward_cells=ALWAYS)
            if values is None:
                continue
            for spell in spells(np.nan_to_num(values) > 0, 1, 3):
                yield from self._say(grid, spell, text, severity, 1.0, {column: True})

    def _uncorrected(self, grid: Grid, column: str) -> Iterable[Finding]:
        grown = grid.deltas(column)
        if grown is None:
            return
        on = np.nan_to_num(grown) > 0
        for spell in spells(on, 1, cells(self.thresholds.quiet_s, grid.interval_s)):
            count = float(grown[spell.said, spell.target])
            text = f"had {count:.0f} uncorrectable memory error{'s' if count != 1 else ''}"
            yield from self._say(grid, spell, text, Severity.P2, count, {column: count})

    def _ramps(self, grid: Grid, column: str) -> Iterable[Finding]:
        grown = grid.deltas(column)
        if grown is None:
            return
        grown = np.nan_to_num(grown)
        width = cells(self.thresholds.ramp_window_s, grid.interval_s)
        total, samples = _window(grown, width), _window((grown > 0).astype(float), width)
        usual = np.median(total, axis=1, keepdims=True) if total.shape[1] > 1 else np.zeros((len(total), 1))
        limits = self.thresholds
        on = (total >= limits.ramp_errors) & (samples >= limits.ramp_samples)
        on &= total > limits.times_peers * usual + 2 * np.sqrt(usual)
        for spell in spells(on, 1, cells(limits.quiet_s, grid.interval_s)):
            count = float(total[spell.said, spell.target])
            text = f"corrected {count:.0f} memory errors in {limits.ramp_window_s / 60:.0f} min, its peers "
            text += f"{float(usual[spell.said, 0]):.0f}: a ramp that often precedes an uncorrectable error"
            yield from self._say(grid, spell, text, Severity.P3, count, {column: count})

    def _say(
        self, grid: Grid, spell: Spell, text: str, severity: Severity, score: float, seen: dict[str, object]
    ) -> list[Finding]:
        key = grid.keys_D[spell.target]
        node, device = key[0], key[1] if len(key) > 1 else None
        about = About(
            kind=FindingKind.ECC,
            scope=FindingScope.NODE if device is None else FindingScope.DEVICE,
            node=str(node),
            device=device,
            targets=(place(node, device),),
            summary=f"{place(node, device)} {text}.",
            score=score,
            severity=severity,
            evidence=seen,
            aspect=next(iter(seen)),
        )
        return state_findings(self.name, self.version, grid, spell, about)


def _window(values_TD: FloatArray, width: int) -> FloatArray:
    total = np.cumsum(values_TD, axis=0)
    if width < len(total):
        total[width:] = total[width:] - total[:-width]
    return np.asarray(total)
