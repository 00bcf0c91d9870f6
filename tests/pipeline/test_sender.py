from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import cast

import pytest

from flightwatch.core.clock import ManualClock
from flightwatch.core.errors import ConfigError
from flightwatch.core.protocols import Row
from flightwatch.core.vocabulary import Lane
from flightwatch.pipeline.bus.base import Bus
from flightwatch.pipeline.sender import Sender
from flightwatch.pipeline.spool import Spool
from tests.pipeline.sender_kit import ScriptedBus, Stage, encode_json, event, make_sender, sample, stage

__all__ = ["stage"]


def test_a_batch_closes_after_two_seconds(stage: Stage) -> None:
    stage.sender.emit([sample(1), sample(2)])
    stage.run(1.9)
    assert stage.bus.stored == []
    stage.run(0.2)
    assert stage.bus.rows() == [1, 2]
    topic, key, _ = stage.bus.stored[0]
    assert (topic, key) == ("flightwatch.rows.samples", "n1")


def test_a_full_batch_does_not_wait(stage: Stage) -> None:
    def wide(count: int) -> list[Row]:
        return [sample(number, pad="x" * 100) for number in range(count)]

    stage.sender.emit(wide(9_999))
    stage.sender.step()
    assert stage.bus.stored == []
    stage.sender.emit(wide(1))
    stage.sender.step()
    assert len(stage.bus.stored) == 1
    # By now the size of a cell is known, so fewer rows fill a batch.
    stage.sender.emit(wide(9_500))
    stage.sender.step()
    assert len(stage.bus.stored) == 2


@pytest.mark.parametrize("severity", ["warning", "error", "critical"])
def test_urgent_events_leave_within_100_ms(stage: Stage, severity: str) -> None:
    stage.sender.emit([event("info", 1)])
    stage.run(0.5)
    assert stage.bus.stored == []
    stage.sender.emit([event(severity, 2)])
    stage.run(0.1, 0.01)
    assert [len(batch["rows"]) for batch in stage.bus.batches("events")] == [2]


def test_each_lane_numbers_its_batches_without_gaps(stage: Stage) -> None:
    for number in range(5):
        stage.sender.emit([sample(number), event("info", number)])
        stage.run(2.1)
    for lane in ("samples", "events"):
        batches = stage.bus.batches(lane)
        assert [batch["seq"] for batch in batches] == list(range(1, len(batches) + 1))
        assert len({(batch["agent"], batch["spool"]) for batch in batches}) == 1


def test_only_one_batch_of_a_lane_is_on_its_way(stage: Stage) -> None:
    stage.bus.mode = "hold"
    for number in range(3):
        stage.sender.emit([sample(number)])
        stage.run(2.1)
    assert len(stage.bus.held) == 1
    for _ in range(3):
        stage.bus.answer()
        stage.run(0.1)
    assert stage.bus.rows() == [0, 1, 2]


def test_after_a_failure_the_lane_goes_back_to_the_first_unacknowledged_batch(stage: Stage) -> None:
    stage.bus.mode = "fail"
    for number in range(4):
        stage.sender.emit([sample(number)])
        stage.run(2.1)
    assert stage.bus.stored == []
    stage.bus.mode = "ack"
    stage.run(60)
    assert stage.bus.rows() == [0, 1, 2, 3]
    assert [batch["seq"] for batch in stage.bus.batches()][:4] == [1, 2, 3, 4]


def test_a_lost_acknowledgement_sends_the_identical_batch_again(stage: Stage) -> None:
    stage.bus.mode = "hold"
    stage.sender.emit([sample(1)])
    stage.run(2.1)
    stage.bus.answer(lose_ack=True)
    stage.bus.mode = "ack"
    stage.run(3)
    sent = [value for topic, _, value in stage.bus.stored if topic.endswith("samples")]
    assert len(sent) >= 2
    assert sent[0] == sent[1]


def test_retries_back_off_and_differ_between_agents(tmp_path: Path) -> None:
    times: list[list[float]] = []
    for seed in (1, 2):
        clock, bus = ManualClock(), ScriptedBus("fail")
        spool = Spool(tmp_path / str(seed))
        sender = Sender(cast(Bus, bus), spool, encode_json, "n", "c", clock, seed=seed)
        sender.emit([sample(1)])
        attempts: list[float] = []
        for _ in range(3000):
            clock.advance(0.1)
            before = len(bus.offered)
            sender.step()
            if len(bus.offered) > before:
                attempts.append(clock.monotonic_s())
        times.append(attempts)
        spool.close(clean=False)
    assert 8 <= len(times[0]) <= 20
    gaps = [later - earlier for earlier, later in zip(times[0], times[0][1:], strict=False)]
    assert max(gaps) <= 45.1
    assert gaps[-1] > gaps[0]
    assert times[0] != times[1]


def test_what_the_bus_does_not_take_goes_to_disk_and_drains_in_order(stage: Stage) -> None:
    stage.bus.mode = "raise"
    stage.bus.error = ConfigError("there is no topic")
    for number in range(20):
        stage.sender.emit([sample(number)])
        stage.run(2.1, 0.7)
    spool = stage.sender._spool
    assert spool.backlog(Lane.SAMPLES) > 10
    stage.bus.mode = "ack"
    stage.run(60)
    assert spool.backlog(Lane.SAMPLES) == 0
    assert spool.size_bytes(Lane.SAMPLES) == 0
    assert stage.bus.rows() == list(range(20))


def test_memory_beyond_its_budget_goes_to_disk_at_once(tmp_path: Path) -> None:
    clock, bus = ManualClock(), ScriptedBus("hold")
    sender = make_sender(tmp_path / "spool", clock, bus, memory_bytes=100_000, batch_bytes=20_000)
    for number in range(300):
        sender.emit([sample(number, pad="y" * 2_000)])
        clock.advance(0.1)
        sender.step()
    held = sum(queue.memory_bytes for queue in sender._queues.values())
    assert held <= 100_000
    assert sender._spool.backlog(Lane.SAMPLES) > 0
    sender._spool.close(clean=False)


def test_events_drain_first_and_the_backlog_is_rate_limited(tmp_path: Path) -> None:
    clock, bus = ManualClock(), ScriptedBus("fail")
    stage = Stage(tmp_path / "s", clock, bus, make_sender(tmp_path / "s", clock, bus, drain_bytes_per_second=20_000))
    for number in range(20):
        stage.sender.emit([sample(number, pad="z" * 9_000), event("info", number)])
        stage.run(2.1, 0.7)
    bus.mode = "ack"
    bus.offered.clear()
    while not bus.offered:
        stage.run(0.1)
    assert bus.offered[0][0].endswith("events")
    started = clock.monotonic_s()
    while len(bus.rows()) < 20:
        stage.run(0.1)
    seconds = clock.monotonic_s() - started
    size = sum(len(value) for topic, value in bus.offered if topic.endswith("samples"))
    assert bus.rows() == list(range(20))
    # A burst of one second and the last batch pass without waiting.
    assert size / 20_000 - 1.6 <= seconds <= size / 20_000 + 2
    stage.sender._spool.close(clean=False)


def test_a_stalled_bus_is_asked_again_and_a_late_answer_changes_nothing(stage: Stage) -> None:
    stage.bus.mode = "hold"
    stage.sender.emit([sample(1)])
    stage.run(2.1)
    late = list(stage.bus.held)
    stage.bus.held.clear()
    stage.bus.mode = "ack"
    stage.run(182, 1)
    stage.run(2, 0.1)
    assert stage.bus.rows() == [1]
    for *_, future in late:
        future.cancel()
    stage.sender.emit([sample(2)])
    stage.run(3)
    assert stage.bus.rows() == [1, 2]


def test_a_batch_too_large_for_one_message_is_split(tmp_path: Path) -> None:
    clock, bus = ManualClock(), ScriptedBus()
    stage = Stage(tmp_path / "s", clock, bus, make_sender(tmp_path / "s", clock, bus, most_bytes=600))
    rows = [sample(number) for number in range(16)]
    rows.insert(7, sample(99, pad="x" * 1000))
    stage.sender.emit(rows)
    stage.run(4)
    assert bus.rows() == list(range(16))
    assert [batch["seq"] for batch in bus.batches()] == list(range(1, len(bus.batches()) + 1))
    assert stage.sender.state().dropped_rows == 1
    stage.sender._spool.close(clean=False)


def test_an_unknown_table_is_counted_and_the_rest_goes(stage: Stage) -> None:
    stage.sender.emit([Row("no_such_table", {}), Row("findings", {}), sample(1)])
    stage.run(2.1)
    assert stage.bus.rows() == [1]
    assert stage.sender.state().dropped_rows == 2


def test_a_clean_stop_continues_the_numbers(stage: Stage) -> None:
    stage.sender.emit([sample(1)])
    stage.run(2.1)
    stage.sender.emit([sample(2)])
    stage.sender.stop()
    stage.again().emit([sample(3)])
    stage.run(2.1)
    batches = stage.bus.batches()
    assert [batch["seq"] for batch in batches] == list(range(1, len(batches) + 1))
    assert len({batch["spool"] for batch in batches}) == 1
    assert stage.bus.rows() == [1, 2, 3]


def test_a_stop_with_the_bus_away_keeps_everything(stage: Stage) -> None:
    stage.bus.mode = "raise"
    stage.sender.emit([sample(1), event("error")])
    stage.sender.stop(2.0)
    stage.bus.mode = "ack"
    stage.again()
    stage.run(5)
    assert stage.bus.rows() == [1]
    assert len(stage.bus.batches("events")) == 1


def test_after_a_kill_a_new_spool_id_starts_and_the_backlog_is_sent(stage: Stage) -> None:
    stage.bus.mode = "fail"
    stage.sender.emit([sample(1)])
    stage.run(9)
    assert stage.sender._spool.backlog(Lane.SAMPLES) >= 1
    os.close(stage.sender._spool._lock)  # As the kernel does when the process dies; nothing else is written.
    stage.bus.mode = "ack"
    stage.again().emit([sample(2)])
    stage.run(5)
    assert stage.bus.rows() == [1, 2]
    spools = {str(batch["spool"]): [] for batch in stage.bus.batches()}  # type: ignore[var-annotated]
    for batch in stage.bus.batches():
        spools[str(batch["spool"])].append(batch["seq"])
    assert len(spools) == 2
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in spools.values())


def test_killed_between_acknowledgement_and_trim_the_same_batch_comes_again(stage: Stage) -> None:
    stage.bus.mode = "fail"
    stage.sender.emit([sample(1)])
    stage.run(9)
    stage.bus.mode = "hold"
    stage.run(40)
    stage.bus.answer()  # Stored and acknowledged, but the sender never gets to its next step.
    os.close(stage.sender._spool._lock)
    first = [value for topic, _, value in stage.bus.stored if topic.endswith("samples")]
    stage.bus.mode = "ack"
    stage.again()
    stage.run(5)
    again = [value for topic, _, value in stage.bus.stored if topic.endswith("samples")]
    assert again[len(first)] == first[0]


def test_flush_returns_when_the_bus_has_everything(stage: Stage) -> None:
    stage.sender.emit([sample(1)])
    assert stage.sender.flush(1.0)
    assert stage.bus.rows() == [1]


def test_the_heartbeat_tells_what_waits(stage: Stage) -> None:
    assert stage.sender.state().last_sent_ms is None
    stage.bus.mode = "fail"
    stage.sender.emit([sample(1)])
    stage.run(2.1)
    made = stage.sender.state().oldest_waiting_ms
    assert made is not None
    stage.run(60)
    assert stage.sender.state().oldest_waiting_ms == made
    stage.bus.mode = "ack"
    stage.run(60)
    state = stage.sender.state()
    assert state.oldest_waiting_ms is None or state.oldest_waiting_ms > made
    assert state.last_sent_ms is not None


def test_a_clock_that_jumps_back_changes_neither_order_nor_waiting(stage: Stage) -> None:
    stage.sender.emit([sample(1)])
    stage.run(1)
    stage.clock.set_wall_ms(1_000_000)
    stage.run(1.1)
    stage.sender.emit([sample(2)])
    stage.run(2.1)
    assert stage.bus.rows() == [1, 2]


def test_the_thread_sends_and_stops(tmp_path: Path) -> None:
    bus = ScriptedBus()
    sender = Sender(cast(Bus, bus), Spool(tmp_path / "spool"), encode_json, "n", "c")
    sender.start()
    sender.emit([event("critical")])
    assert bus.arrived.wait(300)
    sender.emit([sample(1)])
    sender.stop()
    assert bus.rows() == [1]
    assert "sender" not in {thread.name for thread in threading.enumerate()}
