"""The tables of the detection benchmark."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from benchmarks.detection.baselines import BASELINES
from benchmarks.detection.judge import HEADER, Tally, judge, judge_baseline
from flightwatch.detectors.contract import Detector
from flightwatch.simulator.cluster import Cluster, Job
from flightwatch.simulator.faults import TELEMETRY_KINDS, TIMING_KINDS
from flightwatch.simulator.held_out import held_out_scenario
from flightwatch.simulator.scenarios import (
    CONFOUNDERS,
    Scenario,
    build,
    confounder_scenario,
    telemetry_scenario,
    timing_scenario,
)
from flightwatch.simulator.training_faults import TRAINING_KINDS, training_scenario

#: Kinds of faults that a job of one rack or switch cannot show.
_NEEDS_ROOM = ("thermal_rack", "congested_switch")


def heading(text: str) -> None:
    """Begin a table."""
    print(f"\n{text}\n{HEADER}")


def timing_table(detectors: Sequence[Detector], seeds: int, small: bool = False) -> tuple[Tally, list[Scenario]]:
    """Print one row per timing fault and severity, then per kind; return the sum over effects of at least 5 % and
    clean runs, and some of the runs for the baselines."""
    total, quick, kinds, kept = Tally(), Tally(), dict[str, Tally](), list[Scenario]()
    plan: list[tuple[str, tuple[float, ...]]] = [("clean", (0.0,)), ("slow_gpu", (0.02, 0.05, 0.1, 0.2, 0.5))]
    plan += [(kind, (0.05, 0.1, 0.2)) for kind in TIMING_KINDS if kind != "slow_gpu"]
    for kind, severities in plan:
        if small and kind in _NEEDS_ROOM:
            continue
        for severity in severities:
            tally = Tally()
            for seed in range(seeds):
                scenario = timing_scenario(kind, 100 * seed + int(severity * 1000), severity=severity, small=small)
                tally.add(judge(scenario, detectors))
                if kind in ("clean", "slow_gpu", "slow_host", "thermal_gpu") and seed < 2 and severity != 0.02:
                    kept.append(scenario)
            print(tally.line(f"{kind} {severity:.0%}" if severity else kind), flush=True)
            if severity == 0 or severity >= 0.05:
                total.add(tally)
                kinds.setdefault(kind, Tally()).add(tally)
            if severity >= 0.2 and kind not in ("gradual", "intermittent"):
                quick.add(tally)
    print(total.line("TOTAL (>= 5 %, clean)"))
    print(quick.line("of these >= 20 %, at once"), flush=True)
    print(
        "Recall by kind, >= 5 %: "
        + ", ".join(f"{kind} {one.recall:.2f}" for kind, one in kinds.items() if kind != "clean")
    )
    return total, kept


def group(name: str, scenarios: Iterable[Scenario], detectors: Sequence[Detector], telemetry: bool = False) -> Tally:
    """Print one row for several scenarios."""
    tally = Tally()
    for scenario in scenarios:
        tally.add(judge(scenario, detectors, telemetry))
    print(tally.line(name), flush=True)
    return tally


def baseline_table(kept: Sequence[Scenario], detectors: Sequence[Detector]) -> None:
    """Print what plain detectors find in the same runs."""
    heading("The same runs (slow GPU and host, thermal, clean) by plain detectors")
    group("Flightwatch", kept, detectors)
    for name in BASELINES:
        tally = Tally()
        for scenario in kept:
            tally.add(judge_baseline(name, scenario))
        print(tally.line(name), flush=True)


def hard_table(detectors: Sequence[Detector], seeds: int) -> Tally:
    """Print half the severity at twice the noise, and two faults at once."""
    heading("Hard set: half the severity, twice the noise")
    runs = (
        timing_scenario(kind, 7000 + seed, severity=size / 2, noise=0.03)
        for kind in TIMING_KINDS
        if kind != "intermittent"
        for size in (0.1, 0.2)
        for seed in range(seeds)
    )
    hard = group("hard", runs, detectors)
    heading("Two faults at once")
    pairs = (
        timing_scenario(kind, 7500 + seed, severity=0.1, faults=2)
        for kind in ("slow_gpu", "slow_host", "slow_nic")
        for seed in range(seeds)
    )
    group("two", pairs, detectors)
    return hard


def confounder_table(detectors: Sequence[Detector], seeds: int) -> Tally:
    """Print confounders: everything that blames hardware there is false."""
    heading("Confounders: everything that blames hardware is false")
    total = Tally()
    for kind in CONFOUNDERS:
        total.add(group(kind, (confounder_scenario(kind, seed) for seed in range(seeds)), detectors))
    print(total.line("TOTAL"))
    return total


def other_faults_table(
    title: str, kinds: Iterable[str], draw: Callable[[str, int], Scenario], detectors: Sequence[Detector], seeds: int
) -> Tally:
    """Print faults that show in telemetry or in training's own values."""
    heading(title)
    total = Tally()
    for kind in ("clean", *kinds):
        total.add(group(kind, (draw(kind, seed) for seed in range(seeds)), detectors, telemetry=True))
    print(total.line("TOTAL"))
    return total


def telemetry_table(detectors: Sequence[Detector], seeds: int) -> Tally:
    """Print telemetry faults."""
    return other_faults_table("Telemetry faults", TELEMETRY_KINDS, telemetry_scenario, detectors, seeds)


def training_table(detectors: Sequence[Detector], seeds: int) -> Tally:
    """Print faults of training itself."""
    return other_faults_table("Faults of training itself", TRAINING_KINDS, training_scenario, detectors, seeds)


def held_out_table(detectors: Sequence[Detector], seeds: int) -> Tally:
    """Print the held-out set by kind: run once before a release, never tuned on."""
    heading("Held-out set: other shapes, noise, step times, severities, damaged recordings")
    total = Tally()
    for number, kind in enumerate((*TIMING_KINDS, "clean")):
        runs = (held_out_scenario(1000 * number + seed, kind) for seed in range(seeds * (3 if kind == "clean" else 1)))
        total.add(group(kind, runs, detectors))
    print(total.line("TOTAL"))
    return total


def cost(detector: Detector) -> float:
    """Microseconds of CPU per rank-step of one detector on 1,024 ranks x 400 steps, frames given."""
    scenario = build("cost", Cluster(nodes=128), Job(tp=8, pp=4, dp=32), [], 1, 400, lost=0.0)
    detector.score(scenario.frames)
    begin = time.process_time()
    detector.score(scenario.frames)
    return (time.process_time() - begin) / scenario.rank_steps * 1e6
