"""Signs that come before silent data corruption: an index per device, and replicas that must be equal.

The index adds up weak signs as log odds: days with corrected errors, remapped rows, link and PCIe replays,
heat and throttling beyond the peers', earlier non-finite origins. It ranks devices and never acts alone.
No labelled public series of such precursors exists: its quality is shown on injected data only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from flightwatch.core.vocabulary import FindingKind, FindingScope, Severity
from flightwatch.detectors.contract import Finding, Frames, Needs
from flightwatch.detectors.series import Grid, grid_of
from flightwatch.detectors.thermal import ThermalThresholds, thermal_of

#: Counter to the weight of "grew more than at its peers" in log odds.
SIGNS = {
    "ecc_corrected_total": 1.6,
    "remapped_rows_total": 2.2,
    "retired_pages_total": 2.0,
    "pcie_replay_total": 1.0,
    "link_errors_total": 1.2,
    "throttle_thermal_us_total": 0.8,
}


@dataclass(frozen=True)
class PrecursorThresholds:
    """Defaults: log odds without any sign; index from which it speaks; what makes a sign: growth (events) and distance
    to peers in standard deviations of a Poisson count with doubled variance, or kelvin above expectation."""

    base: float = -3.5
    index: float = 0.5
    events: float = 3.0
    sigmas: float = 4.0
    hot_k: float = 3.0


class PrecursorDetector:
    """Finds kind `sdc_precursor` (scope device, P4): at least two independent signs on one device.

    ECC switched off is "not available" and adds nothing; it never reads as clean. Says nothing about devices with one
    sign: the detector of that sign does.
    """

    name = "sdc_precursor"
    version = "1"
    needs = Needs(
        {
            "device_samples": ("ts", "node", "device", "model", "temp_c", "power_w", *SIGNS),
            "events": ("ts", "node", "device", "code"),
        },
        seconds=7200,
    )

    def __init__(self, thresholds: PrecursorThresholds | None = None) -> None:
        self.thresholds = thresholds or PrecursorThresholds()

    def score(self, frames: Frames) -> list[Finding]:
        """See `contract.Detector`."""
        grid = grid_of(frames, "device_samples", ("node", "device"))
        if grid is None or grid.shape[0] < 3:
            return []
        signs = self._signs(grid, frames)
        found: list[Finding] = []
        for target, key in enumerate(grid.keys_D):
            mine = {name: float(weight[target]) for name, weight in signs.items() if weight[target] > 0}
            odds = self.thresholds.base + sum(mine.values())
            index = 1 / (1 + math.exp(-odds))
            if len(mine) >= 2 and index >= self.thresholds.index:
                found.append(self._say(grid, key, index, mine))
        return found

    def _signs(self, grid: Grid, frames: Frames) -> dict[str, np.ndarray]:
        limits, signs = self.thresholds, dict[str, np.ndarray]()
        for name, weight in SIGNS.items():
            grown = grid.deltas(name)
            if grown is None:
                continue
            total = np.nansum(grown, axis=0)
            if name.endswith("us_total"):
                total = total / (grid.interval_s * 1e6)
            usual = float(np.median(total)) if len(total) > 2 else 0.0
            high = (total >= limits.events) & (total > usual + limits.sigmas * math.sqrt(2 * usual + 1))
            signs[name] = weight * high
        thermal = thermal_of(frames, ThermalThresholds())
        if thermal is not None and len(thermal.grid.keys_D) == grid.shape[1]:
            late = thermal.residual_TD[len(thermal.residual_TD) // 2 :]
            with np.errstate(invalid="ignore"):
                warm = np.nan_to_num(np.nanmean(np.where(np.isfinite(late), late, 0.0), axis=0))
            signs["temperature"] = 0.8 * (warm > limits.hot_k)
        events = frames.get("events")
        if events is not None and not events.empty and {"code", "node", "device"} <= set(events.columns):
            rows = events[events["code"].astype(object).astype(str).str.startswith(("nonfinite", "xid:63", "xid:64"))]
            named = set(zip(rows["node"].astype(object), rows["device"].astype(float), strict=True))
            signs["earlier strikes"] = np.array(
                [2.0 * ((key[0], float(key[1]) if key[1] is not None else math.nan) in named) for key in grid.keys_D]
            )
        return signs

    def _say(self, grid: Grid, key: tuple[object, ...], index: float, signs: dict[str, float]) -> Finding:
        node, device = str(key[0]), key[1]
        names = ", ".join(sorted(signs))
        return Finding(
            detector=self.name, detector_version=self.version, kind=FindingKind.SDC_PRECURSOR,
            scope=FindingScope.DEVICE, severity=Severity.P4, score=round(index, 3), threshold=self.thresholds.index,
            summary=f"{node} device {device} shows several weak signs that precede silent data corruption: {names}.",
            detected_at=int(grid.times_T[-1]), cluster=grid.cluster, node=node,
            device=device if isinstance(device, int) else None, targets=(f"{node} device {device}",),
            blames_hardware=False, confidence=round(index, 2), evidence={"signs": signs},
        )  # fmt: skip


class ReplicaDigestDetector:
    """Finds kind `replica_digest`: replicas that are bitwise equal by construction are not.

    Reads `training_scalars` named `replica_digest.<group>` with one value per rank; the minority value is the suspect.
    Blind: ZeRO-3 and FSDP shards have no replica; two replicas that differ name nobody.
    """

    name = "replica_digest"
    version = "1"
    needs = Needs({"training_scalars": ("ts", "job", "run", "step", "rank", "name", "value")}, steps=50)

    def score(self, frames: Frames) -> list[Finding]:
        """See `contract.Detector`."""
        rows = frames.get("training_scalars")
        if rows is None or rows.empty or not {"step", "rank", "name", "value"} <= set(rows.columns):
            return []
        rows = rows[rows["name"].astype(object).astype(str).str.startswith("replica_digest") & rows["value"].notna()]
        keys = [name for name in ("job", "run") if name in rows]
        found: dict[tuple[object, ...], Finding] = {}
        for key, group in rows.groupby([*keys, "name", "step"], sort=True, observed=True, dropna=False):
            labels = dict(zip([*keys, "name", "step"], key, strict=True))
            for finding in self._of_group(labels, group):
                found.setdefault((finding.job, finding.run, finding.rank), finding)
        return list(found.values())

    def _of_group(self, labels: dict[str, object], group: pd.DataFrame) -> Iterable[Finding]:
        counts = group["value"].value_counts()
        if len(counts) < 2:
            return
        clear = len(group) >= 3 and counts.iloc[0] > len(group) / 2
        odd = group[group["value"] != counts.index[0]] if clear else group
        ts = float(group["ts"].max()) if "ts" in group else math.nan
        step = int(float(str(labels["step"])))
        for _, row in odd.iterrows() if clear else [(0, odd.iloc[0])]:
            rank = int(row["rank"]) if clear else None
            node = row.get("node") if clear else None
            yield Finding(
                detector=self.name, detector_version=self.version, kind=FindingKind.REPLICA_DIGEST,
                scope=FindingScope.RANK if clear else FindingScope.JOB, severity=Severity.P2, score=float(len(counts)),
                summary=f"{'Rank ' + str(rank) + ' holds' if clear else 'Replicas hold'} other bits than "
                f"{'its replicas' if clear else 'each other'} at step {step}: silent data corruption.",
                detected_at=int(ts) if math.isfinite(ts) else None, node=node if isinstance(node, str) else None,
                job=_word(labels.get("job")), run=_word(labels.get("run")), rank=rank,
                targets=(f"rank {rank}",) if clear else tuple(f"rank {int(r)}" for r in group["rank"].head(16)),
                first_step=step, detected_step=step, blames_hardware=clear, confidence=0.95 if clear else 0.5,
                evidence={"group": str(labels["name"]), "replicas": len(group), "values": len(counts)},
            )  # fmt: skip


def _word(value: object) -> str | None:
    return value if isinstance(value, str) else None
