"""Kineto traces: reading damage and both time bases, self times, difference, flame graph, merge, critical rank."""

from __future__ import annotations

import gzip
import io
import json
import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flightwatch.cli import main
from flightwatch.collectors.captures.kineto import align, flame
from flightwatch.collectors.captures.kineto.ops import RankTrace, Track, difference
from flightwatch.collectors.captures.kineto.stream import TraceReader, open_trace
from flightwatch.core.protocols import Note


def event(
    name: str, ts: float, dur: float, cat: str = "cpu_op", tid: int | str = 1, pid: int | str = 10
) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": {}}


def document(events: list[dict[str, Any]], **meta: Any) -> bytes:
    return json.dumps({"schemaVersion": 1, **meta, "traceEvents": events}).encode()


def read(data: bytes, rank: int | None = None) -> RankTrace:
    return RankTrace("trace.json", rank).read(TraceReader(open_trace(io.BytesIO(data))))


GPU = [
    event("ProfilerStep#5", 0, 1000, "user_annotation"),
    event("aten::linear", 10, 100),
    event("aten::addmm", 20, 60),
    event("gemm", 100, 300, "kernel", 7, 0),
    event("ncclDevKernel_AllReduce_Sum", 450, 200, "kernel", 9, 0),
    event("Memcpy HtoD", 700, 50, "gpu_memcpy", 7, 0),
]


def costs(trace: RankTrace) -> dict[tuple[str, str], float]:
    return {(cost.op, cost.kind): cost.self_us for cost in trace.costs()}


def test_self_times_and_kinds_of_a_device_trace() -> None:
    found = costs(read(document(GPU, distributedInfo={"rank": 3, "world_size": 8})))
    assert found == {
        ("ProfilerStep#5", "host"): 900.0,
        ("aten::linear", "host"): 40.0,
        ("aten::addmm", "host"): 60.0,
        ("gemm", "compute"): 300.0,
        ("ncclDevKernel_AllReduce_Sum", "comm"): 200.0,
        ("Memcpy HtoD", "io"): 50.0,
        ("(device idle)", "idle"): 100.0,
    }


def test_without_kernels_host_ops_are_the_compute() -> None:
    found = costs(read(document([event("aten::mm", 0, 10), event("gloo:all_reduce", 20, 30, "user_annotation")])))
    assert found == {("aten::mm", "compute"): 10.0, ("gloo:all_reduce", "comm"): 30.0}


def test_rank_from_the_trace_then_the_name_never_assumed() -> None:
    assert read(document(GPU, distributedInfo={"rank": 3}), rank=9).rank == 3
    assert read(document(GPU), rank=9).rank == 9
    unknown = read(document(GPU))
    assert unknown.rank is None
    assert unknown.notes[-1].level == "warning"


def test_both_time_bases() -> None:
    relative = read(document([event("a", 5, 1)], baseTimeNanoseconds=1_700_000_000_000_000_000))
    assert relative.base_us == 1_700_000_000_000_000
    assert read(document([event("a", 5, 1)])).base_us == 0


def test_keys_after_the_events_and_the_bare_array_are_read() -> None:
    late = b'{"traceEvents": [' + json.dumps(event("a", 0, 1)).encode() + b'], "distributedInfo": {"rank": 6}}'
    assert read(late).rank == 6
    assert costs(read(json.dumps([event("a", 0, 1)]).encode())) == {("a", "compute"): 1.0}


def test_pids_and_tids_may_be_text_and_events_out_of_order() -> None:
    found = costs(
        read(document([event("child", 5, 2, pid="CPU", tid="t"), event("parent", 0, 10, pid="CPU", tid="t")]))
    )
    assert found == {("parent", "compute"): 8.0, ("child", "compute"): 2.0}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda data: data[:-60], "truncated"),
        (lambda data: data.replace(b'"aten::addmm"', b'"torch\\cuda\\x"'), "not valid JSON"),
        (lambda data: data.replace(b'"tid": 7', b'tid": 7', 1), "not valid JSON"),
        (lambda data: gzip.compress(data)[:-40], "compressed data is truncated"),
    ],
)
def test_damage_is_one_note_with_its_place_and_the_rest_is_kept(change: Any, text: str) -> None:
    trace = read(change(document(GPU)))
    errors = [note for note in trace.notes if note.level == "error"]
    assert len(errors) == 1
    assert re.search(text, errors[0].text)
    assert errors[0].where.startswith("character ")
    assert "ProfilerStep#5" in {cost.op for cost in trace.costs()}


def test_nan_as_torch_writes_it_is_read_and_lower_case_nan_is_refused() -> None:
    good = document([event("a", 0, 1)]).replace(b'"args": {}', b'"args": {"x": NaN}')
    assert [note.level for note in read(good).notes] == ["warning"]
    assert read(b'[{"name": "C", "ph": "C", "args": {"x": nan}}]').notes[0].level == "error"


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_cut_or_flip_ends_without_an_exception(data: st.DataObject) -> None:
    whole = bytearray(document(GPU, distributedInfo={"rank": 3}))
    cut = data.draw(st.integers(0, len(whole)))
    for _ in range(data.draw(st.integers(0, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    trace = read(bytes(whole[:cut]))
    assert all(isinstance(note, Note) for note in trace.notes)
    assert all(cost.self_us >= 0 for cost in trace.costs())


def test_large_trace_is_read_in_pieces() -> None:
    data = document([event(f"op{i % 7}é", i * 10.0, 5) for i in range(30_000)])
    assert len(data) > 3 << 20
    trace = read(data)
    assert not [note for note in trace.notes if note.level == "error"]
    assert sum(cost.calls for cost in trace.costs()) == 30_000
    assert {cost.op for cost in trace.costs()} == {f"op{i}é" for i in range(7)}


def test_difference_names_the_slower_op_first() -> None:
    slow = [event("gemm", 0, 900, "kernel", 7, 0), event("extra", 1000, 5, "kernel", 7, 0)]
    rows = difference(read(document(GPU)).costs(), read(document(slow)).costs())
    gemm = next(row for row in rows if row["op"] == "gemm")
    assert gemm == {"op": "gemm", "a_self_us": 300.0, "b_self_us": 900.0, "delta_us": 600.0, "ratio": 3.0}
    assert next(row for row in rows if row["op"] == "extra")["ratio"] is None
    assert abs(rows[0]["delta_us"]) == max(abs(row["delta_us"]) for row in rows)


def test_folded_stacks_sum_to_the_threads_time() -> None:
    weights = flame.folded(read(document(GPU, distributedInfo={"rank": 3})))
    lines = list(flame.folded_lines(weights))
    assert "rank 3;thread 1;ProfilerStep#5;aten::linear;aten::addmm 60" in lines
    assert sum(int(line.rsplit(" ", 1)[1]) for line in lines if "thread 1" in line) == 1000
    scope = flame.speedscope(weights, "x")
    assert scope["profiles"][0]["endValue"] == sum(weights.values())


def ranks_with_a_late_one() -> list[RankTrace]:
    traces = []
    for rank, skew in ((0, 0.0), (1, 5_000.0), (2, -700.0)):
        events = []
        for step in range(4):
            late = 300.0 if rank == 1 else 0.0
            start = step * 1000 + 100 + late
            end = step * 1000 + 500
            events.append(event("ncclDevKernel_AllReduce", start + skew, end - start, "kernel", 9, 0))
        traces.append(read(document(events, distributedInfo={"rank": rank}, baseTimeNanoseconds=0)))
    return traces


def test_clocks_are_aligned_by_the_ends_of_collectives() -> None:
    shifts, notes = align.offsets(ranks_with_a_late_one())
    assert shifts == {0: 0.0, 1: -5_000.0, 2: 700.0}
    assert notes == []


def test_whoever_waits_least_is_critical() -> None:
    rows = align.critical_ranks(ranks_with_a_late_one())
    assert {row["critical_rank"] for row in rows} == {1}
    assert rows[0]["wait_us"] == {0: 300.0, 1: 0.0, 2: 300.0}


def test_merge_keeps_every_event_on_one_axis(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank, skew in ((0, 0.0), (1, 5000.0)):
        events = [event("ncclDevKernel_AllReduce", 100.0 * k + skew, 50, "kernel", 9, 0) for k in range(1, 4)]
        (tmp_path / f"rank{rank}.json").write_bytes(document(events))
    out = tmp_path / "merged" / "all.json"
    out.parent.mkdir()
    files = [str(tmp_path / f"rank{rank}.json") for rank in (0, 1)]
    assert main(["trace", *files, "--merge", str(out)]) == 0
    merged = json.loads(out.read_text())["traceEvents"]
    by_pid: dict[int, list[float]] = {}
    for one in merged:
        if one["ph"] == "X":
            by_pid.setdefault(one["pid"], []).append(one["ts"])
    assert len(by_pid) == 2
    assert len({tuple(times) for times in by_pid.values()}) == 1
    assert {one["args"]["name"].split(":")[0] for one in merged if one["ph"] == "M"} == {"rank 0", "rank 1"}
    capsys.readouterr()


def test_command_outputs_and_exit_codes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "t_rank2.json.gz", tmp_path / "t_rank3.json"
    good.write_bytes(gzip.compress(document(GPU)))
    bad.write_bytes(document(GPU)[:-80])
    assert main(["trace", str(good), "--top", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"rank": 2, "op": "gemm", "kind": "compute", "calls": 1, "self_us": 300.0} in rows
    assert main(["trace", str(tmp_path), "--top", "1", "--format", "json"]) == 3
    answer = capsys.readouterr()
    assert {row["rank"] for row in json.loads(answer.out)} == {2, 3}
    assert "truncated" in answer.err
    assert "Traceback" not in answer.err
    assert main(["trace", "--diff", str(good), str(bad), "--format", "json"]) == 3
    assert {"op", "a_self_us", "b_self_us", "delta_us", "ratio"} == set(json.loads(capsys.readouterr().out)[0])
    empty = tmp_path / "empty"
    empty.mkdir()
    assert main(["trace", str(empty)]) == 4
    assert main(["trace", str(tmp_path / "absent")]) == 2
    assert main(["trace"]) == 2
    capsys.readouterr()
    for flag in ("--breakdown", "--flame", "--critical"):
        assert main(["trace", str(good), flag]) == 0
        assert main(["trace", str(good), flag, "--format", "json"]) == 0
    assert "rank 2;device 0 stream 7;gemm 300" in capsys.readouterr().out


def test_busy_time_is_the_union_over_streams_and_threads() -> None:
    device = [
        event("ncclDevKernel_AllReduce_Sum", 0, 100, "kernel", 8, 0),
        event("ncclDevKernel_AllGather", 50, 100, "kernel", 9, 0),
        event("gemm", 20, 60, "kernel", 7, 0),
        event("gemm", 30, 10, "kernel", 6, 0),
        event("Memcpy HtoD", 200, 10, "gpu_memcpy", 7, 0),
        event("Memcpy HtoD", 205, 10, "gpu_memcpy", 6, 0),
    ]
    trace = read(document(device))
    assert trace.busy_us() == {"comm": 150.0, "compute": 60.0, "io": 15.0}
    assert costs(trace)["gemm", "compute"] == 70.0
    host = [
        event("gloo:all_reduce", 0, 100, "user_annotation", 1),
        event("gloo:all_reduce", 40, 100, "user_annotation", 2),
        event("backward", 0, 50, tid=3),
        event("aten::mm", 10, 20, tid=3),
        event("c10d::allreduce_", 30, 10, tid=3),
        event("aten::mm", 45, 10, tid=4),
    ]
    assert read(document(host)).busy_us() == {"comm": 140.0, "compute": 45.0}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=12))
def test_on_one_thread_busy_time_is_the_sum_of_self_times(spans: list[tuple[int, int]]) -> None:
    trace = read(document([event("op", start, length) for start, length in spans]))
    assert trace.busy_us().get("compute", 0.0) == pytest.approx(sum(cost.self_us for cost in trace.costs()))


def test_the_breakdown_counts_overlap_once_and_names_files_of_the_same_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = [*GPU, event("ncclDevKernel_AllReduce_Sum", 500, 200, "kernel", 11, 0)]
    first, second = tmp_path / "one.json", tmp_path / "two.json"
    first.write_bytes(document(both, distributedInfo={"rank": 3}))
    assert main(["trace", str(first), "--breakdown", "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row == {
        "rank": 3, "compute_us": 300.0, "comm_us": 250.0, "io_us": 50.0, "idle_us": 50.0, "host_us": 1000.0,
    }  # fmt: skip
    second.write_bytes(document(GPU, distributedInfo={"rank": 4}))
    assert main(["trace", str(first), str(second), "--breakdown"]) == 0
    assert "file" not in capsys.readouterr().out
    for meta in ({"distributedInfo": {"rank": 3}}, {}):
        second.write_bytes(document(GPU, **meta))
        assert main(["trace", str(first), str(second), "--breakdown"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].endswith("  file")
        assert [line.split()[-1] for line in lines[1:]] == [str(first), str(second)]


def test_an_event_costs_few_bytes_whatever_is_asked_of_the_trace() -> None:
    trace = RankTrace("t.json", 0)
    for device in (True, False):
        track = trace.tracks[device, "0", "0"] = Track(device, "t")
        for i in range(50_000):
            track.starts.append(i * 10.0)
            track.durations.append(6.0)
            track.names.append(0)
    trace.ops.append(("op", "compute"))
    tracemalloc.start()
    assert trace.costs()[0].calls == 100_000
    assert trace.busy_us()["compute"] == 300_000.0
    assert sum(flame.folded(trace).values()) > 0
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # A list of keys alone would be 100 bytes an event: a trace of some gigabytes would not fit its limit.
    assert peak < 20 * 100_000


def test_events_out_of_order_are_put_in_order() -> None:
    track = Track(False, "t")
    for start, duration in ((5.0, 1.0), (0.0, 2.0), (0.0, 9.0), (3.0, 1.0)):
        track.starts.append(start)
        track.durations.append(duration)
    assert list(track.ordered()) == [2, 1, 3, 0]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_trace_that_an_editor_saved_anew_is_read(encoding: str, tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": [{"ph": "X", "name": "aten::mm", "ts": 1, "dur": 5, "pid": 1, "tid": 1}]})
    path = tmp_path / "rank0.json"
    path.write_bytes(text.encode(encoding))
    with path.open("rb") as stream:
        events = list(TraceReader(open_trace(stream)))
    assert [event["name"] for event in events if isinstance(event, dict)] == ["aten::mm"]
    assert not [event for event in events if isinstance(event, Note)]


def test_what_a_cut_archive_still_holds_is_read() -> None:
    events = [event(f"op{number}", number * 10, 5) for number in range(3000)]
    whole = gzip.compress(document(events))
    trace = read(whole[: len(whole) // 2], 0)
    assert 100 < sum(cost.calls for cost in trace.costs()) < 3000
    (error,) = (note.text for note in trace.notes if note.level == "error")
    assert error == "the trace is truncated: it ends inside an event (the compressed data is truncated)"


def test_events_without_a_usable_duration_are_counted() -> None:
    bad = [event("negative", 0, -1), event("none", 0, 5) | {"dur": None}, event("absent", 0, 5)]
    del bad[2]["dur"]
    trace = read(document([*bad, event("good", 0, 5)]), 0)
    assert [cost.op for cost in trace.costs()] == ["good"]
    assert [note.text for note in trace.notes] == ["3 events without a usable time or duration were left out"]


@pytest.mark.parametrize("text", ["", "hello\n", '"a string"'])
def test_a_file_that_is_no_trace_is_not_recognised_rather_than_damaged(text: str, tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(text)
    assert main(["trace", str(path)]) == 4
