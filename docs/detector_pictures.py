"""Draw one example per detector from simulated rows, and put it on the detector's page.

make detector-pictures

Each picture shows rows in which the detector speaks (the same ones that its contract is tested with): the target in
red, its peers in grey, the begin of the evidence and the moment of the statement as lines. Needs matplotlib.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from flightwatch.core.vocabulary import FindingState
from flightwatch.detectors.contract import Detector, Finding
from flightwatch.detectors.registry import all_detectors
from flightwatch.pipeline.detection.run import with_steps
from tests.contracts.detector_stage import speaking_frames

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures" / "detectors"
PAGES = ROOT / "docs" / "detectors"
RED, GREY, BLUE = "#d62728", "#9aa0a6", "#1f77b4"
#: Lines of peers that one picture shows.
MOST_LINES = 24
Frames = dict[str, pd.DataFrame]


@dataclass(frozen=True)
class View:
    """What a picture of lines shows: a column of a table, one line per key.

    Attributes
    ----------
    rate: draw the increase per minute of a counter. by: columns that name a line. unit: of the vertical axis.
    """

    table: str
    column: str
    by: tuple[str, ...]
    unit: str
    rate: bool = False
    scale: float = 1.0


VIEWS: dict[str, View] = {
    "slow": View("rank_steps", "compute_us", ("rank",), "exclusive compute of a step, ms", scale=1e-3),
    "fail_slow": View("rank_steps", "step_us", ("job",), "step time, ms", scale=1e-3),
    "job_regression": View("rank_steps", "step_us", ("run",), "step time, ms", scale=1e-3),
    "cooling": View("device_samples", "temp_c", ("node", "device"), "temperature, C"),
    "overheat": View("device_samples", "temp_c", ("node", "device"), "temperature, C"),
    "throttle": View("device_samples", "sm_clock_mhz", ("node", "device"), "clock, MHz"),
    "memory_errors": View("device_samples", "ecc_corrected_total", ("node", "device"), "corrected errors"),
    "ports": View("port_samples", "retransmits_total", ("node",), "retransmits a minute", rate=True),
    "storage": View("storage_samples", "read_ms", ("node",), "time per read, ms"),
    "sensors": View("device_samples", "temp_c", ("node", "device"), "temperature, C"),
    "clock_skew": View("node_samples", "clock_offset_us", ("node",), "clock offset, ms", scale=1e-3),
    "scalars": View("training_scalars", "value", ("name",), "loss"),
    "numerics": View("training_scalars", "value", ("name",), "FP8 amax of one layer"),
    "sdc_precursor": View("device_samples", "ecc_corrected_total", ("node", "device"), "corrected errors"),
    "anomaly": View("node_samples", "cpu_pct", ("node",), "CPU busy, %"),
}


def main() -> int:
    """Draw all pictures and put each on its page."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for detector in all_detectors():
        frames = dict(with_steps(speaking_frames(detector.name)))
        findings = [one for one in detector.score(frames) if one.state != FindingState.CLEARED]
        figure, axes = plt.subplots(figsize=(7.2, 2.8), dpi=90)
        draw = SPECIAL.get(detector.name)
        if draw is not None:
            draw(axes, frames, findings)
        else:
            _lines(axes, frames, findings, VIEWS[detector.name])
        axes.set_title(findings[0].summary[:110], fontsize=8, loc="left")
        axes.tick_params(labelsize=7)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        figure.tight_layout()
        figure.savefig(FOLDER / f"{detector.name}.png", metadata={"Software": None})
        plt.close(figure)
        _put_on_page(detector)
    return 0


def _put_on_page(detector: Detector) -> None:
    page = PAGES / f"{detector.name}.md"
    text = page.read_text(encoding="utf-8")
    link = f"![Simulated example](../pictures/detectors/{detector.name}.png)"
    if link in text:
        return
    section = f"## Example\n\n{link}\n\nSimulated rows: the target in red, its peers in grey.\n\n"
    before, mark, after = text.partition("## Blind spots")
    page.write_text(
        f"{before}{section}{mark}{after}" if mark else f"{text}\n{section}".rstrip() + "\n", encoding="utf-8"
    )


def _lines(axes: Axes, frames: Frames, findings: list[Finding], view: View) -> None:
    rows = frames[view.table]
    begin_ms = float(rows["ts"].min())
    guilty = {name for finding in findings for name in _keys_of(finding, view.by)}
    groups = [(key, group.sort_values("ts")) for key, group in rows.groupby(list(view.by), observed=True)]
    chosen = [pair for pair in groups if _is_guilty(pair[0], guilty, view.by, findings)]
    peers = [pair for pair in groups if not any(pair[0] == one[0] for one in chosen)]
    step = max(1, len(peers) // MOST_LINES)
    for key, group in [*peers[::step], *chosen]:
        is_guilty = any(key == one[0] for one in chosen)
        values = group[view.column].to_numpy(dtype=float) * view.scale
        minutes = (group["ts"].to_numpy(dtype=float) - begin_ms) / 60_000
        if view.rate:
            values, minutes = np.diff(values) / np.diff(minutes), minutes[1:]
        axes.plot(minutes, values, color=RED if is_guilty else GREY, lw=1.2 if is_guilty else 0.5)
    _marks(axes, findings[0], begin_ms)
    axes.set_xlabel("minutes", fontsize=7)
    axes.set_ylabel(view.unit, fontsize=7)


def _keys_of(finding: Finding, by: tuple[str, ...]) -> list[tuple[object, ...]]:
    values = tuple(getattr(finding, name, None) for name in by)
    return [values] if all(value is not None for value in values) else []


def _is_guilty(key: object, guilty: set[tuple[object, ...]], by: tuple[str, ...], findings: list[Finding]) -> bool:
    parts = key if isinstance(key, tuple) else (key,)
    if parts in guilty or tuple(float(part) if isinstance(part, (int, float)) else part for part in parts) in guilty:
        return True
    if guilty:
        return False
    # A finding about a node, rack or job: everything of it.
    if "node" in by:
        named = {finding.node for finding in findings} | {name for finding in findings for name in finding.targets}
        return str(parts[by.index("node")]) in {str(name) for name in named}
    return len(parts) == 1


def _marks(axes: Axes, finding: Finding, begin_ms: float) -> None:
    for moment, style, label in ((finding.first_seen_at, ":", "begin"), (finding.detected_at, "-", "said")):
        if moment is not None:
            axes.axvline((moment - begin_ms) / 60_000, color=BLUE, lw=0.8, ls=style, label=label)
    axes.legend(fontsize=6, frameon=False, loc="upper left")


def _stages(axes: Axes, frames: Frames, findings: list[Finding]) -> None:
    joined = frames["rank_steps"].merge(frames["placements"][["rank", "pp"]], on="rank")
    compute = joined.groupby("pp")["compute_us"].median() / 1000
    axes.bar([f"stage {int(pp)}" for pp in compute.index], compute, color=[GREY] * (len(compute) - 1) + [RED])
    axes.set_ylabel("exclusive compute, ms", fontsize=7)


def _coverage(axes: Axes, frames: Frames, findings: list[Finding]) -> None:
    rows = frames["rank_steps"]
    axes.scatter(rows["step"], rows["rank"], s=1, color=GREY)
    axes.set_ylim(-1, frames["placements"]["rank"].max() + 1)
    axes.set_xlabel("step", fontsize=7)
    axes.set_ylabel("ranks that report", fontsize=7)


def _events(axes: Axes, frames: Frames, findings: list[Finding]) -> None:
    rows = frames["events"].sort_values("ts")
    seconds = (rows["ts"] - rows["ts"].min()) / 1000
    for at, (second, code, node) in enumerate(zip(seconds, rows["code"], rows["node"], strict=True)):
        axes.plot([second], [-at], "o", color=RED if at == 0 else GREY)
        axes.annotate(f" {node} {code}", (second, -at), fontsize=7, va="center")
    axes.set_yticks([])
    axes.set_xlim(-0.1 * max(seconds.max(), 0.01), 1.5 * max(seconds.max(), 0.01))
    axes.set_xlabel("seconds after the first", fontsize=7)


def _progress(axes: Axes, frames: Frames, findings: list[Finding]) -> None:
    newest = frames["collectives"].groupby("rank")["seq"].max()
    roots = {finding.rank for finding in findings}
    axes.bar([f"rank {int(rank)}" for rank in newest.index], newest,
             color=[RED if int(rank) in roots else GREY for rank in newest.index])  # fmt: skip
    axes.set_ylabel("newest collective entered", fontsize=7)


def _raster(axes: Axes, frames: Frames, findings: list[Finding]) -> None:
    rows = frames["node_samples"]
    names = sorted(set(rows["node"].astype(str)))
    at = rows["node"].astype(str).map(names.index).to_numpy(dtype=float)
    dead = np.array([str(node) == findings[0].node for node in rows["node"]])
    minutes = (rows["ts"].to_numpy(dtype=float) - float(rows["ts"].min())) / 60_000
    axes.scatter(minutes[~dead], at[~dead], s=1, color=GREY)
    axes.scatter(minutes[dead], at[dead], s=3, color=RED)
    _marks(axes, findings[0], float(rows["ts"].min()))
    axes.set_xlabel("minutes", fontsize=7)
    axes.set_ylabel("nodes: one dot a row", fontsize=7)


def _facts(axes: Axes, frames: Frames, findings: list[Finding]) -> None:
    counts = frames["config_facts"]["value"].value_counts()
    axes.barh([str(name) for name in counts.index], counts, color=[GREY] * (len(counts) - 1) + [RED])
    axes.set_xlabel("nodes with this value of 'driver'", fontsize=7)


def _origins(axes: Axes, frames: Frames, findings: list[Finding]) -> None:
    rows = frames["rank_steps"]
    bad = rows[rows["nonfinite_count"] > 0]
    first = bad["step"].min()
    axes.scatter(bad["step"], bad["rank"], s=4, color=GREY)
    origin = bad[bad["step"] == first]
    axes.scatter(origin["step"], origin["rank"], s=30, color=RED)
    axes.set_xlim(first - 10, first + 25)
    axes.set_xlabel("step", fontsize=7)
    axes.set_ylabel("ranks with non-finite values", fontsize=7)


def _digests(axes: Axes, frames: Frames, findings: list[Finding]) -> None:
    rows = frames["training_scalars"]
    usual = rows["value"].mode().iloc[0]
    axes.bar([f"rank {int(rank)}" for rank in rows["rank"]], rows["value"],
             color=[GREY if value == usual else RED for value in rows["value"]])  # fmt: skip
    axes.set_ylabel("digest of its parameters", fontsize=7)


SPECIAL: dict[str, Callable[[Axes, Frames, list[Finding]], None]] = {
    "imbalance": _stages, "coverage": _coverage, "device_errors": _events, "crash": _events, "hang": _progress,
    "dead_node": _raster, "config_drift": _facts, "nonfinite": _origins, "replica_digest": _digests,
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
