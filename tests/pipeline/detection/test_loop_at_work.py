"""The live loop: late rows, settings changed while it runs, blindness, shards of several processes, escalation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from flightwatch.core.clock import ManualClock, SystemClock
from flightwatch.core.errors import TransientError
from flightwatch.core.vocabulary import FindingKind, FindingScope, FindingState, Severity
from flightwatch.detectors.contract import Detector, Finding, Frames, Needs
from flightwatch.detectors.nonfinite import NonfiniteDetector
from flightwatch.pipeline.control.database import Control, open_control
from flightwatch.pipeline.control.detection import DetectorSettings
from flightwatch.pipeline.control.settings import ControlSettings
from flightwatch.pipeline.detection.loop import DetectionLoop
from flightwatch.pipeline.detection.settings import DetectSettings
from flightwatch.pipeline.detection.shards import Membership, all_shards
from flightwatch.pipeline.store.client import Store, open_store
from flightwatch.pipeline.store.frames import insert_frame
from flightwatch.pipeline.store.migrate import migrate
from flightwatch.pipeline.store.settings import StoreSettings

NOW_MS = SystemClock().now_ms()


class Hot:
    """States one finding per node hotter than its limit."""

    name, version = "hot", "1"
    needs = Needs({"device_samples": ("ts", "node", "temp_c")}, seconds=600)

    def __init__(self, limit: float = 80.0, name: str = "hot") -> None:
        self.limit, self.name = limit, name
        self.seen: list[float] = []

    def score(self, frames: Frames) -> list[Finding]:
        rows = frames.get("device_samples", pd.DataFrame())
        if rows.empty:
            return []
        self.seen.append(float(rows["ts"].min()))
        hot = rows[rows["temp_c"] > self.limit].drop_duplicates("node")
        return [
            Finding(self.name, "1", FindingKind.OVERHEAT, FindingScope.NODE, f"{row.node} is hot", 1.0, Severity.P3,
                    NOW_MS, node=str(row.node))
            for row in hot.itertuples()
        ]  # fmt: skip


class Slow:
    """States one finding per job; reads what the loop gives to those who only ask when steps were."""

    name, version = "slow_job", "1"
    needs = Needs({"rank_steps": ("ts", "job", "step_us")}, steps=10)

    def score(self, frames: Frames) -> list[Finding]:
        rows = frames.get("rank_steps", pd.DataFrame())
        return [
            Finding("slow_job", "1", FindingKind.SLOW, FindingScope.JOB, f"{job} is slow", 1.0, Severity.P3, NOW_MS,
                    job=str(job))
            for job in sorted(set(rows["job"].astype(object)) if len(rows) else set())
        ]  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    opened = open_store(f"chdb://{tmp_path_factory.mktemp('store') / 'data'}", StoreSettings())
    migrate(opened)
    yield opened
    opened.close()


@pytest.fixture
def empty(store: Store) -> Store:
    for table in ("device_samples", "rank_steps", "findings"):
        store.command(f"TRUNCATE TABLE flightwatch.{table}")
    return store


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    opened = open_control(f"sqlite:///{tmp_path / 'control.db'}", ControlSettings(), ManualClock(NOW_MS))
    yield opened
    opened.close()


def sample(store: Store, node: str, temp_c: float, ago_s: float, arrived_ago_s: float | None = None) -> None:
    arrived = NOW_MS - 1000.0 * (ago_s if arrived_ago_s is None else arrived_ago_s)
    row = {"ts": NOW_MS - ago_s * 1000, "received_at": arrived, "cluster": "c", "node": node, "device": 0.0,
           "temp_c": temp_c, "vendor": "v"}  # fmt: skip
    insert_frame(store, "device_samples", pd.DataFrame([row]), f"{node}:{temp_c}:{ago_s}:{arrived_ago_s}")


def loop_of(
    store: Store, said: list[Finding], detectors: Sequence[Detector], **more: object
) -> tuple[DetectionLoop, ManualClock]:
    clock = ManualClock(NOW_MS)
    settings = more.pop("settings", DetectSettings(history_seconds=600, fleet_seconds=0))
    return DetectionLoop(store, said.extend, clock, settings, detectors=detectors, **more), clock  # type: ignore[arg-type]


def test_rows_that_come_late_are_judged_with_their_window(empty: Store) -> None:
    said: list[Finding] = []
    hot = Hot()
    loop, _ = loop_of(empty, said, [hot])
    sample(empty, "a", 50.0, 5)
    loop.cycle()
    assert said == []
    sample(empty, "late", 95.0, 7200, arrived_ago_s=1)
    loop.cycle()
    assert [one.node for one in said] == ["late"]
    assert hot.seen[-1] == NOW_MS - 7_200_000
    assert loop.cycle().until_ms is None


def test_detectors_change_while_the_loop_runs(empty: Store, control: Control) -> None:
    said: list[Finding] = []
    changes = DetectorSettings(control)
    loop, _ = loop_of(empty, said, [Hot()], changed=changes.all)
    changes.set_mode("hot", "off", "ann")
    sample(empty, "a", 95.0, 5)
    loop.cycle()
    assert said == []
    changes.set_mode("hot", "shadow", "ann")
    loop.cycle()
    assert said == []
    changes.set_mode("hot", "on", "ann")
    sample(empty, "b", 96.0, 4)
    assert loop.cycle().failures == {}
    assert sorted(str(one.node) for one in said) == ["a", "b"]


def test_absence_is_not_judged_while_blind(empty: Store) -> None:
    said: list[Finding] = []
    lag = 500.0
    absent, other = Hot(name="dead_node"), Hot(name="other")
    loop, clock = loop_of(empty, said, [absent, other], behind_s=lambda: lag)
    sample(empty, "a", 95.0, 5)
    assert loop.cycle().blind
    assert [(one.kind.value, one.detector) for one in said] == [("blind", "pipeline"), ("overheat", "other")]
    lag = 0.0
    sample(empty, "a", 95.0, 4)
    assert loop.cycle().blind
    clock.advance(121)
    sample(empty, "a", 95.0, -120)
    assert not loop.cycle().blind
    assert [(one.state.value, one.detector) for one in said[2:]] == [("cleared", "pipeline"), ("raised", "dead_node")]


def test_silence_makes_blind_without_news(empty: Store) -> None:
    said: list[Finding] = []
    loop, clock = loop_of(empty, said, [Hot()])
    sample(empty, "a", 50.0, 5)
    loop.cycle()
    clock.advance(200)
    assert loop.cycle().blind
    assert [one.kind for one in said] == [FindingKind.BLIND]
    assert not loop.cycle().said


def test_two_processes_say_everything_once(empty: Store, control: Control) -> None:
    rows = [{"ts": NOW_MS - 5000.0, "cluster": "c", "node": "n", "job": f"job{i}", "run": "r", "step": 1.0, "rank": 0.0,
             "step_us": 1.0} for i in range(20)]  # fmt: skip
    insert_frame(empty, "rank_steps", pd.DataFrame(rows), "jobs")
    sample(empty, "a", 95.0, 5)
    said: dict[str, list[Finding]] = {"one": [], "two": []}
    members = {name: Membership(control.leases, name, 60, all_shards(4)) for name in said}
    for member in (*members.values(), *members.values()):
        member.shards()
    loops = {name: loop_of(empty, said[name], [Hot(), Slow()], membership=members[name])[0] for name in said}
    for loop in (*loops.values(), *loops.values()):
        assert loop.cycle().failures == {}
    both = [str(one.job or one.node) for one in (*said["one"], *said["two"])]
    assert sorted(both) == sorted(["a", *(f"job{i}" for i in range(20))])
    assert said["one"]
    assert said["two"]


def test_escalation_gets_what_was_published_and_its_frames(empty: Store) -> None:
    told: list[tuple[list[str | None], list[str]]] = []
    said: list[Finding] = []
    loop, _ = loop_of(
        empty, said, [Hot()], escalate=lambda found, frames: told.append(([f.node for f in found], list(frames)))
    )
    sample(empty, "a", 95.0, 5)
    loop.cycle()
    loop.cycle()
    assert told == [(["a"], ["device_samples"])]


def test_only_rows_that_detectors_read_wake_the_loop(empty: Store) -> None:
    loop, _ = loop_of(empty, [], [Hot()])
    loop.notice({"audit": 3, "rank_steps": 5})
    assert not loop.wake.is_set()
    loop.notice({"device_samples": 1})
    assert loop.wake.is_set()


def test_a_shard_that_could_not_be_judged_is_judged_again(empty: Store) -> None:
    said: list[Finding] = []
    away = True

    def publish(findings: Sequence[Finding]) -> None:
        if away:
            raise TransientError("the bus is away")
        said.extend(findings)

    loop = DetectionLoop(empty, publish, ManualClock(NOW_MS), DetectSettings(fleet_seconds=0), detectors=[Hot()])
    sample(empty, "a", 95.0, 5)
    with pytest.raises(TransientError):
        loop.cycle()
    away = False
    loop.cycle()
    assert [one.node for one in said] == ["a"]


def test_values_of_ranks_reach_their_detectors(empty: Store) -> None:
    rows = [
        {"ts": NOW_MS - 60_000.0 + 1000 * step, "cluster": "c", "node": f"n{rank}", "job": "j", "run": "r",
         "step": float(step), "rank": float(rank), "device": 0.0, "step_us": 1e6, "compute_us": 5e5,
         "loss": float("nan") if step >= 40 and rank == 1 else 2.0,
         "nonfinite_count": 1.0 if step >= 40 and rank == 1 else 0.0}
        for step in range(50) for rank in range(4)
    ]  # fmt: skip
    insert_frame(empty, "rank_steps", pd.DataFrame(rows), "nonfinite")
    said: list[Finding] = []
    loop, _ = loop_of(empty, said, [NonfiniteDetector()])
    assert loop.cycle().rows >= 200
    assert [(one.kind, one.rank) for one in said] == [(FindingKind.NONFINITE, 1)]


def test_what_an_earlier_process_left_open_is_cleared_when_it_is_over(empty: Store) -> None:
    said: list[Finding] = []
    blind = Finding("pipeline", "1", FindingKind.BLIND, FindingScope.PIPELINE, "blind", 1.0, Severity.P2,
                    NOW_MS, cluster="c")  # fmt: skip
    other = Finding("hot", "1", FindingKind.OVERHEAT, FindingScope.NODE, "b was hot", 1.0, Severity.P3,
                    NOW_MS, cluster="c", node="b")  # fmt: skip
    over = replace(other, node="x", id="", state=FindingState.CLEARED)
    mine = Finding("hot", "1", FindingKind.OVERHEAT, FindingScope.NODE, "a is hot", 2.0, Severity.P3, NOW_MS,
                   cluster="c", node="a", targets=("a",), first_seen_at=NOW_MS - 950_000, evidence={"kelvin": 5.0},
                   state=FindingState.CHANGED)  # fmt: skip
    left = [one.to_row() | {"received_at": one.detected_at} for one in (mine, other, over, blind)]
    insert_frame(empty, "findings", pd.DataFrame(left).astype(object), "left open")
    settings = DetectSettings(history_seconds=600, fleet_seconds=0, clear_after_seconds=60)
    loop, clock = loop_of(empty, said, [Hot()], settings=settings, cluster="c")
    sample(empty, "a", 50.0, 5)
    sample(empty, "b", 95.0, 5)
    loop.cycle()
    clock.advance(61)
    sample(empty, "a", 50.0, -61)
    sample(empty, "b", 95.0, -61)
    loop.cycle()
    told = {(one.kind, one.node, one.state) for one in said}
    # What goes on (b) was said by the earlier process.
    over_now = FindingState.CLEARED
    assert told == {(FindingKind.OVERHEAT, "a", over_now), (FindingKind.BLIND, None, over_now)}
    cleared = next(one for one in said if one.node == "a")
    assert (cleared.id, cleared.first_seen_at, cleared.evidence) == (mine.id, mine.first_seen_at, {"kelvin": 5.0})


class Missing:
    """States at every look that ranks are missing."""

    name, version = "missing", "1"
    needs = Needs({"device_samples": ("ts", "node")}, seconds=600)

    def score(self, frames: Frames) -> list[Finding]:
        return [Finding("missing", "1", FindingKind.COVERAGE, FindingScope.JOB, "3 of 4 ranks report", 1.0,
                        Severity.INFO, NOW_MS, job="j")]  # fmt: skip


def test_missing_ranks_are_said_when_they_stay_missing(empty: Store) -> None:
    said: list[Finding] = []
    loop, clock = loop_of(empty, said, [Missing()])
    for seconds in (0, 30, 61):
        clock.advance(seconds - (clock.now_ms() - NOW_MS) / 1000)
        sample(empty, "a", 50.0, -seconds)
        loop.cycle()
        assert len(said) == (seconds > 60)
