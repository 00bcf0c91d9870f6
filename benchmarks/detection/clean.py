"""Clean node-hours: healthy jobs and healthy hosts, on which every finding that blames hardware is false.

`python -m benchmarks.detection --clean-hours N` goes on where it stopped: the file it writes says how many runs are
done. One process; start it under `nice`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from flightwatch.core.vocabulary import FindingState, Severity
from flightwatch.detectors.contract import Detector, Finding
from flightwatch.detectors.dense_steps import DenseFrames, DenseRun
from flightwatch.simulator.cluster import Cluster, Job
from flightwatch.simulator.scenarios import START_MS, Layout, Scenario
from flightwatch.simulator.telemetry import TelemetryModel, TelemetrySpec
from flightwatch.simulator.timing import TimingModel

#: What people are woken for by the default routes.
PAGES = (Severity.P1, Severity.P2)
SPREADS = (0.015, 0.05)
STEPS, LOST = 500, 0.01
LAYOUTS: tuple[Layout, ...] = (
    (8, 1, 4, 16), (4, 1, 4, 32), (8, 1, 8, 8), (2, 2, 4, 32), (1, 1, 1, 256), (8, 1, 1, 64), (1, 1, 16, 16),
)  # fmt: skip
#: Runs between two writes of the file, and hours of telemetry in one run.
WRITE_EVERY, TELEMETRY_HOURS = 20, 2.0


@dataclass
class CleanRecord:
    """What is known so far.

    Attributes
    ----------
    runs: runs done. node_hours: by healthy spread of chips. false: findings that blame hardware. pages: statements of
    severity P1 or P2. examples: the first of both. seconds: CPU seconds spent.
    """

    name: str
    runs: int = 0
    node_hours: dict[str, float] = field(default_factory=dict)
    rank_steps: int = 0
    false: int = 0
    pages: int = 0
    examples: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def hours(self) -> float:
        """All node-hours."""
        return sum(self.node_hours.values())

    def add(self, kind: str, scenario: Scenario, findings: Sequence[Finding], seed: int) -> None:
        """Count one run."""
        self.runs += 1
        self.node_hours[kind] = self.node_hours.get(kind, 0.0) + scenario.hours
        self.rank_steps += scenario.rank_steps
        raised = [one for one in findings if one.state != FindingState.CLEARED]
        wrong = [one for one in raised if one.blames_hardware]
        pages = [one for one in raised if one.severity in PAGES]
        self.false, self.pages = self.false + len(wrong), self.pages + len(pages)
        for one in [*wrong, *pages][: max(0, 50 - len(self.examples))]:
            self.examples.append(f"run {seed}: {one.detector} {one.severity.value}: {one.summary}")

    def line(self) -> str:
        """One sentence for people."""
        parts = ", ".join(f"{hours:,.0f} at {kind}" for kind, hours in sorted(self.node_hours.items()))
        per_page = 1000 * self.pages / self.hours if self.hours else 0.0
        return (
            f"{self.name}: {self.false} false findings and {self.pages} false pages ({per_page:.4f} per 1,000) in "
            f"{self.hours:,.0f} simulated clean node-hours ({parts}; {self.runs} runs, {self.rank_steps:,} rank-steps, "
            f"{self.seconds:,.0f} CPU s)"
        )


def timing_run(seed: int) -> tuple[str, Scenario]:
    """Draw one healthy job of 64 to 512 ranks; long steps and mostly few devices a node, so that hours are cheap.

    Steps go to the detectors as arrays, a hundredth of the rank-steps lost: rows would cost more than both.
    """
    rng = np.random.default_rng([seed, 177])
    tp, cp, pp, dp = LAYOUTS[int(rng.integers(len(LAYOUTS)))]
    spread = SPREADS[seed % 2]
    job = Job(
        tp=tp, cp=cp, pp=pp, dp=dp, step_ms=float(rng.uniform(14_000, 20_000)), noise=float(rng.uniform(0.005, 0.04)),
        chip_spread=spread, checkpoint_every=int(rng.choice([0, 50, 100])),
        stage_imbalance=float(rng.choice([0.0, 0.2])), gc_rate=float(rng.choice([0.0, 0.0005, 0.002])),
        sequence_imbalance=float(rng.choice([0.0, 0.0, 0.05])), report_work=True,
    )  # fmt: skip
    devices = int(rng.choice([1, 2, 4, 8]))
    cluster = Cluster(nodes=job.ranks // devices, devices_per_node=devices)
    model = TimingModel(cluster, job, (), 90_000 + seed, START_MS)
    parts = [{name: values.astype(np.float32) for name, values in chunk.items()} for _, chunk in model.chunks(STEPS)]
    channels = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    length_ms = channels["step_us"].max(axis=1) / 1000.0
    lost = rng.random((STEPS, job.ranks)) < LOST
    for values in channels.values():
        values[lost] = np.nan
    starts = START_MS + np.concatenate([[0.0], np.cumsum(length_ms[:-1].astype(float))])
    places, ranks = job.placements(cluster, START_MS), np.arange(job.ranks)
    run = DenseRun(job.name, job.run, cluster.name, np.arange(STEPS), ranks, channels, starts[:, None],
                   places[["rank", "node", "device"]])  # fmt: skip
    frames = DenseFrames({"placements": places, "inventory": cluster.inventory(START_MS)}, [run])
    hours = float(length_ms.sum()) / 3_600_000 * cluster.nodes
    return f"a chip spread of {spread:.1%}", Scenario("clean", frames, (), (), cluster.nodes, hours, int((~lost).sum()))


def telemetry_run(seed: int) -> tuple[str, Scenario]:
    """Draw hours of telemetry of a healthy, partly idle cluster."""
    rng = np.random.default_rng([seed, 178])
    cluster = Cluster(nodes=48)
    job = Job(tp=4, pp=2, dp=int(rng.choice([16, 32])), first_node=int(rng.integers(0, 8)))
    interval = float(rng.choice([15.0, 30.0, 60.0]))
    spec = TelemetrySpec(interval_s=interval, samples=int(TELEMETRY_HOURS * 3600 / interval), day_cycle_c=3.0)
    frames = TelemetryModel(cluster, [job], [], 90_000 + seed, START_MS, spec).frames()
    return "an hour", Scenario("clean", frames, (), (), cluster.nodes, cluster.nodes * TELEMETRY_HOURS, 0)


def clean_runs(detectors: Sequence[Detector], node_hours: float, telemetry: bool, path: Path | None) -> CleanRecord:
    """Simulate healthy runs until there are so many node-hours, going on with what `path` holds."""
    name = "Clean telemetry" if telemetry else "Clean training"
    record = _read(path, name)
    draw = telemetry_run if telemetry else timing_run
    begin = time.process_time() - record.seconds
    while record.hours < node_hours:
        seed = record.runs
        kind, scenario = draw(seed)
        record.add(kind, scenario, [one for made in detectors for one in made.score(scenario.frames)], seed)
        record.seconds = round(time.process_time() - begin, 1)
        if path is not None and record.runs % WRITE_EVERY == 0:
            _write(path, record)
    if path is not None:
        _write(path, record)
    return record


def _read(path: Path | None, name: str) -> CleanRecord:
    if path is None or not path.exists():
        return CleanRecord(name)
    return CleanRecord(**json.loads(path.read_text(encoding="utf-8")))


def _write(path: Path, record: CleanRecord) -> None:
    """Write beside and rename: a run killed in between leaves a whole file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(asdict(record), indent=1) + "\n", encoding="utf-8")
    os.replace(beside, path)
