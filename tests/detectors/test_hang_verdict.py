"""Hang verdicts on hand-made evidence: each kind of verdict, roots exact, nothing claimed beyond the evidence."""

from __future__ import annotations

from flightwatch.core.hang_evidence import (
    AbsentRank,
    CollectiveRecord,
    HangEvidence,
    ProgressReport,
    RankDump,
    RankFault,
    RankStack,
    RasMismatch,
)
from flightwatch.core.vocabulary import process_group_name
from flightwatch.detectors.hang import judge
from flightwatch.detectors.hang_verdict import rank_list

WORLD = tuple(range(4))
G = process_group_name("default_pg", WORLD)


def waiting(
    rank: int, seq: int, *, op: str = "all_reduce", shape: str = "[8]", group: str = G, started: bool = False
) -> RankDump:
    record = CollectiveRecord(group, seq, op, shape=shape, created_ns=1_700_000_000_000_000_000 + rank, started=started)
    members = {G: WORLD} | ({group: WORLD} if group != G else {})
    return RankDump(rank, "ok", [record], {group: seq}, {group: seq - 1}, members)


def done(rank: int, seq: int) -> RankDump:
    return RankDump(rank, "ok", [], {G: seq}, {G: seq}, {G: WORLD})


def test_a_rank_that_never_arrived_is_the_root() -> None:
    verdict = judge(HangEvidence({0: waiting(0, 7), 1: done(1, 6), 2: waiting(2, 7), 3: waiting(3, 7)}))
    assert (verdict.verdict, verdict.root_ranks, verdict.seq, verdict.op) == ("missing_rank", [1], 7, "all_reduce")
    assert verdict.waiting == [0, 2, 3]
    assert verdict.process_group == G
    assert "rank 1" in verdict.sentence
    assert "ranks 0, 2-3 wait in all_reduce 7" in verdict.sentence.lower()


def test_empty_and_absent_dumps_count_as_behind() -> None:
    empty = RankDump(1, "empty", members={G: WORLD})
    for dumps in (
        {0: waiting(0, 7), 1: empty, 2: waiting(2, 7), 3: waiting(3, 7)},
        {r: waiting(r, 7) for r in (0, 2, 3)},
    ):
        verdict = judge(HangEvidence(dumps))
        assert (verdict.verdict, verdict.root_ranks, verdict.no_log) == ("missing_rank", [1], [1])


def test_the_chain_is_followed_to_its_end() -> None:
    tensor = process_group_name("tp", (2, 3))
    # 0 and 1 wait for 2 in the world; 2 waits for 3 in its tensor group; 3 is the root.
    two = waiting(2, 40, group=tensor)
    two.members = {G: WORLD, tensor: (2, 3)}
    three = RankDump(3, "ok", [], {tensor: 39, G: 6}, {tensor: 39}, {G: WORLD, tensor: (2, 3)})
    verdict = judge(HangEvidence({0: waiting(0, 7), 1: waiting(1, 7), 2: two, 3: three}))
    assert verdict.root_ranks == [3]


def test_a_victim_of_an_absent_rank_is_only_a_suspect() -> None:
    tensor = process_group_name("tp", (2, 3))
    two = waiting(2, 40, group=tensor)
    two.members = {G: WORLD, tensor: (2, 3)}
    verdict = judge(HangEvidence({0: waiting(0, 7), 1: waiting(1, 7), 2: two}))
    assert verdict.root_ranks == [3]
    assert {one["rank"]: one["score"] for one in verdict.suspects}[2] < verdict.suspects[0]["score"]


def test_send_without_its_receive() -> None:
    sender = RankDump(0, "ok", [CollectiveRecord(G, 5, "send", is_p2p=True, peer=1)], members={G: WORLD})
    verdict = judge(HangEvidence({0: sender, 1: done(1, 6)}))
    assert (verdict.verdict, verdict.root_ranks) == ("missing_rank", [1])
    receiver = RankDump(1, "ok", [CollectiveRecord(G, 3, "recv", is_p2p=True, peer=0)], members={G: WORLD})
    both = judge(HangEvidence({0: sender, 1: receiver, 2: done(2, 6), 3: done(3, 6)}))
    assert both.verdict == "transfer_stuck"


def test_different_operations_at_one_number() -> None:
    verdict = judge(HangEvidence({r: waiting(r, 7, op="broadcast" if r == 2 else "all_reduce") for r in WORLD}))
    assert (verdict.verdict, verdict.root_ranks) == ("op_mismatch", [2])


def test_different_sizes_at_one_number_but_not_where_sizes_may_differ() -> None:
    verdict = judge(HangEvidence({r: waiting(r, 7, shape="[9]" if r == 3 else "[8]") for r in WORLD}))
    assert (verdict.verdict, verdict.root_ranks) == ("size_mismatch", [3])
    uneven = judge(HangEvidence({r: waiting(r, 7, op="all_to_all", shape=f"[{r}]") for r in WORLD}))
    assert uneven.verdict == "transfer_stuck"


def test_groups_entered_in_different_orders() -> None:
    other = process_group_name("other", WORLD)
    dumps = {r: waiting(r, 7) for r in (0, 1, 2)} | {3: waiting(3, 4, group=other)}
    verdict = judge(HangEvidence(dumps))
    assert (verdict.verdict, verdict.root_ranks) == ("op_mismatch", [3])


def test_all_joined_names_no_rank_but_the_one_not_started() -> None:
    assert judge(HangEvidence({r: waiting(r, 7, started=True) for r in WORLD})).root_ranks == []
    dumps = {r: waiting(r, 7, started=r != 2) for r in WORLD}
    verdict = judge(HangEvidence(dumps))
    assert (verdict.verdict, verdict.root_ranks, verdict.waiting) == ("transfer_stuck", [2], [0, 1, 3])
    assert [one["rank"] for one in verdict.suspects] == [2]
    halves = judge(HangEvidence({r: waiting(r, 7, started=r < 2) for r in WORLD}))
    assert halves.root_ranks == []


def test_alone_in_an_operation_that_all_others_finished() -> None:
    verdict = judge(HangEvidence({0: done(0, 9), 1: waiting(1, 7), 2: done(2, 9), 3: done(3, 9)}))
    assert (verdict.verdict, verdict.root_ranks) == ("transfer_stuck", [1])


def test_nothing_pending_is_not_hung_only_when_everybody_was_heard() -> None:
    assert judge(HangEvidence({r: done(r, 7) for r in WORLD})).verdict == "not_hung"
    assert judge(HangEvidence({r: done(r, 7) for r in (0, 1)})).verdict == "undetermined"


def test_ras_lists_the_ranks_ahead() -> None:
    report = RasMismatch("fa93", "AllGather", (12, 13), 641, 640, 32)
    verdict = judge(HangEvidence(ras=[report]))
    assert verdict.waiting == [12, 13]
    assert 12 not in verdict.root_ranks
    assert len(verdict.root_ranks) == 30
    assert all(one["rank"] not in (12, 13) for one in verdict.suspects)


def test_watchdog_numbers_far_apart_name_the_one_behind() -> None:
    reports = [ProgressReport(0, stuck_seq=seq, op="ALLREDUCE") for seq in (96120, 96117, 96125)]
    verdict = judge(HangEvidence(progress=[*reports, ProgressReport(7, stuck_seq=64088, op="ALLREDUCE")]))
    assert (verdict.verdict, verdict.root_ranks, verdict.seq) == ("missing_rank", [7], 64088)


def test_equal_watchdog_numbers_name_nobody() -> None:
    # Only some lines print the group; the number ties the others to it.
    reports = [ProgressReport(rank, stuck_seq=1580, op="ALLREDUCE", completed_seq=1579) for rank in (0, 3, 4)]
    reports += [ProgressReport(rank, stuck_seq=1580, group="PG 1") for rank in (0, 3)]
    verdict = judge(HangEvidence(progress=reports, world_size=8))
    assert (verdict.verdict, verdict.root_ranks, verdict.seq) == ("undetermined", [], 1580)
    assert verdict.no_log == [1, 2, 5, 6, 7]
    assert {one["rank"] for one in verdict.suspects} == {1, 2, 5, 6, 7}
    assert verdict.waiting == [0, 3, 4]
    assert verdict.op == "ALLREDUCE"


def test_a_stuck_watchdog_is_the_host_and_a_gpu_hang_the_device() -> None:
    host = judge(HangEvidence(faults=[RankFault("host", 6, "watchdog got stuck for 480 seconds")]))
    assert (host.verdict, host.root_ranks) == ("host_stuck", [6])
    device = judge(HangEvidence(faults=[RankFault("device", None, "GPU Hang on node-9")]))
    assert (device.verdict, device.root_ranks) == ("device_error", [])
    assert device.sentence == "A device failed: GPU Hang on node-9 (confidence 60%)."


def test_a_device_fault_of_the_missing_rank_decides() -> None:
    evidence = HangEvidence(
        {0: waiting(0, 7), 1: done(1, 6), 2: waiting(2, 7), 3: waiting(3, 7)}, faults=[RankFault("device", 1, "Xid 79")]
    )
    verdict = judge(evidence)
    assert (verdict.verdict, verdict.root_ranks) == ("device_error", [1])


def test_a_root_in_the_data_loader_is_an_input_stall() -> None:
    stack = RankStack(1, ("wait (threading.py:302)", "get (queue.py:170)"), "input")
    evidence = HangEvidence({0: waiting(0, 7), 1: done(1, 6), 2: waiting(2, 7), 3: waiting(3, 7)}, stacks=[stack])
    verdict = judge(evidence)
    assert (verdict.verdict, verdict.root_ranks) == ("input_stall", [1])
    assert verdict.stack is not None
    assert verdict.stack.startswith("wait (threading.py:302)")


def test_stacks_alone_name_the_rank_outside_the_collective() -> None:
    stacks = [RankStack(r, ("all_reduce (torch/distributed/distributed_c10d.py:1)",), "collective") for r in (1, 2, 3)]
    verdict = judge(HangEvidence(stacks=[RankStack(0, ("sleep (train.py:7)",)), *stacks]))
    assert (verdict.verdict, verdict.root_ranks, verdict.waiting) == ("missing_rank", [0], [1, 2, 3])
    assert verdict.stack == "sleep (train.py:7)"


def test_numbers_of_different_groups_are_not_compared() -> None:
    reports = [ProgressReport(0, group="default_pg", stuck_seq=90_000), ProgressReport(1, group="tp", stuck_seq=12)]
    verdict = judge(HangEvidence(progress=reports))
    assert (verdict.verdict, verdict.root_ranks) == ("undetermined", [])


def test_a_rank_named_absent_by_the_library() -> None:
    absent = AbsentRank(5, None, (0, 1), "HCCL EI0002 names it as the remote rank that did not come")
    verdict = judge(HangEvidence(absent=[absent]))
    assert (verdict.verdict, verdict.root_ranks, verdict.waiting) == ("missing_rank", [5], [0, 1])


def test_no_evidence_is_undetermined() -> None:
    verdict = judge(HangEvidence())
    assert verdict.verdict == "undetermined"
    assert set(verdict.as_dict()) == {
        "verdict", "root_ranks", "suspects", "process_group", "op", "seq", "since", "waiting", "no_log", "stack",
        "confidence", "sentence",
    }  # fmt: skip


def test_verdict_does_not_depend_on_the_order_of_ranks() -> None:
    dumps = {0: waiting(0, 7), 1: done(1, 6), 2: waiting(2, 7), 3: waiting(3, 7)}
    assert judge(HangEvidence(dumps)).as_dict() == judge(HangEvidence(dict(reversed(dumps.items())))).as_dict()


def test_rank_lists_are_short() -> None:
    assert rank_list([3]) == "rank 3"
    assert rank_list([0, 1, 2, 5]) == "ranks 0-2, 5"
    assert rank_list(list(range(0, 40, 2))) == "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 12 more"


def test_ranks_that_wait_alone_with_nobody_known_are_undetermined() -> None:
    dumps = {}
    for rank in range(2):
        record = CollectiveRecord(f"group 3:rank {rank}", 9, "all_reduce")
        dumps[rank] = RankDump(rank, "ok", [record], {record.group: 9}, {}, {})
    verdict = judge(HangEvidence(dumps))
    assert (verdict.verdict, verdict.root_ranks) == ("undetermined", [])


def test_watchdogs_of_one_group_in_different_operations() -> None:
    def at(rank: int, op: str, group: str = "default_pg") -> ProgressReport:
        return ProgressReport(rank=rank, global_rank=True, group=group, op=op, stuck_seq=55)

    verdict = judge(HangEvidence(progress=[at(0, "ALLREDUCE"), at(1, "ALLGATHER"), at(2, "ALLREDUCE")]))
    assert (verdict.verdict, verdict.root_ranks, verdict.waiting) == ("op_mismatch", [1], [0, 2])
    tied = judge(HangEvidence(progress=[at(0, "ALLREDUCE"), at(1, "ALLGATHER")]))
    assert (tied.verdict, tied.root_ranks) == ("op_mismatch", [])
    unnamed = judge(HangEvidence(progress=[at(0, "ALLREDUCE", ""), at(1, "ALLGATHER", ""), at(2, "ALLREDUCE", "")]))
    assert unnamed.verdict == "undetermined"
