"""Plans: equal messages give equal blocks under equal tokens, and blocks end between messages."""

from __future__ import annotations

import pytest

from flightwatch.core.protocols import Row
from flightwatch.pipeline.batch import Batch, BatchHeader
from flightwatch.pipeline.bus.base import Message, Partition
from flightwatch.pipeline.codec import encode
from flightwatch.pipeline.codec.read import LaneKey
from flightwatch.pipeline.ingest import plan as plans
from flightwatch.pipeline.ingest.plan import Plan, Planner
from flightwatch.pipeline.ingest.ranges import Hole, Range

NOW_MS = 1_760_000_000_000
PLACE = Partition("flightwatch.rows.samples", 2)
KEY = LaneKey("a", "s", "samples")


def message(offset: int, seq: int, rows: int = 4, ts_ms: int = NOW_MS) -> Message:
    header = BatchHeader("a", "s", "samples", seq, "n1", "c1", NOW_MS, "0.1.0")
    batch = [
        Row("device_samples", {"ts": ts_ms, "device": d, "vendor": "nvidia", "temp_c": 1.0 * seq}) for d in range(rows)
    ]
    return Message(PLACE, offset, "n1", encode(Batch(header, batch)), NOW_MS + 5)


def build(messages: list[Message], known: dict[LaneKey, int] | None = None, hole: Hole | None = None) -> Plan:
    rng = Range(PLACE, "log-1", messages[0].offset, messages[-1].offset + 1, hole)
    return Planner(14.0, 300.0, None, frozenset()).build(rng, messages, known or {})


def test_equal_messages_give_equal_blocks_under_equal_tokens() -> None:
    messages = [message(10 + n, n + 1) for n in range(5)]
    first, again = build(messages), build(messages)
    assert [block.token for block in first.blocks] == [block.token for block in again.blocks]
    assert all(a.rows.equals(b.rows) for a, b in zip(first.blocks, again.blocks, strict=True))
    assert first.lanes == {KEY: (5, 14)}


def test_a_token_names_log_place_range_table_and_decoder() -> None:
    (block,) = build([message(10, 1)]).blocks
    assert block.token.startswith("log-1:flightwatch.rows.samples:2:10:11:device_samples:")
    assert block.token.endswith(":v1")


def test_duplicates_and_gaps_depend_only_on_what_was_known() -> None:
    messages = [message(1, 3), message(2, 3), message(3, 2), message(4, 7)]
    plan = build(messages, {KEY: 2})
    assert (plan.duplicates, [(gap.first_seq, gap.last_seq) for gap in plan.gaps]) == (2, [(4, 6)])
    assert plan.rows == {"device_samples": 8, "data_gaps": 1, "events": 1}


def test_blocks_end_between_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "MAX_BLOCK_ROWS", 10)
    plan = build([message(n, n + 1) for n in range(7)])
    assert [block.rows.num_rows for block in plan.blocks] == [8, 8, 8, 4]
    assert len({block.token for block in plan.blocks}) == 4
    for block in plan.blocks:
        offsets = block.rows.column("src_offset").to_pylist()
        assert all(offsets.count(offset) == 4 for offset in offsets)


def test_a_message_larger_than_a_block_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "MAX_BLOCK_ROWS", 10)
    plan = build([message(0, 1, rows=25), message(1, 2)])
    assert [block.rows.num_rows for block in plan.blocks] == [25, 4]


def test_a_hole_before_the_range_is_told_with_it() -> None:
    plan = build([message(9, 1)], hole=Hole(4, 9, "retention"))
    gaps = next(block.rows for block in plan.blocks if block.table == "data_gaps").to_pylist()
    assert [(gap["batches"], gap["src_offset"], gap["first_seq"]) for gap in gaps] == [(5, 9, None)]
    assert "from offset 4 to 9" in gaps[0]["reason"]


@pytest.mark.parametrize("reason", ["damaged", "recreated"])
def test_the_size_of_a_hole_in_a_log_that_is_not_whole_is_unknown(reason: str) -> None:
    plan = build([message(1_000_000_009, 1)], hole=Hole(4, 1_000_000_009, reason))
    blocks = {block.table: block.rows.to_pylist() for block in plan.blocks}
    assert blocks["data_gaps"][0]["batches"] is None
    assert "an unknown number of batches are missing" in blocks["events"][0]["message"]


def test_days_of_a_block_are_counted() -> None:
    day_ms = 86_400_000
    start = NOW_MS // (8 * day_ms) * 8 * day_ms
    plan = build([message(n, n + 1, ts_ms=start - n * day_ms - 1) for n in range(3)])
    assert sum(block.days for block in plan.blocks) == 3
