"""Detection benchmark on public seeds: `python -m benchmarks.detection [--quick]`, or `make bench-detect`.

Prints precision, recall, F1, top-1 node, time to detect, false findings per 1000 node-hours and cost per
rank-step, for every fault kind and for the baselines beside it. A finding counts when it blames hardware.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.detection.baselines import BASELINES
from flightwatch.core.vocabulary import FindingScope, FindingState
from flightwatch.detectors.contract import Detector, Finding
from flightwatch.detectors.registry import all_detectors
from flightwatch.simulator.cluster import Cluster, Job
from flightwatch.simulator.faults import TELEMETRY_KINDS, TIMING_KINDS
from flightwatch.simulator.scenarios import (
    CONFOUNDERS,
    Scenario,
    build,
    confounder_scenario,
    telemetry_scenario,
    timing_scenario,
)

TIMING = ("slow", "fail_slow", "imbalance", "coverage")


@dataclass
class Tally:
    """What was found over several scenarios."""

    hits: int = 0
    missed: int = 0
    false: int = 0
    first_right: int = 0
    runs: int = 0
    node_hours: float = 0.0
    rank_steps: int = 0
    seconds: float = 0.0
    delays: list[int] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add another tally."""
        for name in ("hits", "missed", "false", "first_right", "runs", "node_hours", "rank_steps", "seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.delays += other.delays

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        return 2 * self.hits / max(1, 2 * self.hits + self.missed + self.false)

    def line(self, name: str) -> str:
        """One row of the table."""
        recall = self.hits / max(1, self.hits + self.missed)
        precision = self.hits / max(1, self.hits + self.false)
        delay = f"{np.median(self.delays):6.0f}" if self.delays else "     -"
        false = 1000 * self.false / self.node_hours if self.node_hours else 0.0
        return (
            f"{name:28} {self.hits:4} {self.missed:4} {self.false:4}  {precision:5.2f} {recall:5.2f} {self.f1:5.3f} "
            f"{self.first_right / max(1, self.runs):5.2f} {delay} {false:8.2f} {self.node_hours:9.1f}"
        )


HEADER = (
    f"{'':28} {'hit':>4} {'miss':>4} {'false':>4}  {'prec':>5} {'rec':>5} {'F1':>5} {'top-1':>5} {'steps':>6} "
    f"{'false/1kh':>8} {'node-hours':>10}"
)


def named_nodes(finding: Finding, scenario: Scenario) -> set[str]:
    """Return the nodes a finding points at."""
    if finding.scope == FindingScope.STORAGE_TARGET:
        return set().union(*scenario.guilty) if scenario.name == "storage_latency" else {"storage"}
    names = {finding.node} if finding.node else set()
    inventory = scenario.frames["inventory"]
    for column in ("rack", "leaf_switch", "cooling_zone"):
        if finding.scope.value == column:
            return set(inventory[inventory[column].isin(finding.targets)]["node"])
    return names | set(finding.targets)


def judge(scenario: Scenario, detectors: Sequence[Detector], telemetry: bool = False) -> Tally:
    """Score one scenario."""
    begin = time.process_time()
    findings = [one for detector in detectors for one in detector.score(scenario.frames)]
    tally = Tally(
        runs=1, node_hours=scenario.hours, rank_steps=scenario.rank_steps, seconds=time.process_time() - begin
    )
    said = [one for one in findings if one.state != FindingState.CLEARED]
    # Sensor and clock findings blame no hardware on purpose; they are what is asked for there.
    blamed = [one for one in said if one.blames_hardware or (telemetry and one.kind.value in ("sensor", "clock_skew"))]
    blamed.sort(key=lambda one: (one.detected_at or 0, -one.score))
    found: set[int] = set()
    for finding in blamed:
        nodes = named_nodes(finding, scenario)
        hit = [i for i, guilty in enumerate(scenario.guilty) if nodes & guilty]
        tally.false += not hit
        for index in hit:
            if index not in found and finding.detected_step is not None:
                tally.delays.append(finding.detected_step - scenario.faults[index].start_step)
            found.add(index)
    tally.hits, tally.missed = len(found), len(scenario.guilty) - len(found)
    tally.first_right = int(
        bool(blamed) and any(named_nodes(blamed[0], scenario) & guilty for guilty in scenario.guilty)
    )
    return tally


def judge_baseline(name: str, scenario: Scenario, window: int = 40) -> Tally:
    """Score one baseline: it speaks about a node once, in the first of successive windows that flags it."""
    rows = scenario.frames["rank_steps"]
    table = rows.pivot_table(index="step", columns="rank", values="compute_us").to_numpy()
    places = scenario.frames["placements"].set_index("rank")["node"]
    tally = Tally(runs=1, node_hours=scenario.hours)
    said: dict[str, int] = {}
    for end in range(window, len(table) + 1, window):
        for rank in np.flatnonzero(BASELINES[name](table[end - window : end])):
            said.setdefault(str(places.iloc[int(rank)]), end)
    found = {i for i, guilty in enumerate(scenario.guilty) if guilty & set(said)}
    everyone = set().union(*scenario.guilty) if scenario.guilty else set()
    tally.hits, tally.missed, tally.false = len(found), len(scenario.guilty) - len(found), len(set(said) - everyone)
    tally.delays = [
        min(said[n] for n in scenario.guilty[i] if n in said) - scenario.faults[i].start_step for i in found
    ]
    tally.first_right = int(bool(said) and min(said, key=lambda node: said[node]) in everyone)
    return tally


def timing_table(detectors: Sequence[Detector], seeds: int, **options: object) -> tuple[Tally, list[Scenario]]:
    """Print one row per timing fault and severity; return the sum over effects of at least 5 % and clean runs."""
    total, kept = Tally(), []
    plan: list[tuple[str, tuple[float, ...]]] = [("clean", (0.0,)), ("slow_gpu", (0.02, 0.05, 0.1, 0.2, 0.5))]
    plan += [(kind, (0.05, 0.1, 0.2)) for kind in TIMING_KINDS if kind != "slow_gpu"]
    for kind, severities in plan:
        if options.get("small") and kind in ("thermal_rack", "congested_switch"):
            continue
        for severity in severities:
            tally = Tally()
            for seed in range(seeds):
                scenario = timing_scenario(kind, 100 * seed + int(severity * 1000), severity=severity, **options)  # type: ignore[arg-type]
                tally.add(judge(scenario, detectors))
                if kind in ("clean", "slow_gpu", "slow_host", "thermal_gpu") and seed < 2 and severity != 0.02:
                    kept.append(scenario)
            print(tally.line(f"{kind} {severity:.0%}" if severity else kind), flush=True)
            if severity == 0 or severity >= 0.05:
                total.add(tally)
    print(total.line("TOTAL (>= 5 %, clean)"), flush=True)
    return total, kept


def group(name: str, scenarios: Iterable[Scenario], detectors: Sequence[Detector], telemetry: bool = False) -> Tally:
    """Print one row for several scenarios."""
    tally = Tally()
    for scenario in scenarios:
        tally.add(judge(scenario, detectors, telemetry))
    print(tally.line(name), flush=True)
    return tally


def clean_hours(detectors: Sequence[Detector], node_hours: float) -> Tally:
    """Healthy jobs with healthy spread of chips; long steps, so that hours are cheap."""
    tally = Tally()
    seed = 0
    while tally.node_hours < node_hours:
        job = Job(tp=8, pp=4, dp=16, step_ms=20_000, noise=0.015, chip_spread=0.05 if seed % 2 else 0.015)
        scenario = build("clean", Cluster(nodes=64), job, [], 9000 + seed, 500)
        tally.add(judge(scenario, detectors))
        seed += 1
    return tally


def cost(detector: Detector) -> float:
    """Microseconds of CPU per rank-step of the slow-node detector on 1,024 ranks x 400 steps, frames given."""
    scenario = build("cost", Cluster(nodes=128), Job(tp=8, pp=4, dp=32), [], 1, 400, lost=0.0)
    detector.score(scenario.frames)
    begin = time.process_time()
    detector.score(scenario.frames)
    return (time.process_time() - begin) / scenario.rank_steps * 1e6


def main() -> int:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two seeds and 2,000 clean node-hours")
    parser.add_argument("--clean-hours", type=float, default=None, help="clean node-hours to simulate")
    arguments = parser.parse_args()
    seeds = 2 if arguments.quick else 5
    every = all_detectors()
    timing = [one for one in every if one.name in TIMING]
    telemetry = [one for one in every if one.name not in TIMING]
    print("Timing faults, at least four role peers\n" + HEADER)
    total, kept = timing_table(timing, seeds)
    print("\nThe same runs (slow GPU and host, thermal, clean) by plain detectors\n" + HEADER)
    group("Flightwatch", kept, timing)
    for name in BASELINES:
        tally = Tally()
        for scenario in kept:
            tally.add(judge_baseline(name, scenario))
        print(tally.line(name), flush=True)
    print("\nTwo or three role peers\n" + HEADER)
    timing_table(timing, max(1, seeds // 2), small=True)
    print("\nHard set: half the severity, twice the noise\n" + HEADER)
    hard = [
        timing_scenario(kind, 7000 + seed, severity=size / 2, noise=0.03)
        for kind in TIMING_KINDS
        if kind != "intermittent"
        for size in (0.1, 0.2)
        for seed in range(seeds)
    ]
    group("hard", hard, timing)
    print("\nTwo faults at once\n" + HEADER)
    pairs = [
        timing_scenario(kind, 7500 + seed, severity=0.1, faults=2)
        for kind in ("slow_gpu", "slow_host", "slow_nic")
        for seed in range(seeds)
    ]
    group("two", pairs, timing)
    print("\nConfounders: everything that blames hardware is false\n" + HEADER)
    for kind in CONFOUNDERS:
        group(kind, [confounder_scenario(kind, seed) for seed in range(seeds)], timing)
    print("\nTelemetry faults\n" + HEADER)
    sum_ = Tally()
    for kind in ("clean", *TELEMETRY_KINDS):
        sum_.add(group(kind, [telemetry_scenario(kind, seed) for seed in range(max(1, seeds // 2))], telemetry, True))
    print(sum_.line("TOTAL"), flush=True)
    hours = arguments.clean_hours if arguments.clean_hours is not None else (2_000 if arguments.quick else 10_000)
    clean = clean_hours(timing, hours)
    print(f"\nClean: {clean.false} false findings in {clean.node_hours:,.0f} simulated node-hours")
    slow = next(one for one in timing if one.name == "slow")
    print(f"Cost: {cost(slow):.3f} us of CPU per rank-step (slow-node detector, 1,024 ranks x 400 steps)")
    return 0 if total.f1 >= 0.95 else 1


if __name__ == "__main__":
    sys.exit(main())
