"""Hosts: dead nodes, clocks that are wrong, configuration that drifted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from flightwatch.core.vocabulary import FindingKind, FindingScope, FindingState, Severity
from flightwatch.detectors.contract import Finding, Frames, Needs
from flightwatch.detectors.series import A_MOMENT, cells, grid_of, spells
from flightwatch.detectors.statement import About, state_findings

#: Tables in which a living node shows up by itself, job or not.
SIGNS_OF_LIFE = ("device_samples", "node_samples", "port_samples", "storage_samples", "sensor_samples", "self_metrics")


@dataclass(frozen=True)
class HostThresholds:
    """Defaults.

    Attributes
    ----------
    silent_s, silent_intervals: a node is dead after the longer of both without any row, judged against the newest row
    of its cluster; an interval is what its own rows keep. blind_share: when this share of nodes
    is silent, it is the pipeline, not the nodes.
    skew_us, skew_hold_s: clock offset and for how long.
    minority, minimum_nodes: a value held by at most this share of at least so many nodes is a drift.
    """

    silent_s: float = 60.0
    silent_intervals: float = 6.0
    blind_share: float = 0.5
    skew_us: float = 100_000.0
    skew_hold_s: float = 30.0
    minority: float = 0.2
    minimum_nodes: int = 4


class DeadNodeDetector:
    """Finds kind `dead_node`: all telemetry of a node stopped while other nodes go on.

    Silence is judged against the newest row of any node, never against wall clock, and by the later of a row's own time
    and its arrival: a node whose rows are on their way (a backlog after an outage) is not silent. A rank that leaves a
    job is not a dead node: its node keeps reporting. Does not see: a node that never reported.
    """

    name = "dead_node"
    version = "1"
    needs = Needs(dict.fromkeys(SIGNS_OF_LIFE, ("ts", "received_at", "node")), seconds=1800)

    def __init__(self, thresholds: HostThresholds | None = None) -> None:
        self.thresholds = thresholds or HostThresholds()

    def score(self, frames: Frames) -> list[Finding]:
        """See `contract.Detector`."""
        seen, cluster = _rows_by_node(frames)
        if len(seen) < 2:
            return []
        own = {node: _interval(times) for node, times in seen.items()}
        usual = float(np.nanmedian(list(own.values()))) if np.isfinite(list(own.values())).any() else 0.0
        limits = {
            node: max(self.thresholds.silent_s * 1000, self.thresholds.silent_intervals * np.fmax(interval, usual))
            for node, interval in own.items()
        }
        newest = np.sort(np.concatenate(list(seen.values())))
        silences = [
            (node, begin, end)
            for node, times in sorted(seen.items())
            for begin, end in _gaps(times, newest[-1], limits[node])
        ]
        found: list[Finding] = []
        for node, begin, end in silences:
            said = begin + limits[node]
            together = sum(1 for _, other, over in silences if other <= said and (over is None or over >= begin))
            alive = newest[(newest > begin) & (newest <= said)]
            if together > self.thresholds.blind_share * len(seen) or not len(alive):
                continue
            found += self._say(node, cluster, begin, said, end)
        return sorted(found, key=lambda one: one.detected_at or 0)

    def _say(self, node: str, cluster: str | None, begin: float, said: float, end: float | None) -> list[Finding]:
        raised = Finding(
            detector=self.name,
            detector_version=self.version,
            kind=FindingKind.DEAD_NODE,
            scope=FindingScope.NODE,
            summary=f"{node} has sent nothing for {(said - begin) / 1000:.0f} s while other nodes go on.",
            score=round((said - begin) / 1000, 1),
            severity=Severity.P2,
            detected_at=int(said),
            first_seen_at=int(begin),
            cluster=cluster,
            node=node,
            targets=(node,),
            blames_hardware=True,
            confidence=0.8,
            evidence={"last_row_ms": int(begin)},
        )
        if end is None:
            return [raised]
        from dataclasses import replace

        return [
            raised,
            replace(raised, state=FindingState.CLEARED, detected_at=int(end), summary=f"{node} reports again."),
        ]


def _rows_by_node(frames: Frames) -> tuple[dict[str, np.ndarray], str | None]:
    """Return when rows of each node came, each time once, and the cluster."""
    when_of: dict[str, list[np.ndarray]] = {}
    cluster: str | None = None
    for table in SIGNS_OF_LIFE:
        rows = frames.get(table)
        if rows is None or rows.empty or not {"ts", "node"} <= set(rows.columns):
            continue
        when = rows["ts"].to_numpy(dtype=float)
        if "received_at" in rows:
            when = np.fmax(when, rows["received_at"].to_numpy(dtype=float))
        codes, nodes = pd.factorize(rows["node"])
        known = (codes >= 0) & ~np.isnan(when)
        codes, when = codes[known], when[known]
        order = np.lexsort((when, codes))
        codes, when = codes[order], when[order]
        new = np.concatenate([[True], (np.diff(codes) > 0) | (np.diff(when) > 0)])[: len(codes)]
        codes, when = codes[new], when[new]
        ends = np.searchsorted(codes, np.arange(len(nodes) + 1))
        for node, begin, end in zip(list(nodes), ends[:-1], ends[1:], strict=True):
            if end > begin:
                when_of.setdefault(str(node), []).append(when[begin:end])
        if cluster is None and "cluster" in rows and isinstance(rows["cluster"].iloc[0], str):
            cluster = rows["cluster"].iloc[0]
    return {node: np.unique(np.concatenate(parts)) for node, parts in when_of.items()}, cluster


def _interval(times: np.ndarray) -> float:
    """Return how far apart a node's rows come; NaN for fewer than three.

    Rows of several tables come in a cluster each time: what counts is the gap in which a quarter of the time has
    passed, short gaps first, not the number of gaps.
    """
    gaps = np.sort(np.diff(times))
    if len(gaps) < 2:
        return float("nan")
    return float(gaps[np.searchsorted(np.cumsum(gaps), 0.25 * gaps.sum())])


def _gaps(times: np.ndarray, newest: float, limit: float) -> Iterable[tuple[float, float | None]]:
    gaps = np.diff(times)
    for at in np.flatnonzero(gaps > limit):
        yield float(times[at]), float(times[at + 1])
    if newest - times[-1] > limit:
        yield float(times[-1]), None


class ClockSkewDetector:
    """Finds kind `clock_skew`: a node's clock is off by more than the limit. Blames nobody's hardware.

    No timing verdict compares timestamps of two nodes, so a skewed clock does no harm beyond its own rows' times.
    """

    name = "clock_skew"
    version = "1"
    needs = Needs({"node_samples": ("ts", "node", "clock_offset_us")}, seconds=900)

    def __init__(self, thresholds: HostThresholds | None = None) -> None:
        self.thresholds = thresholds or HostThresholds()

    def score(self, frames: Frames) -> list[Finding]:
        """See `contract.Detector`."""
        grid = grid_of(frames, "node_samples", ("node",))
        offset = grid.column("clock_offset_us", forward_cells=A_MOMENT) if grid is not None else None
        if grid is None or offset is None:
            return []
        off = np.abs(np.nan_to_num(offset)) > self.thresholds.skew_us
        found: list[Finding] = []
        for spell in spells(
            off, cells(self.thresholds.skew_hold_s, grid.interval_s, 2), cells(120, grid.interval_s, 2)
        ):
            node, value = str(grid.keys_D[spell.target][0]), float(offset[spell.said, spell.target])
            about = About(
                kind=FindingKind.CLOCK_SKEW, scope=FindingScope.NODE, node=node, score=abs(value) / 1e6,
                threshold=self.thresholds.skew_us / 1e6, severity=Severity.P4, blames_hardware=False,
                summary=f"The clock of {node} is off by {value / 1e6:+.3f} s.",
                evidence={"clock_offset_us": value},
            )  # fmt: skip
            found += state_findings(self.name, self.version, grid, spell, about)
        return found


class ConfigDriftDetector:
    """Finds kind `config_drift`: a node whose value differs from the clear majority of its kind of node or device.

    Does not see: a change rolled out to all nodes, facts with many values by nature (they have no majority).
    """

    name = "config_drift"
    version = "1"
    needs = Needs({"config_facts": ("ts", "cluster", "node", "device", "name", "value")})

    def __init__(self, thresholds: HostThresholds | None = None) -> None:
        self.thresholds = thresholds or HostThresholds()

    def score(self, frames: Frames) -> list[Finding]:
        """See `contract.Detector`."""
        facts = frames.get("config_facts")
        if facts is None or facts.empty or not {"node", "name", "value"} <= set(facts.columns):
            return []
        rows = facts.astype({"node": object, "name": object, "value": object}).dropna(subset=["node", "name", "value"])
        if "ts" in rows:
            rows = rows.sort_values("ts", kind="stable", na_position="first")
        device = rows["device"] if "device" in rows else pd.Series(np.nan, index=rows.index)
        rows = rows.assign(device=device.fillna(-1)).drop_duplicates(["node", "device", "name"], keep="last")
        found: list[Finding] = []
        for name, group in rows.groupby("name", sort=True):
            found += self._of_fact(str(name), group)
        return found

    def _of_fact(self, name: str, rows: pd.DataFrame) -> list[Finding]:
        values = rows.groupby("node")["value"].agg(lambda group: " | ".join(sorted({str(value) for value in group})))
        if len(values) < self.thresholds.minimum_nodes:
            return []
        counts = values.value_counts()
        usual = str(counts.index[0])
        odd = values[values != usual]
        if odd.empty or len(odd) > self.thresholds.minority * len(values):
            return []
        when = rows["ts"].max() if "ts" in rows else np.nan
        found: list[Finding] = []
        for node, value in odd.sort_index().items():
            text = f"{node} has {name} = {value}; {len(values) - len(odd)} of {len(values)} nodes have {usual}."
            found.append(
                Finding(
                    detector=self.name, detector_version=self.version, kind=FindingKind.CONFIG_DRIFT,
                    scope=FindingScope.NODE, summary=text, score=1 - len(odd) / len(values), severity=Severity.P4,
                    detected_at=int(when) if when == when else None, node=str(node), targets=(str(node),),
                    blames_hardware=False, confidence=0.9, aspect=name,
                    evidence={"name": name, "value": str(value), "majority": usual, "nodes": len(values)},
                )
            )  # fmt: skip
        return found
