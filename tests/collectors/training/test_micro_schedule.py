"""When micro-traces are due, what they cost, and what becomes of one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from flightwatch.collectors.profiler.broker import ProfilerBroker
from flightwatch.collectors.profiler.processes import Process
from flightwatch.collectors.profiler.requests import ProfileRequest, RankJob
from flightwatch.collectors.training_micro import MOST_OPS, MicroTraces
from flightwatch.collectors.training_micro_schedule import BEHIND, LEAD_SECONDS, MicroSchedule
from flightwatch.collectors.training_micro_settings import MicroTraceSettings
from flightwatch.core.clock import ManualClock
from flightwatch.core.protocols import Row, Value

STEP_US = 1_000_000.0


def run_steps(
    schedule: MicroSchedule, first: int, beyond: int, ranks: Iterable[int] = (0, 1), step_us: float = STEP_US,
    slower: dict[int, float] | None = None,
) -> list[tuple[int, int]]:  # fmt: skip
    """Take steps of one second; return (step, start step) of each trace that became due."""
    found = []
    for number in range(first, beyond):
        took_us = (slower or {}).get(number, step_us)
        for rank in ranks:
            schedule.step("j", "0", rank, number, round(number * step_us / 1000), took_us, number * step_us / 1e6)
        now_ms = round((number + 1) * step_us / 1000)
        found += [(number, due.start_step) for due in schedule.due(now_ms, now_ms / 1000)]
    return found


def test_a_trace_is_due_at_multiples_of_a_power_of_two_with_time_to_spare() -> None:
    schedule = MicroSchedule(MicroTraceSettings(minutes=1.0, most_cost_pct=10.0))
    found = run_steps(schedule, 0, 400)
    assert [start for _, start in found] == [64, 128, 192, 256, 320, 384, 448][: len(found)]
    assert len(found) >= 5
    assert all(start - at >= LEAD_SECONDS for at, start in found)


def test_nodes_with_other_step_times_share_the_steps_of_the_longer_cycle() -> None:
    one, other = (MicroSchedule(MicroTraceSettings(minutes=1.05, most_cost_pct=10.0)) for _ in range(2))
    often = {start for _, start in run_steps(one, 0, 600)}
    seldom = {start for _, start in run_steps(other, 0, 600, step_us=0.9 * STEP_US)}
    assert seldom <= often
    assert {start % 128 for start in seldom} == {0}
    assert seldom != set()


def test_the_cycle_stretches_until_its_measured_cost_is_within_the_limit() -> None:
    settings = MicroTraceSettings(minutes=1.0, most_cost_pct=10.0)
    schedule = MicroSchedule(settings)
    run_steps(schedule, 0, 60)
    schedule.traced("j", "0", 64)
    # The trace made its two steps and the one that wrote the file twenty steps longer altogether.
    run_steps(schedule, 60, 64 + settings.steps + BEHIND + 2, slower={64: 3e6, 65: 3e6, 66: 17e6})
    ((job, run, share),) = schedule.measured()
    assert (job, run) == ("j", "0")
    assert share == pytest.approx(20 / 256, rel=0.01)
    assert share <= settings.most_cost_pct / 100
    found = run_steps(schedule, 74, 600)
    assert [start for _, start in found] == [256, 512]


def test_before_anything_was_measured_a_trace_counts_as_four_steps() -> None:
    schedule = MicroSchedule(MicroTraceSettings(minutes=1.0))
    assert [start for _, start in run_steps(schedule, 0, 2100)] == [2048]


def test_a_rank_that_left_is_not_asked() -> None:
    schedule = MicroSchedule(MicroTraceSettings(minutes=1.0, most_cost_pct=10.0))
    run_steps(schedule, 0, 3)
    for number in range(3, 100):
        schedule.step("j", "0", 1, number, number * 1000, STEP_US, float(number))
    (due,) = schedule.due(100_000, 100.0)
    assert (due.ranks, due.start_step) == ((1,), 128)


class Sink:
    def __init__(self) -> None:
        self.rows: list[Row] = []

    def emit(self, rows: Iterable[Row]) -> None:
        self.rows.extend(rows)

    def flush(self, timeout_seconds: float) -> bool:
        return True


class Broker(ProfilerBroker):
    """Takes requests and nothing else."""

    def __init__(self, folder: Path, clock: ManualClock) -> None:
        super().__init__(str(folder), clock, lambda job, name: None, lambda progress: None, "")
        self.asked: list[ProfileRequest] = []

    def begin(self, request: ProfileRequest, attempts: int = 1) -> None:
        self.asked.append(request)


def _micro(tmp_path: Path, sums: dict[str, Any]) -> tuple[MicroTraces, Broker, Sink, ManualClock]:
    clock = ManualClock(1_000_000)
    broker, sink = Broker(tmp_path, clock), Sink()
    settings = MicroTraceSettings(enabled=True, minutes=0.5, most_cost_pct=50.0)
    made = MicroTraces(settings, broker, str(tmp_path / "micro"), sink, clock, lambda path, rank: sums)
    for number in range(12):
        for rank in (4, 5):
            values: dict[str, Value] = {"ts": clock.now_ms(), "job": "j", "run": "0", "rank": rank}
            made.see(Row("rank_steps", {**values, "step": number, "step_us": 1e6}))
        clock.advance(1.0)
    made.tick()
    return made, broker, sink, clock


def _trace(tmp_path: Path, request: ProfileRequest, attempts: int = 1) -> RankJob:
    folder = tmp_path / "traces"
    folder.mkdir()
    (folder / "t.json").write_text(json.dumps({"traceEvents": []}))
    process = Process(1, 1, os.getuid(), "j", "0", 4, True, None)
    return RankJob(request, 4, 0.0, process=process, folder=str(folder), attempts=attempts)


def test_what_is_due_is_asked_of_the_broker_and_its_sums_are_rows(tmp_path: Path) -> None:
    ops = [["aten::mm", "compute", 4, 900.0], ["gloo:all_reduce", "comm", 2, 50.0], ["step", "host", 2, 7.0]]
    ops += [[f"small{number}", "compute", 1, 1.0] for number in range(MOST_OPS)]
    micro, broker, sink, _ = _micro(tmp_path, {"steps": 2, "ops": ops})
    (request,) = broker.asked
    assert (request.job, request.run, request.ranks, request.steps, request.start_step) == ("j", "0", (4, 5), 2, 32)
    micro.take(_trace(tmp_path, request), "t.json")
    rows = [row.values for row in sink.rows if row.table == "op_timings"]
    assert rows[0] == {
        "ts": rows[0]["ts"], "level": "op", "job": "j", "run": "0", "rank": 4, "step": 33, "steps": 2,
        "op": "aten::mm", "kind": "compute", "count": 4, "dur_us": 900.0,
    }  # fmt: skip
    assert (rows[1]["op"], rows[1]["kind"]) == ("gloo:all_reduce", "comm")
    assert len(rows) == MOST_OPS + 1
    assert (rows[-1]["op"], rows[-1]["dur_us"]) == ("other", 2.0)
    assert list((tmp_path / "micro").iterdir()) == []


@pytest.mark.parametrize(("steps", "attempts"), [(7, 1), (2, 2)])
def test_a_trace_of_other_steps_makes_no_rows(steps: int, attempts: int, tmp_path: Path) -> None:
    micro, broker, sink, _ = _micro(tmp_path, {"steps": steps, "ops": [["aten::mm", "compute", 4, 900.0]]})
    micro.take(_trace(tmp_path, broker.asked[0], attempts), "t.json")
    assert [row for row in sink.rows if row.table == "op_timings"] == []
