"""Storage: latency beyond what load explains, on one node's path or at a target all nodes share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from flightwatch.core.vocabulary import FindingKind, FindingScope
from flightwatch.detectors.contract import Finding, Frames, Needs
from flightwatch.detectors.grouped import FloatArray, sorted_median, trailing_mean
from flightwatch.detectors.series import A_MOMENT, Grid, Spell, cells, first_median, grid_of, robust_sigma, spells
from flightwatch.detectors.statement import About, state_findings

#: Answers that a mean is made of at least.
MEAN_CELLS = 6


@dataclass(frozen=True)
class StorageThresholds:
    """Defaults: latency against own past and peers (times), in robust sigmas of its logarithm, at least so many
    milliseconds; load that excuses it (times own past); share of clients that makes it the target's problem."""

    times: float = 3.0
    z: float = 5.0
    minimum_ms: float = 5.0
    load_times: float = 3.0
    shared: float = 0.6
    hold_s: float = 120.0
    clear_s: float = 300.0
    baseline_samples: int = 30
    minimum_samples: int = 10


class StorageDetector:
    """Finds kind `storage` (scope storage_target when most clients see it, else node).

    A target that is slow because it takes more load than before is busy, not broken, and is not named. Does not see:
    latency that was high from the start; recorded lifetime averages (they hardly move).
    """

    name = "storage"
    version = "1"
    needs = Needs(
        {
            "storage_samples": (
                "ts",
                "node",
                "target",
                "kind",
                "read_ms",
                "write_ms",
                "read_ops_total",
                "write_ops_total",
            ),
            "node_samples": ("ts", "node", "io_read_ms", "io_write_ms", "fs_read_ms", "fs_write_ms", "io_queue_depth"),
        },
        seconds=3600,
    )

    def __init__(self, thresholds: StorageThresholds | None = None) -> None:
        self.thresholds = thresholds or StorageThresholds()

    def score(self, frames: Frames) -> list[Finding]:
        """See `contract.Detector`."""
        found: list[Finding] = []
        targets = grid_of(frames, "storage_samples", ("node", "target"))
        if targets is not None:
            for column in ("read_ms", "write_ms"):
                found += self._of_column(targets, column)
        nodes = grid_of(frames, "node_samples", ("node",)) if targets is None else None
        if nodes is not None:
            for column in ("fs_read_ms", "fs_write_ms", "io_read_ms", "io_write_ms"):
                found += self._of_column(nodes, column)
        return found

    def _of_column(self, grid: Grid, column: str) -> Iterable[Finding]:
        latency = grid.column(column, forward_cells=A_MOMENT)
        limits = self.thresholds
        if latency is None or len(latency) < limits.minimum_samples:
            return
        with np.errstate(divide="ignore", invalid="ignore"):
            log_ms = np.log(np.where(latency > 0, latency, np.nan))
        change = log_ms - first_median(log_ms, limits.baseline_samples)
        change[: limits.minimum_samples] = np.nan
        hold, clear = cells(limits.hold_s, grid.interval_s, MEAN_CELLS), cells(limits.clear_s, grid.interval_s, 3)
        # Single answers scatter by their nature: what is judged is the mean of the hold time.
        change = trailing_mean(change, hold)
        sigma = robust_sigma(change, 0.15)
        with np.errstate(invalid="ignore"):
            slow = (change > np.log(limits.times)) & (change > limits.z * sigma)
            slow &= trailing_mean(latency, hold) > limits.minimum_ms
        hold = 2
        by_target: dict[object, list[int]] = {}
        for d, key in enumerate(grid.keys_D):
            by_target.setdefault(key[1] if len(key) > 1 else column, []).append(d)
        excused = np.log(self._load(grid, by_target))
        with np.errstate(invalid="ignore"):
            # A target that takes ten times the load may take ten times as long; a node's own path may not.
            shared_slow = slow & (change - excused > np.log(limits.times))
        for name, members in by_target.items():
            clients = len({grid.keys_D[d][0] for d in members})
            crowd = shared_slow[:, members].mean(axis=1) >= limits.shared
            taken = slow[:, members].mean(axis=1) >= limits.shared
            if clients >= 3:
                for spell in spells(crowd[:, None], hold, clear):
                    yield from self._shared(grid, column, str(name), members, latency, change, spell)
            own = slow[:, members] & ~taken[:, None] if clients >= 3 else shared_slow[:, members]
            usual = sorted_median(change[:, members])[:, None] if clients >= 3 else 0.0
            with np.errstate(invalid="ignore"):
                own = own & (change[:, members] - np.nan_to_num(usual) > np.log(limits.times))
            for spell in spells(own, hold, clear):
                yield from self._node(grid, column, members[spell.target], latency, change, spell)

    def _load(self, grid: Grid, by_target: dict[object, list[int]]) -> FloatArray:
        """Return how many times its earlier load a target takes, at least 1: operations and bytes of all its clients.

        Below `load_times` it counts as none.
        """
        load = np.ones(grid.shape)
        for name in ("read_ops_total", "write_ops_total", "read_bytes_total", "write_bytes_total"):
            grown = grid.deltas(name)
            if grown is None:
                continue
            for members in by_target.values():
                total = np.nansum(grown[:, members], axis=1, keepdims=True)
                total[0] = np.nan
                usual = np.maximum(first_median(total, self.thresholds.baseline_samples), 1.0)
                load[:, members] = np.fmax(load[:, members], total / usual)
        return np.where(load > self.thresholds.load_times, load, 1.0)

    def _shared(
        self,
        grid: Grid,
        column: str,
        name: str,
        members: list[int],
        latency: FloatArray,
        change: FloatArray,
        spell: Spell,
    ) -> list[Finding]:
        now = float(np.nanmedian(latency[spell.said, members]))
        times = float(np.exp(np.nanmedian(change[spell.said, members])))
        about = About(
            kind=FindingKind.STORAGE, scope=FindingScope.STORAGE_TARGET, targets=(name,), score=times,
            threshold=self.thresholds.times, aspect=column,
            summary=f"Storage {name} answers in {now:.1f} ms ({column}), {times:.1f} times as long as before, on "
            "most nodes at no more load.",
            evidence={"column": column, "now_ms": round(now, 2), "times": round(times, 2), "clients": len(members)},
        )  # fmt: skip
        return state_findings(self.name, self.version, grid, spell, about)

    def _node(
        self, grid: Grid, column: str, target: int, latency: FloatArray, change: FloatArray, spell: Spell
    ) -> list[Finding]:
        key = grid.keys_D[target]
        times = float(np.exp(change[spell.said, target]))
        # The cell itself may be empty.
        now = float(np.nanmedian(latency[max(0, spell.said - MEAN_CELLS) : spell.said + 1, target]))
        what = f" to {key[1]}" if len(key) > 1 else ""
        about = About(
            kind=FindingKind.STORAGE, scope=FindingScope.NODE, node=str(key[0]), targets=(str(key[0]),), score=times,
            threshold=self.thresholds.times, aspect=f"{column}{what}",
            summary=f"The storage path of {key[0]}{what} takes {now:.1f} ms ({column}), {times:.1f} times as long as "
            "before; other nodes do not.",
            evidence={"column": column, "now_ms": round(now, 2), "times": round(times, 2)},
        )  # fmt: skip
        return state_findings(self.name, self.version, grid, spell, about)
