"""How findings are counted: hits, misses, false findings, who was named first, how soon, at what cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.detection.baselines import BASELINES
from flightwatch.core.vocabulary import FindingScope, FindingState
from flightwatch.detectors.contract import Detector, Finding
from flightwatch.pipeline.detection.run import with_steps
from flightwatch.simulator.faults import TELEMETRY_KINDS
from flightwatch.simulator.scenarios import Scenario
from flightwatch.simulator.training_faults import TRAINING_KINDS

#: What is asked for there blames no hardware on purpose.
UNBLAMED = ("sensor", "clock_skew", "loss_spike", "hang")


@dataclass
class Tally:
    """What was found over several scenarios; hours and false findings of runs with and without a fault apart."""

    hits: int = 0
    missed: int = 0
    false: int = 0
    false_clean: int = 0
    first_right: int = 0
    faulty: int = 0
    hours_faulty: float = 0.0
    hours_clean: float = 0.0
    rank_steps: int = 0
    seconds: float = 0.0
    delays: list[int] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add another tally."""
        for name in ("hits", "missed", "false", "false_clean", "first_right", "faulty", "hours_faulty", "hours_clean",
                     "rank_steps", "seconds"):  # fmt: skip
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.delays += other.delays

    @property
    def recall(self) -> float:
        """Share of faults found; 1 when there was none."""
        return self.hits / (self.hits + self.missed) if self.hits + self.missed else 1.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        return 2 * self.hits / max(1, 2 * self.hits + self.missed + self.false + self.false_clean)

    @property
    def top1(self) -> float:
        """Share of faulty runs in which the first target named was a right one; a run without a finding is none."""
        return self.first_right / max(1, self.faulty)

    def line(self, name: str) -> str:
        """One row of the table."""
        false = self.false + self.false_clean
        precision = self.hits / max(1, self.hits + false)
        delay = f"{np.median(self.delays):6.0f}" if self.delays else "     -"
        rates = [
            f"{1000 * count / hours:8.2f}" if hours else "       -"
            for count, hours in ((self.false, self.hours_faulty), (self.false_clean, self.hours_clean))
        ]
        cost = f"{1e6 * self.seconds / self.rank_steps:6.2f}" if self.rank_steps else "     -"
        return (
            f"{name:30} {self.hits:4} {self.missed:4} {false:4}  {precision:5.2f} {self.recall:5.2f} {self.f1:5.3f} "
            f"{self.top1:5.2f} {delay} {rates[0]} {rates[1]} {self.hours_faulty + self.hours_clean:9.1f} {cost}"
        )


HEADER = (
    f"{'':30} {'hit':>4} {'miss':>4} {'fals':>4}  {'prec':>5} {'rec':>5} {'F1':>5} {'top-1':>5} {'steps':>6} "
    f"{'f/1kh':>8} {'clean':>8} {'node-h':>9} {'us/rs':>6}"
)


def named_nodes(finding: Finding, scenario: Scenario) -> set[str]:
    """Return the nodes a finding points at (the job, where it names only that)."""
    if finding.scope == FindingScope.STORAGE_TARGET:
        return set().union(*scenario.guilty) if scenario.name == "storage_latency" else {"storage"}
    names = {finding.node} if finding.node else set()
    inventory = scenario.frames.get("inventory")
    for column in ("rack", "leaf_switch", "cooling_zone"):
        if finding.scope.value == column and inventory is not None:
            return set(inventory[inventory[column].isin(finding.targets)]["node"])
    if finding.node is None and finding.job is not None and not finding.targets:
        return {finding.job}
    return names | set(finding.targets)


def judge(scenario: Scenario, detectors: Sequence[Detector], telemetry: bool = False) -> Tally:
    """Score one scenario: a finding counts when it blames hardware (or, for telemetry, is of a kind asked for)."""
    frames = with_steps(scenario.frames)
    begin = time.process_time()
    findings = [one for detector in detectors for one in detector.score(frames)]
    tally = _tally(scenario, time.process_time() - begin)
    wanted = {**TELEMETRY_KINDS, **TRAINING_KINDS}.get(scenario.name)
    said = [one for one in findings if one.state != FindingState.CLEARED]
    blamed = [
        one for one in said
        if one.blames_hardware or (telemetry and one.kind.value in UNBLAMED and one.kind.value == wanted)
    ]  # fmt: skip
    blamed.sort(key=lambda one: (one.detected_at or 0, -one.score))
    found: set[int] = set()
    false = 0
    for finding in blamed:
        nodes = named_nodes(finding, scenario)
        hit = [i for i, guilty in enumerate(scenario.guilty) if nodes & guilty]
        false += not hit
        for index in hit:
            if index not in found and finding.detected_step is not None and scenario.name not in TELEMETRY_KINDS:
                tally.delays.append(int(finding.detected_step) - _start(scenario, index))
            found.add(index)
    _count(tally, scenario, found, false)
    tally.first_right = int(
        bool(blamed) and any(named_nodes(blamed[0], scenario) & guilty for guilty in scenario.guilty)
    )
    return tally


def _start(scenario: Scenario, index: int) -> int:
    return scenario.faults[index].start_step + scenario.first_step


def _tally(scenario: Scenario, seconds: float) -> Tally:
    tally = Tally(rank_steps=scenario.rank_steps, seconds=seconds, faulty=int(bool(scenario.guilty)))
    if scenario.guilty:
        tally.hours_faulty = scenario.hours
    else:
        tally.hours_clean = scenario.hours
    return tally


def _count(tally: Tally, scenario: Scenario, found: set[int], false: int) -> None:
    tally.hits, tally.missed = len(found), len(scenario.guilty) - len(found)
    if scenario.guilty:
        tally.false = false
    else:
        tally.false_clean = false


def judge_baseline(name: str, scenario: Scenario, window: int = 40) -> Tally:
    """Score one baseline: it speaks about a node once, in the first of successive windows that flags it."""
    rows = scenario.frames["rank_steps"]
    table = rows.pivot_table(index="step", columns="rank", values="compute_us").to_numpy()
    places = scenario.frames["placements"].set_index("rank")["node"]
    begin = time.process_time()
    said: dict[str, int] = {}
    for end in range(window, len(table) + 1, window):
        for rank in np.flatnonzero(BASELINES[name](table[:end], window)):
            said.setdefault(str(places.iloc[int(rank)]), end)
    tally = _tally(scenario, time.process_time() - begin)
    found = {i for i, guilty in enumerate(scenario.guilty) if guilty & set(said)}
    everyone = set().union(*scenario.guilty) if scenario.guilty else set()
    _count(tally, scenario, found, len(set(said) - everyone))
    tally.delays = [
        min(said[n] for n in scenario.guilty[i] if n in said) - scenario.faults[i].start_step for i in found
    ]
    tally.first_right = int(bool(said) and min(said, key=lambda node: said[node]) in everyone)
    return tally
