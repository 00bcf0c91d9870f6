"""What the sender cannot keep or deliver is said: holes with their numbers, in the order of what matters least."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from flightwatch.core.clock import ManualClock
from flightwatch.core.errors import BadRecord
from flightwatch.core.protocols import Row
from flightwatch.core.vocabulary import Lane
from tests.pipeline.sender_kit import ScriptedBus, Stage, event, make_sender, sample, stage

__all__ = ["stage"]


def test_flush_falls_back_to_disk_and_says_no_when_that_fails_too(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.bus.mode = "hold"
    stage.sender.emit([sample(1)])
    assert stage.sender.flush(1.0)
    assert stage.sender._spool.backlog(Lane.SAMPLES) == 1
    stage.sender.emit([sample(2)])
    monkeypatch.setattr(stage.sender._spool, "append", _full_disk)
    assert not stage.sender.flush(1.0)


def _full_disk(*_: object) -> None:
    from flightwatch.core.errors import TransientError

    raise TransientError("the disk is full")


def _gaps(bus: ScriptedBus) -> list[dict[str, str]]:
    rows = [values for batch in bus.batches("events") for _, values in batch["rows"]]
    return [values["attrs"] for values in rows if values["code"] == "data_gap"]


def test_a_full_spool_gives_up_ops_first_and_names_every_hole(tmp_path: Path) -> None:
    clock, bus = ManualClock(), ScriptedBus("raise")
    settings = {"rows_bytes": 3_000_000, "segment_bytes": 200_000, "memory_bytes": 200_000}
    stage = Stage(tmp_path / "s", clock, bus, make_sender(tmp_path / "s", clock, bus, **settings))
    ops = functools.partial(Row, "op_timings")
    for number in range(60):
        stage.sender.emit([event("info", number)])
        stage.sender.emit([sample(number, pad="s" * 40_000)])
        stage.sender.emit([ops({"ts": number, "op": "o" * 60_000, "bytes": number})])
        stage.run(2.1, 0.7)
    size = sum(stage.sender._spool.size_bytes(lane) for lane in Lane)
    assert size <= 3_300_000
    bus.mode = "ack"
    stage.run(120)
    gaps = _gaps(bus)
    assert {gap["lane"] for gap in gaps} <= {"ops", "samples"}
    for lane in ("ops", "samples", "events"):
        stored = {int(str(batch["seq"])) for batch in bus.batches(lane)}
        named = {
            seq for gap in gaps if gap["lane"] == lane for seq in range(int(gap["first_seq"]), int(gap["last_seq"]) + 1)
        }
        assert not stored & named
        assert stored | named == set(range(1, max(stored) + 1))
    assert any(gap["lane"] == "ops" for gap in gaps)
    counted = [
        values
        for batch in bus.batches("samples")
        for table, values in batch["rows"]
        if table == "self_metrics" and values["name"] == "dropped_batches_total" and values["instance"] == "ops"
    ]
    lost = sum(int(gap["batches"]) for gap in gaps if gap["lane"] == "ops")
    assert counted[-1]["value"] == lost
    stage.sender._spool.close(clean=False)


def test_a_full_disk_drops_from_memory_in_the_eviction_order_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, bus = ManualClock(), ScriptedBus("raise")
    stage = Stage(tmp_path / "s", clock, bus, make_sender(tmp_path / "s", clock, bus, memory_bytes=200_000))
    monkeypatch.setattr(stage.sender._spool, "append", _full_disk)
    for number in range(30):
        stage.sender.emit([event("error", number), sample(number, pad="p" * 20_000)])
        stage.run(2.1, 0.7)
    assert sum(queue.memory_bytes for queue in stage.sender._queues.values()) <= 200_000
    bus.mode = "ack"
    stage.run(60)
    events = [values for batch in bus.batches("events") for _, values in batch["rows"]]
    assert [values["ts"] for values in events if values["code"] == "xid:79"] == list(range(30))
    gaps = _gaps(bus)
    assert {gap["lane"] for gap in gaps} == {"samples"}
    kept = len([number for number in bus.rows() if isinstance(number, int)])
    assert kept < 30
    stage.sender._spool.close(clean=False)


def test_a_batch_the_bus_refuses_for_good_is_reported_as_a_hole(stage: Stage) -> None:
    stage.bus.mode, stage.bus.error = "fail", BadRecord("above max.message.bytes")
    stage.sender.emit([sample(1)])
    stage.run(2.1)
    stage.bus.mode = "ack"
    stage.sender.emit([sample(2)])
    stage.run(3)
    assert stage.bus.rows() == [2]
    gap = _gaps(stage.bus)[0]
    assert (gap["lane"], gap["first_seq"], gap["last_seq"], gap["rows"]) == ("samples", "1", "1", "1")
    assert "max.message.bytes" in gap["reason"]


def test_a_stop_that_cannot_keep_everything_is_not_clean(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.bus.mode = "raise"
    before = stage.sender._spool.spool_id
    monkeypatch.setattr(stage.sender._spool, "append", _full_disk)
    stage.sender.emit([sample(1)])
    stage.sender.stop(0.5)
    assert stage.again()._spool.spool_id != before
