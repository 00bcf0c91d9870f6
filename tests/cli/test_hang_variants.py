"""Folders of hung jobs as they are found in real life, made here: the verdict and the roots are exact."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from flightwatch.cli import main

WORLD = tuple(range(8))
Hang = Callable[..., dict[str, Any]]


@pytest.fixture
def hang(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Hang:
    """Return a function that judges the test's folder and checks the exit code."""

    def judged(code: int = 0) -> dict[str, Any]:
        found = main(["hang", str(tmp_path)])
        output = capsys.readouterr()
        assert found == code, output.err
        answer: dict[str, Any] = json.loads(output.out)
        return answer

    return judged


class Job:
    """Writes dumps of a job, in the fields of torch's flight recorder on NCCL."""

    def __init__(self, folder: Path, groups: Mapping[str, tuple[str, Sequence[int]]]) -> None:
        self.folder = folder
        self.groups = groups
        self.entries: dict[int, list[dict[str, Any]]] = {}

    def add(
        self,
        rank: int,
        group: str,
        seq: int,
        op: str = "all_reduce",
        *,
        done: bool = True,
        p2p: bool = False,
        **more: Any,
    ) -> None:
        rows = self.entries.setdefault(rank, [])
        key, other = ("p2p_seq_id", "collective_seq_id") if p2p else ("collective_seq_id", "p2p_seq_id")
        row = {
            "record_id": len(rows), "pg_id": int(group), "process_group": (group, self.groups[group][0]), key: seq,
            other: 0, "op_id": seq, "profiling_name": f"nccl:{op}", "is_p2p": p2p,
            "time_created_ns": 1_700_000_000_000_000_000 + 1_000_000 * len(rows), "input_sizes": ((8, 4),),
            "input_dtypes": ["Float"], "state": "completed" if done else "scheduled", "retired": done, "frames": [],
        }  # fmt: skip
        rows.append(row | more)

    def write(
        self, *, form: str = "pickle", names: str = "nccl_trace_rank_{rank}", ranks: Sequence[int] = WORLD
    ) -> None:
        for rank in ranks:
            config = {
                key: {"name": key, "desc": desc, "ranks": str(list(members))}
                for key, (desc, members) in self.groups.items()
                if rank in members
            }
            document = {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": self.entries.get(rank, [])}
            data = pickle.dumps(document) if form == "pickle" else json.dumps(document).encode()
            path = self.folder / names.format(rank=rank)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def world(folder: Path, late: Sequence[int] = (5,), **more: Any) -> Job:
    """Return a job in which all ranks but some wait in the all_reduce 7 of the whole job."""
    job = Job(folder, {"0": ("default_pg", WORLD)})
    for rank in WORLD:
        job.add(rank, "0", 6, **more)
        if rank not in late:
            job.add(rank, "0", 7, done=False, **more)
    return job


def test_pickle_and_json_in_one_folder_with_other_files_beside(tmp_path: Path, hang: Hang) -> None:
    job = world(tmp_path)
    job.write(ranks=(0, 1, 2, 3))
    job.write(form="json", names="rank{rank}.json", ranks=(4, 5, 6, 7))
    (tmp_path / "answer.txt").write_text("rank 3 was stopped by hand\n")
    (tmp_path / "config.json").write_text('{"rank": 3}')
    (tmp_path / "model.pkl").write_bytes(pickle.dumps({"weights": [1, 2]}))
    answer = hang()
    assert (answer["verdict"], answer["root_ranks"], answer["seq"]) == ("missing_rank", [5], 7)
    assert answer["waiting"] == [0, 1, 2, 3, 4, 6, 7]


@pytest.mark.parametrize(
    "names",
    [
        "_dump_{rank}",
        "dump_rank_{rank}_attempt_1.pkl",
        "rank_{rank}/trace.pickle",
        "node0/{rank}.pkl.gz",
        "trace{rank}.gz",
    ],
)
def test_names_of_dumps(names: str, tmp_path: Path, hang: Hang) -> None:
    world(tmp_path).write(names=names)
    assert hang()["root_ranks"] == [5]


def test_a_lost_dump_of_a_victim_does_not_blur_the_root(tmp_path: Path, hang: Hang) -> None:
    world(tmp_path).write(ranks=(0, 1, 3, 4, 5, 6))
    answer = hang()
    assert (answer["root_ranks"], answer["no_log"]) == ([5], [2, 7])
    assert {one["rank"] for one in answer["suspects"]} == {2, 5, 7}


def test_a_root_without_dump_and_one_with_an_empty_one(tmp_path: Path, hang: Hang) -> None:
    job = world(tmp_path, late=(2, 5))
    job.entries[2] = []
    job.write(ranks=[rank for rank in WORLD if rank != 5])
    answer = hang()
    assert (answer["verdict"], answer["root_ranks"], answer["no_log"]) == ("missing_rank", [2, 5], [2, 5])


def test_the_newest_of_two_captures_counts(tmp_path: Path, hang: Hang) -> None:
    first = world(tmp_path / "attempt_0", late=(1,))
    first.write()
    later = world(tmp_path / "attempt_1", late=(6,), time_created_ns=1_700_000_900_000_000_000)
    later.write()
    assert hang()["root_ranks"] == [6]


def test_groups_of_one_description_are_kept_apart(tmp_path: Path, hang: Hang) -> None:
    groups = {str(i + 1): ("tp", (2 * i, 2 * i + 1)) for i in range(4)} | {"0": ("default_pg", WORLD)}
    job = Job(tmp_path, groups)
    for rank in WORLD:
        group = str(rank // 2 + 1)
        job.add(rank, group, 90)
        if rank == 3:
            continue  # its partner waits for it, everybody else waits for its partner and for it
        if rank == 2:
            job.add(rank, group, 91, "all_gather", done=False)
        else:
            job.add(rank, group, 91, "all_gather")
            job.add(rank, "0", 12, done=False)
    job.write()
    answer = hang()
    assert (answer["verdict"], answer["root_ranks"]) == ("missing_rank", [3])


def test_a_pipeline_stage_that_does_not_send(tmp_path: Path, hang: Hang) -> None:
    job = Job(tmp_path, {"0": ("default_pg", (0, 1, 2, 3)), "1": ("pp", (0, 1, 2, 3))})
    job.add(0, "1", 40, "send 0->1", p2p=True)
    job.add(0, "1", 41, "recv 0<-1", p2p=True, done=False)
    job.add(1, "1", 40, "recv 1<-0", p2p=True)
    job.add(1, "1", 41, "recv 1<-2", p2p=True, done=False)
    job.add(2, "1", 40, "recv 2<-1", p2p=True)
    job.add(3, "1", 40, "recv 3<-2", p2p=True, done=False)
    job.write(ranks=(0, 1, 2, 3))
    answer = hang()
    assert (answer["verdict"], answer["root_ranks"]) == ("missing_rank", [2])
    assert answer["waiting"] == [0, 1, 3]


def test_batches_of_send_and_receive_that_have_finished_are_no_wait(tmp_path: Path, hang: Hang) -> None:
    members = (4, 5, 6, 7)
    job = Job(tmp_path, {"0": ("default_pg", members), "3": ("pp", members)})
    for local, rank in enumerate(members):
        # The members of a coalesced batch stay "scheduled" for ever; only its last entry says that it is over.
        for op in (f"send {local}->{(local + 1) % 4}", f"recv {local}<-{(local - 1) % 4}"):
            job.add(rank, "3", 9, op, p2p=True, done=False)
        job.add(rank, "3", 9, "coalesced", p2p=True)
        if rank != 6:
            job.add(rank, "0", 3, done=False)
    job.write(ranks=members)
    answer = hang()
    assert (answer["verdict"], answer["root_ranks"], answer["op"]) == ("missing_rank", [6], "all_reduce")


def test_an_unfinished_batch_waits_for_each_of_its_peers(tmp_path: Path, hang: Hang) -> None:
    job = Job(tmp_path, {"0": ("pp", (0, 1, 2))})
    for op in ("send 1->0", "recv 1<-2"):
        job.add(1, "0", 5, op, p2p=True, done=False)
    job.add(1, "0", 5, "coalesced", p2p=True, done=False)
    job.add(0, "0", 5, "recv 0<-1", p2p=True, done=False)
    job.add(2, "0", 4, "recv 2<-1", p2p=True)
    job.write(ranks=(0, 1, 2))
    assert hang()["root_ranks"] == [2]


def test_a_transfer_that_sticks_below_the_wait_of_everybody(tmp_path: Path, hang: Hang) -> None:
    job = Job(tmp_path, {"0": ("default_pg", WORLD), "9": ("tp", (6, 7))})
    for rank in WORLD:
        if rank in (6, 7):
            job.add(rank, "9", 31, "reduce_scatter", done=False)
        else:
            job.add(rank, "0", 4, done=False)
    job.write()
    answer = hang()
    assert (answer["verdict"], answer["root_ranks"], answer["op"]) == ("transfer_stuck", [6, 7], "reduce_scatter")
    assert answer["waiting"] == [0, 1, 2, 3, 4, 5]


def test_two_devices_that_stand_in_what_all_others_finished(tmp_path: Path, hang: Hang) -> None:
    job = Job(tmp_path, {"0": ("default_pg", WORLD)})
    for rank in WORLD:
        job.add(rank, "0", 20, done=rank not in (1, 4))
    job.write()
    answer = hang()
    assert (answer["verdict"], answer["root_ranks"]) == ("transfer_stuck", [1, 4])


def test_sizes_and_operations_that_differ(tmp_path: Path, hang: Hang) -> None:
    job = world(tmp_path, late=())
    job.entries[3][-1]["input_sizes"] = ((9, 4),)
    job.write()
    answer = hang()
    assert (answer["verdict"], answer["root_ranks"]) == ("size_mismatch", [3])
    job.entries[3][-1]["profiling_name"] = "nccl:broadcast"
    job.write()
    answer = hang()
    assert (answer["verdict"], answer["root_ranks"]) == ("op_mismatch", [3])


def test_the_operation_of_a_mismatch_is_what_most_called(tmp_path: Path, hang: Hang) -> None:
    job = world(tmp_path, late=())
    job.entries[0][-1]["profiling_name"] = "nccl:broadcast"
    job.write()
    answer = hang()
    assert (answer["verdict"], answer["root_ranks"], answer["op"]) == ("op_mismatch", [0], "all_reduce")
    assert answer["suspects"][0]["why"] == "calls broadcast where others call all_reduce"


class _Evil:
    def __reduce__(self) -> Any:
        return open, ("never", "w")


def _tree() -> list[Any]:
    tree: list[Any] = [1]
    for _ in range(60):
        tree = [tree, tree]
    return tree


@pytest.mark.parametrize("document", [{"entries": [_Evil()]}, _Evil(), {"entries": _tree()}, "no dump", 7])
def test_a_file_named_like_a_dump_that_is_none_is_malformed(document: object, tmp_path: Path, hang: Hang) -> None:
    world(tmp_path, late=(5,)).write()
    (tmp_path / "nccl_trace_rank_6").write_bytes(pickle.dumps(document))
    answer = hang(code=3)
    assert (answer["root_ranks"], answer["no_log"]) == ([5], [6])


def test_the_last_number_of_a_log_that_was_cut_is_no_sequence_number(tmp_path: Path, hang: Hang) -> None:
    whole = status(0, 1580, 1582, 1579) + "\n" + status(1, 1580, 1582, 1579)
    (tmp_path / "job.log").write_text(whole[: whole.rindex("1579") + 2])
    answer = hang(code=4)
    assert (answer["verdict"], answer["root_ranks"]) == ("undetermined", [])


def test_old_dumps_without_groups_show_the_gap(tmp_path: Path, hang: Hang) -> None:
    for rank in (0, 1, 3):
        entry = {"pg_id": 0, "seq_id": 8, "profiling_name": "nccl:all_reduce", "state": "scheduled",
                 "time_created_ns": 1_700_000_000_000_000_000, "input_sizes": ((4,),), "frames": [],
                 "time_discovered_started_ns": None}  # fmt: skip
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps({"version": "1.5", "entries": [entry]}))
    answer = hang()
    assert (answer["verdict"], answer["root_ranks"], answer["no_log"]) == ("missing_rank", [2], [2])


def test_a_job_that_goes_on_is_not_hung(tmp_path: Path, hang: Hang) -> None:
    job = Job(tmp_path, {"0": ("default_pg", WORLD)})
    for rank in WORLD:
        job.add(rank, "0", 20)
    job.write()
    assert hang()["verdict"] == "not_hung"


def test_a_damaged_dump_counts_as_behind_and_is_said(tmp_path: Path, hang: Hang) -> None:
    job = world(tmp_path)
    job.write()
    whole = (tmp_path / "nccl_trace_rank_5").read_bytes()
    (tmp_path / "nccl_trace_rank_5").write_bytes(whole[: len(whole) // 2])
    answer = hang(code=3)
    assert (answer["root_ranks"], answer["no_log"]) == ([5], [5])


def status(rank: int, seq: int, enqueued: int, completed: int, group: str = "0 PG GUID 0(default_pg)") -> str:
    return (
        f"[rank{rank}]:[E1129 10:00:00.000000000 ProcessGroupNCCL.cpp:685] [PG ID {group} Rank {rank}] failure"
        f" detected by watchdog at work sequence id: {seq} PG status: last enqueued work: {enqueued},"
        f" last completed work: {completed}"
    )


def test_a_watchdog_line_of_a_rank_that_has_enqueued_less(tmp_path: Path, hang: Hang) -> None:
    lines = [status(rank, 1580, 1580, 1579) for rank in (0, 1, 2, 4)] + [status(3, 1579, 1579, 1578)]
    (tmp_path / "job.log").write_text("\n".join(lines) + "\n")
    answer = hang()
    assert (answer["verdict"], answer["root_ranks"], answer["seq"]) == ("missing_rank", [3], 1580)
    assert answer["waiting"] == [0, 1, 2, 4]


def test_ranks_inside_a_group_are_no_ranks_of_the_job(tmp_path: Path, hang: Hang) -> None:
    text = (
        "[E ProcessGroupNCCL.cpp:563] [PG ID 4 PG GUID 12(tp) Rank {}] Watchdog caught collective operation timeout:"
        " WorkNCCL(SeqNum={}, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600012 milliseconds"
        " before timing out."
    )
    (tmp_path / "a.log").write_text(text.format(0, 700) + "\n")
    (tmp_path / "b.log").write_text(text.format(1, 64_000) + "\n")
    answer = hang(code=4)
    assert (answer["verdict"], answer["root_ranks"], answer["waiting"]) == ("undetermined", [], [])
    # The name of a file that one rank wrote tells what its lines leave out.
    for name, rank, seq in (("rank12.log", 0, 64_000), ("rank13.log", 1, 700)):
        (tmp_path / name).write_text(text.format(rank, seq) + "\n")
    answer = hang()
    assert (answer["verdict"], answer["root_ranks"], answer["waiting"]) == ("missing_rank", [13], [12])


def test_ranks_that_torch_itself_names(tmp_path: Path, hang: Hang) -> None:
    (tmp_path / "out.log").write_text("RuntimeError: [Rank 0]: Ranks 2, 5 failed to pass monitoredBarrier in 5000 ms\n")
    answer = hang()
    assert (answer["verdict"], answer["root_ranks"]) == ("missing_rank", [2, 5])
    (tmp_path / "out.log").write_text(
        "torch.distributed.DistBackendError: [3] is setting up NCCL communicator and retrieving ncclUniqueId from [0]"
        " via c10d key-value store by key '0', but store->get('0') got error: wait timeout\n"
    )
    answer = hang()
    assert (answer["verdict"], answer["root_ranks"], answer["waiting"]) == ("missing_rank", [0], [3])


def test_calls_that_torch_itself_compared(tmp_path: Path, hang: Hang) -> None:
    line = (
        "RuntimeError: Detected mismatch between collectives on ranks. Rank {} is running collective:"
        " CollectiveFingerPrint(SequenceNumber=4, OpType=ALLREDUCE, TensorShape=[10], TensorDtypes=Float), but Rank 1"
        " is running collective: CollectiveFingerPrint(SequenceNumber=4, OpType={}, TensorShape=[{}])."
    )
    (tmp_path / "out.log").write_text("\n".join(line.format(rank, "BROADCAST", 10) for rank in (0, 2, 3)) + "\n")
    answer = hang()
    assert (answer["verdict"], answer["root_ranks"], answer["seq"]) == ("op_mismatch", [1], 4)
    (tmp_path / "out.log").write_text("\n".join(line.format(rank, "ALLREDUCE", 12) for rank in (0, 2)) + "\n")
    answer = hang()
    assert (answer["verdict"], answer["root_ranks"]) == ("size_mismatch", [1])


def test_ras_with_three_different_counts_names_the_lowest(tmp_path: Path, hang: Hang) -> None:
    ranks = [
        {"rank": rank, "host": "node-1", "cuda_dev": rank, "pid": 100 + rank, "collective_counts": {"AllReduce": count}}
        for rank, count in enumerate((50, 50, 41, 50, 49, 50, 50, 50))
    ]
    document = {
        "nccl_version": "2.28.9", "timestamp": "2026-11-29T10:00:00Z", "communicators_count": 1,
        "communicators": [{"hash": "0xabc", "size": 8, "rank_count": 8, "ranks": ranks, "missing_ranks": []}],
    }  # fmt: skip
    (tmp_path / "ras.json").write_text(json.dumps(document))
    answer = hang()
    assert (answer["verdict"], answer["root_ranks"]) == ("missing_rank", [2])


def test_a_rank_that_ran_out_of_memory_is_what_the_others_wait_for(tmp_path: Path, hang: Hang) -> None:
    lines = [status(rank, 1580, 1580, 1579) for rank in (0, 1, 2)]
    lines.append("[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    (tmp_path / "job.log").write_text("\n".join(lines) + "\n")
    answer = hang()
    assert (answer["verdict"], answer["root_ranks"], answer["waiting"]) == ("missing_rank", [3], [0, 1, 2])
    assert "out of memory" in answer["sentence"]


def test_a_device_that_failed_and_a_host_that_stood_still_are_told_from_the_log(tmp_path: Path, hang: Hang) -> None:
    waiting = [status(rank, 1580, 1580, 1579) for rank in (0, 1, 2)]
    failed = "[rank3]: torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
    stuck = (
        "[rank3]:[F1129 10:00:00.0 ProcessGroupNCCL.cpp:1554] [PG ID 0 PG GUID 0(default_pg) Rank 3]"
        " [PG ID 0 PG GUID 0(default_pg) Rank 3] Terminating the process after attempting to dump debug info, due to"
        " ProcessGroupNCCL watchdog hang. ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress"
    )
    for line, verdict in ((failed, "device_error"), (stuck, "host_stuck")):
        (tmp_path / "job.log").write_text("\n".join([*waiting, line]) + "\n")
        answer = hang()
        assert (answer["verdict"], answer["root_ranks"]) == (verdict, [3])
