"""Communication libraries: watchdog lines across versions, library lines, RAS, Inspector, stacks."""

from __future__ import annotations

from typing import Any

import pytest

from flightwatch.collectors.captures.comm.ras import parse_report
from flightwatch.collectors.captures.comm.stacks import parse_stacks
from flightwatch.collectors.captures.comm.watchdog import parse_watchdog


def test_global_rank_wins_over_the_groups_rank(sample: Any) -> None:
    found = sample("watchdog.log")
    first = found.event("watchdog:timeout")
    assert first["rank"] == 5
    assert first["attrs"]["group_rank"] == "1"
    assert (first["attrs"]["seq"], first["attrs"]["op"]) == ("4711", "_REDUCE_SCATTER_BASE")
    assert first["attrs"]["numel_out"] == "128"
    assert first["message"].startswith("[rank5]:")
    status = found.event("watchdog:status")
    assert (status["attrs"]["enqueued"], status["attrs"]["completed"]) == ("4713", "4710")
    assert status["attrs"]["group_desc"] == "mesh_dp"


def test_uninitialised_numbers_are_left_out(sample: Any) -> None:
    garbage = sample("watchdog.log").event("watchdog:status", 1)
    assert garbage["rank"] == 6
    assert "completed" not in garbage["attrs"]
    waiting = sample("watchdog.log").event("watchdog:dump_signal")
    assert "enqueued" not in waiting["attrs"]
    assert waiting["attrs"]["ranks"] == "5"


def test_a_wrapped_message_is_joined(sample: Any) -> None:
    wrapped = sample("watchdog.log").event("watchdog:timeout", 1)
    assert (wrapped["rank"], wrapped["attrs"]["seq"], wrapped["attrs"]["numel_in"]) == (7, "4712", "1")


def test_a_cut_message_is_a_note(text: Any) -> None:
    found = text(
        "[rank1]:[E1 ProcessGroupNCCL.cpp:6] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9"
    )
    assert not found.codes
    assert "cut off" in found.notes[0].text


def test_other_kinds(sample: Any) -> None:
    found = sample("watchdog.log")
    assert found.event("watchdog:stuck")["attrs"]["stuck_s"] == "480"
    old = found.event("watchdog:timeout", 2)
    assert (old["rank"], old["attrs"]["rank_scope"]) == (3, "group")
    assert "seq" not in old["attrs"]
    assert found.event("watchdog:terminated")["severity"] == "info"
    assert found.event("watchdog:desync")["attrs"]["ranks"] == "3,4"
    assert found.event("watchdog:timeout", 3)["attrs"]["backend"] == "HCCL"


def test_a_group_local_rank_of_another_group_is_not_global() -> None:
    line = parse_watchdog(
        "[E ProcessGroupNCCL.cpp:1] [PG 3 Rank 0] Timeout at NCCL work: 7, last enqueued NCCL work: 8, "
        "last completed NCCL work: 6."
    )
    assert line is not None
    assert line.rank is None
    assert line.group_rank == 0


def test_library_lines(sample: Any) -> None:
    found = sample("library.log")
    start = found.event("nccl:init")
    assert (start["rank"], start["device"], start["node"]) == (8, 3, "gpu-1")
    assert start["attrs"]["rank_scope"] == "communicator"
    flushed = found.event("nccl:ib_completion")
    assert (flushed["severity"], flushed["attrs"]["status"], flushed["attrs"]["peer"]) == ("warning", "5", "10.1.0.2")
    assert found.event("nccl:async_event")["attrs"]["event"] == "port error"
    assert "illegal memory" in found.event("nccl:device_failure")["attrs"]["error"]
    assert "nccl:connection" in found.codes
    assert "mccl:warn" in found.codes
    absent = found.event("hccl:EI0002")
    assert (absent["rank"], absent["device"], absent["attrs"]["absent_ranks"]) == (101, 5, "24")
    assert found.event("cuda:error")["attrs"]["local_rank"] == "2"
    assert found.event("rocm:gpu_hang")["severity"] == "critical"
    assert "rocm:memory_fault" in found.codes
    assert found.event("elastic:rank_failed")["attrs"]["exitcode"] == "-6"
    assert "cuda:out_of_memory" in found.codes


def test_ras_names_both_sides(sample: Any) -> None:
    found = sample("ras.txt")
    assert found.parser == "ncclras"
    mismatch = found.event("ncclras:mismatch")["attrs"]
    assert (mismatch["behind_ranks"], mismatch["ahead_ranks"], mismatch["op"]) == ("3", "0,1,2,4,5,7", "AllReduce")
    assert found.event("ncclras:incomplete")["attrs"]["missing_ranks"] == "6"
    assert found.event("ncclras:dead")["node"] == "10.1.0.213"


def test_ras_lists_the_smaller_side_even_when_it_is_ahead() -> None:
    report = parse_report(enumerate([
        "    0         1         4         8        32        32   RUNNING  MISMATCH",
        "#0-0 (fa93) MISMATCH",
        "  Communicator ranks have different AllGather operation counts",
        "  30 ranks have launched up to operation 640",
        "  2 ranks have launched up to operation 641",
        "  Rank 12 -- GPU 4 managed by process 3 on node 10.0.0.1",
        "  Rank 13 -- GPU 5 managed by process 4 on node 10.0.0.1",
    ]))  # fmt: skip
    (comm,) = report.communicators
    assert comm.ahead == [12, 13]
    assert comm.behind is not None
    assert len(comm.behind) == 30
    assert 12 not in comm.behind


def test_ras_json(sample: Any) -> None:
    found = sample("ras.json")
    assert found.codes == ["ncclras:incomplete", "ncclras:mismatch", "ncclras:unresponsive"]
    assert found.event("ncclras:mismatch")["attrs"]["behind_ranks"] == "2"


def test_inspector_records(sample: Any) -> None:
    found = sample("inspector.json")
    first, second = found.of("op_timings")
    assert (first["op"], first["seq"], first["dur_us"], first["bytes"]) == ("AllReduce", 1407, 61974.0, 17179869184)
    assert (first["node"], first["rank"], first["process_group"]) == ("gpu-4", 2, "0x7f8c")
    assert second["op"] == "ReduceScatter"
    assert first["step"] is None


def test_inspector_truncation(text: Any) -> None:
    found = text('{"header": {"id": "0x1", "rank": 2, "n_ranks": 8}, "coll_perf": {"coll": "All')
    assert [note.level for note in found.notes] == ["error"]


def test_stacks_are_grouped(sample: Any) -> None:
    found = sample("stacks.txt")
    assert found.parser == "py-spy"
    reduce_group, input_group, helper = found.of("events")
    assert reduce_group["attrs"]["ranks"] == "1,2"
    assert reduce_group["attrs"]["waits_for"] == "collective"
    assert (input_group["rank"], input_group["attrs"]["waits_for"]) == (0, "input")
    assert helper["code"] == "stack:thread"
    assert sample("stacks.json").event("stack:main")["attrs"]["state"] == "active+gil"


def test_line_numbers_do_not_split_a_group() -> None:
    first, second = parse_stacks(enumerate([
        'Thread 1 (idle): "MainThread"', "    train (train.py:8)",
        'Thread 2 (idle): "MainThread"', "    train (train.py:9)",
    ]))  # fmt: skip
    assert first.digest == second.digest


@pytest.mark.parametrize("line", ["watchdog: BUG: soft lockup", "the watchdog barks", "NCCL_DEBUG=INFO"])
def test_what_is_no_watchdog_message(line: str) -> None:
    assert parse_watchdog(line) is None


def test_a_watchdog_that_ended_of_a_cuda_error_is_the_devices_failure(text: Any) -> None:
    found = text(
        "[rank6]:[E1015 12:00:00.1 ProcessGroupNCCL.cpp:1414] [PG ID 0 PG GUID 0 Rank 6] Process group watchdog thread "
        "terminated with exception: CUDA error: an illegal memory access was encountered\n"
    )
    event = found.event("cuda:error")
    assert (event["rank"], event["severity"]) == (6, "error")
    assert "watchdog:terminated" not in found.codes
