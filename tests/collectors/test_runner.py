from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from flightwatch.collectors.runner import NO_DATA_SECONDS, Runner
from flightwatch.core.clock import ManualClock, SystemClock
from flightwatch.core.errors import NoData
from flightwatch.core.protocols import Row


class Source:
    """A collector that does what the test says."""

    def __init__(self, name: str, interval_seconds: float, act: Callable[[int], Iterable[Row]] | None = None) -> None:
        self.name = name
        self.interval_seconds = interval_seconds
        self.times: list[int] = []
        self.closed = 0
        self._act = act

    def collect(self, now_ms: int) -> Iterable[Row]:
        self.times.append(now_ms)
        return self._act(now_ms) if self._act else [Row("node_samples", {"ts": now_ms, "node": self.name})]

    def close(self) -> None:
        self.closed += 1


class ListSink:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def emit(self, rows: Iterable[Row]) -> None:
        self.rows.extend(rows)

    def flush(self, timeout_seconds: float) -> bool:
        return True

    def events(self) -> list[str]:
        return [str(row.values["code"]) for row in self.rows if row.table == "events"]


def _raise(error: Exception) -> Callable[[int], Iterable[Row]]:
    def act(now_ms: int) -> Iterable[Row]:
        raise error

    return act


def _runner(clock: Any, sink: ListSink, *sources: Source, **options: Any) -> Runner:
    return Runner(sources, sink, clock, options.pop("stuck_after_seconds", 10.0), **options)


def _run(runner: Runner, clock: ManualClock, seconds: float) -> None:
    """Run the schedule until `seconds` of simulated time have passed."""
    end_s = clock.monotonic_s() + seconds
    while True:
        wait_s = runner.run_due()
        if clock.monotonic_s() + wait_s >= end_s:
            clock.advance(end_s - clock.monotonic_s())
            return
        clock.advance(max(wait_s, 0.001))


def test_each_source_is_called_at_its_interval_without_drift() -> None:
    clock, sink = ManualClock(0), ListSink()
    fast = Source("fast", 1.0, lambda now_ms: clock.advance(0.03) or [])  # type: ignore[func-returns-value]
    slow = Source("slow", 5.0)
    runner = _runner(clock, sink, fast, slow)
    _run(runner, clock, 60.5)
    assert len(fast.times) == 61
    assert [round(moment / 1000) for moment in fast.times] == list(range(61))
    assert len(slow.times) == 13
    assert runner.slots[0].counts.skipped == 0


def test_a_late_round_skips_what_it_missed_and_keeps_the_grid() -> None:
    clock, sink = ManualClock(0), ListSink()
    source = Source("s", 1.0)
    runner = _runner(clock, sink, source)
    runner.run_due()
    clock.advance(4.3)
    runner.run_due()
    assert runner.run_due() == pytest.approx(0.7)
    assert runner.slots[0].counts.success == 2
    assert runner.slots[0].counts.skipped == 3


def test_the_wall_clock_going_back_changes_no_schedule_and_is_said() -> None:
    clock, sink = ManualClock(1_000_000), ListSink()
    source = Source("s", 1.0)
    runner = _runner(clock, sink, source)
    runner.run_due()
    clock.set_wall_ms(400_000)
    _run(runner, clock, 2.5)
    assert len(source.times) == 3
    assert sink.events() == ["agent:clock_step"]
    event = next(row for row in sink.rows if row.table == "events").values
    assert event["message"] == "the wall clock was set back by 600.0 s"
    assert event["severity"] == "warning"


def test_one_failing_source_backs_off_with_one_event_and_hurts_no_other() -> None:
    clock, sink = ManualClock(0), ListSink()
    broken, good = Source("broken", 1.0, _raise(RuntimeError("no answer"))), Source("good", 1.0)
    runner = _runner(clock, sink, broken, good)
    _run(runner, clock, 100.0)
    assert len(good.times) == 100
    gaps = [(after - before) / 1000 for before, after in zip(broken.times, broken.times[1:], strict=False)]
    assert gaps == pytest.approx([2, 4, 8, 16, 32], abs=0.01)
    assert sink.events() == ["agent:collector_failed"]
    assert (runner.slots[0].counts.failure, runner.slots[0].error) == (6, "no answer")


def test_backoff_has_an_end_and_a_recovery_is_said() -> None:
    clock, sink = ManualClock(0), ListSink()
    state = {"broken": True}

    def act(now_ms: int) -> Iterable[Row]:
        if state["broken"]:
            raise OSError("gone")
        return []

    source = Source("s", 1.0, act)
    runner = _runner(clock, sink, source)
    _run(runner, clock, 2000.0)
    gaps = [after - before for before, after in zip(source.times, source.times[1:], strict=False)]
    assert max(gaps) == 300_000
    state["broken"] = False
    _run(runner, clock, 400.0)
    assert sink.events() == ["agent:collector_failed", "agent:collector_recovered"]
    assert runner.slots[0].failures == 0


def test_absent_hardware_is_counted_apart_and_looked_for_again() -> None:
    clock, sink = ManualClock(0), ListSink()
    source = Source("s", 1.0, _raise(NoData("no such card")))
    runner = _runner(clock, sink, source)
    _run(runner, clock, 2 * NO_DATA_SECONDS + 1)
    assert (runner.slots[0].counts.no_data, runner.slots[0].counts.failure, sink.rows) == (3, 0, [])
    assert runner.slots[0].error == "no such card"


def test_a_generator_that_fails_half_way_sends_nothing_of_that_call() -> None:
    clock, sink = ManualClock(0), ListSink()

    def act(now_ms: int) -> Iterable[Row]:
        yield Row("node_samples", {"ts": now_ms})
        raise ValueError("half")

    _runner(clock, sink, Source("s", 1.0, act)).run_due()
    assert [row.table for row in sink.rows] == ["events"]


def test_a_slow_source_gets_its_own_thread_from_then_on() -> None:
    clock, sink, started = ManualClock(0), ListSink(), []
    source = Source("s", 1.0, lambda now_ms: clock.advance(0.8) or [])  # type: ignore[func-returns-value]
    runner = _runner(clock, sink, source, start_thread=lambda work, name: started.append((work, name)))
    runner.run_due()
    assert started == []
    clock.advance(0.2)
    runner.run_due()
    assert [name for _, name in started] == ["collect-s"]
    clock.advance(5)
    runner.run_due()
    assert len(started) == 1, "one outstanding call a source"
    started[0][0]()
    assert len(source.times) == 2


def test_a_stuck_call_is_said_once_and_a_new_worker_takes_over() -> None:
    clock, sink, started = ManualClock(0), ListSink(), []
    released = threading.Event()
    entered = threading.Event()

    def act(now_ms: int) -> Iterable[Row]:
        entered.set()
        released.wait(300)
        return [Row("node_samples", {"ts": now_ms})]

    stuck, good = Source("stuck", 1.0, act), Source("good", 1.0)
    runner = _runner(clock, sink, stuck, good, start_thread=lambda work, name: started.append(work))
    thread = threading.Thread(target=runner.run_due)
    thread.start()
    assert entered.wait(300)
    runner.watch()
    assert sink.events() == []
    clock.advance(11)
    runner.watch()
    runner.watch()
    assert sink.events() == ["agent:collector_stuck"]
    assert len(started) == 1, "a replacement worker"
    runner.run_due()
    assert len(good.times) == 1
    released.set()
    thread.join(300)
    assert len(good.times) == 1, "the replaced worker goes no further"
    assert runner.slots[0].counts.stuck == 1
    assert runner.slots[0].running_since is None


def test_a_real_worker_collects_and_stops() -> None:
    sink, collected = ListSink(), threading.Event()

    def act(now_ms: int) -> Iterable[Row]:
        collected.set()
        return [Row("node_samples", {"ts": now_ms})]

    source = Source("s", 0.5, act)
    runner = _runner(SystemClock(), sink, source)
    runner.start()
    assert collected.wait(300)
    runner.stop(20)
    assert source.closed == 1
    calls = len(source.times)
    assert runner.run_due() == 0.0
    assert len(source.times) == calls
    assert runner.last_collected_ms is not None


def test_a_source_that_cannot_close_keeps_no_other_from_it(caplog: pytest.LogCaptureFixture) -> None:
    class Bad(Source):
        def close(self) -> None:
            raise RuntimeError("no")

    good = Source("good", 1.0)
    _runner(ManualClock(0), ListSink(), Bad("bad", 1.0), good).stop(1)
    assert good.closed == 1
    assert "bad did not close" in caplog.text


def test_collect_once_yields_rows_and_says_failures_as_events() -> None:
    sink = ListSink()
    runner = _runner(ManualClock(7), sink, Source("a", 1.0), Source("b", 1.0, _raise(OSError("x"))))
    rows = list(runner.collect_once())
    assert [row.table for row in rows] == ["node_samples", "events"]
    assert sink.rows == []
