"""Any-metric anomaly: a target whose readings, taken together, leave what it and its peers usually do.

Each numeric column becomes a residual: the value less the median of peers that share its load (job-aware),
less the target's own level, in robust sigmas. An isolation forest over staggered training windows votes on
the joint residuals (all must agree, as netdata's consensus of k-means models does); the metrics that moved
most explain it. Opens P4 findings only, at most a few per cluster.

Without peers the residual is the value against its own past, on two scales.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.ndimage import median_filter
from sklearn import config_context
from sklearn.ensemble import IsolationForest

from flightwatch.core.catalogue import TABLES
from flightwatch.core.vocabulary import FindingKind, FindingScope, FindingState, Severity
from flightwatch.detectors.contract import Finding, Frames, Needs
from flightwatch.detectors.grouped import BoolArray, FloatArray, sorted_median, trailing_sum
from flightwatch.detectors.layout import domain_of_nodes
from flightwatch.detectors.series import A_MOMENT, Grid, Spell, first_median, grid_of, spells
from flightwatch.detectors.statement import About, place, state_findings
from flightwatch.detectors.thermal import DOMAINS

#: Columns that say who or what, not how; and readings other detectors own alone (flags).
NOT_READINGS = ("device", "parent_device", "mig_id", "rank", "port", "src_partition", "src_offset", "throttle_reasons",
                "pcie_gen", "pcie_width", "mem_total_bytes", "clock_offset_us")  # fmt: skip


#: Above this utilisation a device works.
BUSY_PCT = 30.0


@dataclass(frozen=True)
class AnomalyThresholds:
    """Defaults.

    Attributes
    ----------
    train: samples of the first training window; nothing is said before. models: staggered windows that must agree.
    z: joint deviation (root mean square of the three largest residuals, in sigmas) that is needed besides the vote.
    alone_z: the same where there are no peers. hold, clear: samples. floor: smallest scatter, share of the level.
    most_open: findings per cluster at most. trees: trees of one isolation forest.
    settle: samples after a change of load in which nothing is judged.
    crowd, domain_crowd: share of all targets, or of those of a rack or cooling zone, that leave their ways at the same
    time: then it is not one target that does. asked: targets of a table that are looked at closely, the first ones.
    """

    train: int = 90
    models: int = 3
    z: float = 10.0
    alone_z: float = 5.0
    hold: int = 6
    clear: int = 30
    floor: float = 0.01
    most_open: int = 5
    trees: int = 50
    settle: int = 30
    crowd: float = 0.2
    domain_crowd: float = 0.5
    asked: int = 20


class AnomalyDetector:
    """Finds kind `anomaly` (scope device or node, P4, never blames hardware).

    Does not see: what moves on most targets of the cluster, a rack or a cooling zone at once; slow drifts longer than
    its window; what was odd from the start.
    """

    name = "anomaly"
    version = "1"
    needs = Needs(
        {
            "device_samples": ("ts", "node", "device", "*"),
            "node_samples": ("ts", "node", "*"),
            "sensor_samples": ("ts", "node", "chip", "label", "value"),
            "inventory": ("node", "rack", "cooling_zone"),
        },
        seconds=7200,
    )

    def __init__(self, thresholds: AnomalyThresholds | None = None) -> None:
        self.thresholds = thresholds or AnomalyThresholds()

    def score(self, frames: Frames) -> list[Finding]:
        """See `contract.Detector`."""
        found: list[Finding] = []
        for table, keys in (
            ("device_samples", ("node", "device")),
            ("node_samples", ("node",)),
            ("sensor_samples", ("node", "chip", "label")),
        ):
            grid = grid_of(frames, table, keys)
            if grid is not None and grid.shape[0] > self.thresholds.train + self.thresholds.hold:
                found += self._of_grid(grid, table, frames)
        return self._limited(sorted(found, key=lambda one: one.detected_at or 0))

    def _limited(self, found: list[Finding]) -> list[Finding]:
        """Keep at most `most_open` open at once; more at once is a change of the cluster, told elsewhere."""
        kept: list[Finding] = []
        open_: dict[str, str | None] = {}
        for finding in found:
            if finding.state == FindingState.CLEARED:
                if finding.id in open_:
                    del open_[finding.id]
                    kept.append(finding)
            elif len(open_) < self.thresholds.most_open and finding.node not in open_.values():
                # One per node: what moves one of its devices often moves the next.
                open_[finding.id] = finding.node
                kept.append(finding)
        return kept

    def _of_grid(self, grid: Grid, table: str, frames: Frames) -> Iterable[Finding]:
        residual_of = self._residuals(grid, table, busy_cells(grid, frames))
        if not residual_of:
            return
        alone = grid.shape[1] < 4
        size = _joint(list(residual_of.values()))
        limit = self.thresholds.alone_z if alone else self.thresholds.z
        with np.errstate(invalid="ignore"):
            odd = np.nan_to_num(size) > limit
        odd[: self.thresholds.train] = False
        if not alone:
            odd[odd.mean(axis=1) > self.thresholds.crowd] = False
            self._leave_crowds_out(odd, grid, frames)
        lasting = sorted(spells(odd, self.thresholds.hold, self.thresholds.clear), key=lambda spell: spell.said)
        # At most a few are told, and each look costs several forests.
        for target in [*dict.fromkeys(spell.target for spell in lasting)][: self.thresholds.asked]:
            residual_CT = np.stack([residual[:, target] for residual in residual_of.values()])
            agreed = odd[:, target] & self._vote(residual_CT, odd[:, target])
            for spell in spells(agreed[:, None], self.thresholds.hold, self.thresholds.clear):
                moved = dict(zip(residual_of, residual_CT[:, spell.said].tolist(), strict=True))
                yield from self._say(grid, table, moved, size, Spell(target, spell.begin, spell.said, spell.over))

    def _leave_crowds_out(self, odd_TD: BoolArray, grid: Grid, frames: Frames) -> None:
        """Forget what moves on most targets of a rack or cooling zone at once: the domain moves, others tell it."""
        for kind in DOMAINS:
            of_node = domain_of_nodes(frames, kind)
            members: dict[str, list[int]] = {}
            for target, key in enumerate(grid.keys_D):
                if str(key[0]) in of_node:
                    members.setdefault(of_node[str(key[0])], []).append(target)
            for inside in members.values():
                if len({grid.keys_D[target][0] for target in inside}) < 2 or not odd_TD[:, inside].any():
                    continue
                crowded = odd_TD[:, inside].mean(axis=1) > self.thresholds.domain_crowd
                odd_TD[np.ix_(crowded, inside)] = False

    def _residuals(self, grid: Grid, table: str, busy_TD: BoolArray) -> dict[str, FloatArray]:
        """Return the residual of each reading that is known, in sigmas, [T, D]."""
        found: dict[str, FloatArray] = {}
        settled = _settled(busy_TD, self.thresholds.settle)
        for column in TABLES[table].columns:
            if column.name in NOT_READINGS or column.type not in ("f32", "f64", "u32", "u64"):
                continue
            values = grid.deltas(column.name) if column.counter else grid.column(column.name, forward_cells=A_MOMENT)
            if values is None or not np.isfinite(values).any():
                continue
            values = np.log1p(np.maximum(values, 0)) if column.counter else values
            found[column.name] = self._residual(values, busy_TD, settled)
        return found

    def _residual(self, values: FloatArray, busy_TD: BoolArray, settled: BoolArray) -> FloatArray:
        """Residual in sigmas; idle and busy times of a target are two lives with a level and scatter each."""
        limits = self.thresholds
        result = np.full(values.shape, np.nan)
        for side in (busy_TD, ~busy_TD):
            # Most targets have one life: the other is not worked out for them.
            living = np.flatnonzero(side.any(axis=0))
            here = slice(None) if len(living) == side.shape[1] else living
            own_values = values[:, here]
            part = np.where(side[:, here] & settled[:, here], own_values, np.nan)
            if not np.isfinite(part).any():
                continue
            if len(living) >= 4:
                part = part - sorted_median(part)[:, None]
            centred = part - first_median(part, limits.train)
            known = np.isfinite(centred)
            seen = np.cumsum(known, axis=0, dtype=np.int32)
            training = known & (seen <= limits.train)
            rows = slice(0, int(np.flatnonzero(training.any(axis=1)).max(initial=-1)) + 1)
            own = 1.4826 * sorted_median(np.where(training[rows], np.abs(centred[rows]), np.nan).T)
            pooled = float(np.nanmedian(own)) if np.isfinite(own).any() else 0.0
            size = np.abs(own_values[rows][training[rows]])
            level = float(np.median(size)) if len(size) else 0.0
            floor = max(limits.floor * level, 1e-9, pooled)
            judged = known & (seen > limits.train // 2)
            result[:, here] = np.where(judged, centred / np.fmax(own, floor), result[:, here])
        return result

    def _vote(self, residual_CT: FloatArray, odd_T: np.ndarray) -> np.ndarray:
        """Ask isolation forests trained on staggered earlier windows of the same target; all must call it unusual."""
        limits = self.thresholds
        known = np.flatnonzero(np.isfinite(residual_CT).any(axis=1))
        moving = known[np.nanstd(residual_CT[known], axis=1) > 0]
        points = np.nan_to_num(residual_CT[moving].T)
        votes = np.ones(len(points), dtype=bool)
        first = int(np.argmax(odd_T))
        width = max(30, limits.train // 2)
        for model in range(limits.models):
            end = max(limits.train, first - limits.hold) - model * (width // 2)
            window = points[max(0, end - width) : end]
            if len(window) < 20:
                continue
            asked = np.flatnonzero(odd_T)
            forest = IsolationForest(n_estimators=limits.trees, random_state=model, contamination="auto")
            # The points are finite; checking them costs more than the small trees.
            with config_context(assume_finite=True, skip_parameter_validation=True):
                forest.fit(window)
                usual = np.quantile(forest.score_samples(window), 0.1)
                # A forest's score of a point outside its training range is that of the nearest edge and rough:
                # five in a row are asked together.
                scores = median_filter(forest.score_samples(points[asked]), size=5, mode="nearest")
            votes[asked] &= scores <= usual
            if not votes[asked].any():
                break
        return votes

    def _say(
        self, grid: Grid, table: str, residual_of: dict[str, float], size: FloatArray, spell: Spell
    ) -> list[Finding]:
        key = grid.keys_D[spell.target]
        device = key[1] if table == "device_samples" else None
        names, at = list(residual_of), np.nan_to_num(list(residual_of.values()))
        moved = [(names[i], round(float(at[i]), 1)) for i in np.argsort(-np.abs(at))[:3] if abs(at[i]) > 3]
        where = place(key[0], device)
        listed = ", ".join(f"{name} {value:+.0f} sigma" for name, value in moved)
        about = About(
            kind=FindingKind.ANOMALY,
            scope=FindingScope.NODE if device is None else FindingScope.DEVICE,
            node=None if key[0] is None else str(key[0]),
            device=device,
            targets=(" ".join(str(part) for part in key if part is not None),),
            summary=f"{where} behaves unlike before and unlike its peers: {listed}.",
            score=float(size[spell.said, spell.target]),
            threshold=self.thresholds.z,
            severity=Severity.P4,
            blames_hardware=False,
            confidence=0.5,
            evidence={"moved": dict(moved), "table": table},
        )
        return state_findings(self.name, self.version, grid, spell, about)


def busy_cells(grid: Grid, frames: Frames) -> BoolArray:
    """Say when a target works: its own utilisation, or the highest of its node's devices; else always."""
    util = grid.column("util_pct", forward_cells=A_MOMENT)
    if util is not None:
        return np.asarray(np.nan_to_num(util) > BUSY_PCT)
    busy = np.ones(grid.shape, dtype=bool)
    devices = grid_of(frames, "device_samples", ("node", "device"))
    load = devices.column("util_pct", forward_cells=A_MOMENT) if devices is not None else None
    if devices is None or load is None:
        return busy
    at = np.clip(np.searchsorted(devices.times_T, grid.times_T), 0, len(load) - 1)
    of_node: dict[object, list[int]] = {}
    for device, other in enumerate(devices.keys_D):
        of_node.setdefault(other[0], []).append(device)
    for target, key in enumerate(grid.keys_D):
        mine = of_node.get(key[0])
        if mine:
            busy[:, target] = np.nan_to_num(load[:, mine]).max(axis=1)[at] > BUSY_PCT
    return busy


def _settled(busy_TD: BoolArray, cells: int) -> BoolArray:
    """Say where the load has not changed for a while: heat and fans follow it slowly."""
    changed = np.zeros(busy_TD.shape, dtype=np.int32)
    changed[1:] = busy_TD[1:] != busy_TD[:-1]
    return np.asarray(trailing_sum(changed, cells) == 0)


def _joint(residuals: Sequence[FloatArray]) -> FloatArray:
    """Root mean square of the three largest residuals, or the largest alone; the smallest of 3 samples in a row."""
    count = min(3, len(residuals))
    largest = np.zeros((count, *residuals[0].shape))
    for residual in residuals:
        # Kept in order, the smallest first; a cube of all readings is not sorted for three of them.
        rest = np.nan_to_num(np.abs(residual))
        for rank in range(count - 1, -1, -1):
            larger = np.maximum(largest[rank], rest)
            rest = np.minimum(largest[rank], rest)
            largest[rank] = larger
    # One reading far out counts as three that are moderately out.
    joint = np.maximum(np.sqrt((largest**2).mean(axis=0)), largest[-1] / 1.25 if count == 3 else 0.0)
    smooth = joint.copy()
    for shift in (1, 2):
        smooth[shift:] = np.minimum(smooth[shift:], joint[:-shift])
    return np.asarray(smooth)
