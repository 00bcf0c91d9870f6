"""Flight-recorder dumps: pickle and JSON, names, hostile files."""

from __future__ import annotations

import json
import os
import pickle
import random
from typing import Any

import pytest

from flightwatch.collectors.captures.flight_recorder import parse_dump, rank_of_name, recognise
from flightwatch.collectors.captures.pickle_scan import load_plain
from flightwatch.core.errors import BadRecord
from flightwatch.core.vocabulary import process_group_name


def entry(seq: int, **changes: Any) -> dict[str, Any]:
    return {
        "record_id": seq, "pg_id": 3, "process_group": ("7", "TP"), "collective_seq_id": seq, "p2p_seq_id": 0,
        "profiling_name": "nccl:all_reduce", "time_created_ns": 1_700_000_000_000_000_000 + seq, "input_sizes": [[4]],
        "input_dtypes": ["Float"], "state": "scheduled", "retired": False, "is_p2p": False, "frames": [],
    } | changes  # fmt: skip


def dump(entries: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    config = {
        "7": {"name": "7", "desc": "TP", "ranks": "[4, 5]"},
        "0": {"name": "0", "desc": "default_pg", "ranks": [0, 1, 4, 5]},
    }
    status = {"3": {"last_enqueued_collective": 9, "last_started_collective": -1, "last_completed_collective": 6}}
    return {"version": "2.9", "pg_config": config, "pg_status": status, "entries": entries} | changes


@pytest.mark.parametrize("form", ["pickle2", "pickle4", "json"])
def test_both_forms_give_the_same(form: str) -> None:
    document = dump([entry(7, state="completed", retired=True), entry(8), entry(9)])
    data = json.dumps(document).encode() if form == "json" else pickle.dumps(document, protocol=int(form[-1]))
    assert recognise(data[:65536])
    result = parse_dump(data, 4)
    group = process_group_name("TP", [4, 5])
    assert (result.status, result.reached, result.completed) == ("ok", {group: 9}, {group: 7})
    assert [record.seq for record in result.pending] == [8, 9]
    assert result.members[group] == (4, 5)
    assert result.members[process_group_name("default_pg", [0, 1, 4, 5])] == (0, 1, 4, 5)


def test_gloo_is_judged_by_retired() -> None:
    result = parse_dump(pickle.dumps(dump([entry(7, retired=True), entry(8)])), 4)
    assert [record.seq for record in result.pending] == [8]


def test_send_and_receive_name_global_peers() -> None:
    record = entry(7, profiling_name="nccl:send 0->1", is_p2p=True, p2p_seq_id=55)
    pending = parse_dump(pickle.dumps(dump([record])), 4).pending[0]
    assert (pending.op, pending.peer, pending.seq, pending.is_p2p) == ("send", 5, 55, True)
    received = entry(7, profiling_name="nccl:recv 1<-0", is_p2p=True, p2p_seq_id=55)
    assert parse_dump(pickle.dumps(dump([received])), 5).pending[0].peer == 4


def test_two_groups_of_the_same_ranks_count_apart() -> None:
    config = {"7": {"name": "7", "desc": "TP", "ranks": [4, 5]}, "8": {"name": "8", "desc": "TP", "ranks": [4, 5]}}
    entries = [entry(7), entry(900, process_group=("8", "TP"), pg_id=4)]
    result = parse_dump(pickle.dumps(dump(entries, pg_config=config, pg_status={})), 4)
    assert sorted(result.reached.values()) == [7, 900]


def test_no_entries_is_empty_and_no_config_still_reads() -> None:
    assert parse_dump(pickle.dumps(dump([])), 4).status == "empty"
    bare = parse_dump(pickle.dumps({"entries": [entry(3)], "version": "2.1"}), 0)
    assert bare.reached == {"TP:7": 3}


@pytest.mark.parametrize(
    ("name", "rank"),
    [("_dump_9", 9), ("nccl_trace_rank_118", 118), ("a/b/rank7.json", 7), ("tmp/nccl_trace_rank_0.pkl", 0),
     ("fr-rank-12.pickle", 12), ("12.json", 12), ("node03/trace_5", 5), ("dump", None), ("README.txt", None)],
)  # fmt: skip
def test_rank_comes_from_the_file_name(name: str, rank: int | None) -> None:
    assert rank_of_name(name) == rank


class _Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/never",)


def test_code_in_a_pickle_is_refused() -> None:
    with pytest.raises(BadRecord, match="not plain data"):
        load_plain(pickle.dumps({"entries": [_Evil()]}))


def test_a_huge_memo_index_is_refused_before_loading() -> None:
    with pytest.raises(BadRecord, match="memo entry beyond its size"):
        load_plain(b"\x80\x02]r\xff\xff\xff\x0f.")


@pytest.mark.parametrize(
    "field",
    ["extra_field", "input_sizes", "input_dtypes", "profiling_name", "process_group", "pg_id", "frames", "state"],
)
def test_a_small_file_with_2_to_the_60_leaves_ends_quickly(field: str) -> None:
    tree: list[Any] = [1]
    for _ in range(60):
        tree = [tree, tree]
    for document in (dump([entry(1) | {field: tree}]), dump([entry(1)], pg_config={"7": {"name": tree, "desc": tree}})):
        data = pickle.dumps(document)
        assert len(data) < 2000
        assert parse_dump(data, 0).status == "ok"


def test_cut_and_damaged_files_are_one_clear_error() -> None:
    whole = pickle.dumps(dump([entry(8)]))
    rng = random.Random(7)
    messages = []
    for _ in range(300):
        data = bytearray(whole[: rng.randrange(2, len(whole))])
        for _ in range(rng.randrange(3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            parse_dump(bytes(data), 0)
        except BadRecord as error:
            messages.append(str(error))
    assert len(messages) > 200
    assert all(messages)


def test_json_nested_too_deeply_is_refused() -> None:
    with pytest.raises(BadRecord):
        parse_dump(b'{"entries":' + b"[" * 100_000, 0)


def test_groups_that_old_releases_number_by_rank_are_never_matched_across_ranks() -> None:
    def old(seq: int, group: int, **changes: Any) -> dict[str, Any]:
        made = entry(seq, pg_id=group, seq_id=seq, **changes)
        return {k: v for k, v in made.items() if k not in ("process_group", "collective_seq_id", "p2p_seq_id")} | {
            "time_discovered_started_ns": None
        }

    entries = [old(7, 0), old(9, 3), old(8, 0, profiling_name="nccl:send 0->1", is_p2p=True)]
    data = pickle.dumps({"version": "1.5", "entries": entries})
    assert recognise(data)
    result = parse_dump(data, 4)
    assert [(record.group, record.seq) for record in result.pending] == [
        ("0:0", 7), ("group 3:rank 4", 9), ("group 0:rank 4", 8),
    ]  # fmt: skip
    assert parse_dump(data, 5).pending[1].group == "group 3:rank 5"
