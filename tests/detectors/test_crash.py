"""Who ended a job: events and placements in, one root out."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
import pytest

from flightwatch.core.vocabulary import FindingKind, FindingScope, FindingState, Severity
from flightwatch.detectors.contract import Finding
from flightwatch.detectors.crash import CrashDetector
from tests.contracts.detector_stage import crash_rows

T0 = 1_760_000_000_000.0
PLACEMENTS = pd.DataFrame(
    [
        {"ts": T0, "node": f"n{i // 4}", "job": "j", "run": "1", "rank": float(i), "device": float(i % 4)}
        for i in range(16)
    ]
)


def failed(at_s: float, node: str, local: int, code: int) -> dict[str, object]:
    return {"ts": T0 + 1000 * at_s, "node": node, "source": "comm", "code": "elastic:rank_failed", "severity": "error",
            "message": "failed", "attrs.exitcode": str(code), "attrs.local_rank": str(local)}  # fmt: skip


def event(at_s: float, node: str, code: str, source: str = "comm", **more: object) -> dict[str, object]:
    return {"ts": T0 + 1000 * at_s, "node": node, "source": source, "code": code, "severity": "error",
            "message": code, **more}  # fmt: skip


def crashes(*rows: Mapping[str, object], steps: pd.DataFrame | None = None) -> list[Finding]:
    frames = {"events": pd.DataFrame(list(rows)), "placements": PLACEMENTS}
    return CrashDetector().score(frames if steps is None else {**frames, "rank_steps": steps})


def test_a_device_that_fell_off_the_bus_is_the_root_of_the_ranks_that_ended() -> None:
    (found,) = CrashDetector().score(crash_rows())
    assert (found.kind, found.scope, found.node, found.device, found.rank) == (
        FindingKind.CRASH, FindingScope.RANK, "n1", 0, 2,
    )  # fmt: skip
    assert (found.blames_hardware, found.severity, found.job) == (True, Severity.P1, "j")
    assert found.evidence["code"] == "xid:79"


def test_terminated_and_aborted_ranks_are_consequences_even_when_logged_first() -> None:
    (found,) = crashes(failed(100, "n0", 1, -15), failed(101, "n3", 2, -6), failed(103, "n2", 3, 1))
    assert (found.rank, found.node, found.blames_hardware) == (11, "n2", False)
    assert (found.evidence["exit_code"], found.evidence["ranks_ended"]) == (1, 3)


def test_a_segfault_outweighs_an_earlier_exit_code() -> None:
    (found,) = crashes(failed(100, "n0", 0, 1), failed(104, "n1", 1, -11))
    assert (found.rank, found.evidence["cause"]) == (5, "exit")
    assert "SIGSEGV" in found.summary


def test_ranks_of_two_nodes_that_end_together_are_not_told_apart_with_confidence() -> None:
    (close,) = crashes(failed(100, "n0", 0, 1), failed(101, "n1", 0, 1))
    (apart,) = crashes(failed(100, "n0", 0, 1), failed(110, "n1", 0, 1))
    assert (close.confidence, apart.confidence) == (0.4, 0.7)


def test_memory_that_ran_out_on_the_host_is_the_programs_fault() -> None:
    killed = event(99, "n3", "oom:kill", "kernel", **{"attrs.process": "python"})
    (found,) = crashes(killed, failed(100, "n3", 2, -9), failed(101, "n0", 0, 1))
    assert (found.node, found.evidence["cause"], found.evidence["code"]) == ("n3", "program", "oom:kill")
    assert not found.blames_hardware


def test_a_broken_transport_is_named_before_the_ranks_that_gave_up() -> None:
    broken = event(90, "n1", "nccl:ib_completion", device=2.0)
    (found,) = crashes(broken, event(95, "n0", "nccl:warn"), failed(100, "n0", 0, 1))
    assert (found.node, found.device, found.rank, found.evidence["cause"]) == ("n1", 2, 6, "transport")


def test_after_a_timeout_no_rank_is_named() -> None:
    (found,) = crashes(
        event(90, "n0", "watchdog:timeout", rank=0.0), failed(100, "n0", 0, -6), failed(101, "n1", 0, -6)
    )
    assert (found.rank, found.node, found.scope) == (None, None, FindingScope.JOB)
    assert "hang" in found.summary


def test_a_fault_on_a_node_without_a_failed_rank_only_comes_after_programs() -> None:
    lost = event(50, "n3", "xid:79", "kernel", severity="critical", device=1.0)
    (alone,) = crashes(lost, failed(100, "n0", 0, 1))
    assert (alone.node, alone.confidence, alone.blames_hardware) == ("n3", 0.6, True)
    (other,) = crashes(
        lost, event(99, "n0", "cuda:out_of_memory", **{"attrs.local_rank": "1"}), failed(100, "n0", 1, 1)
    )
    assert (other.node, other.rank, other.blames_hardware) == ("n0", 1, False)


def test_faults_of_nodes_outside_the_job_and_long_before_it_do_not_count() -> None:
    elsewhere = event(99, "n9", "xid:79", "kernel", severity="critical", device=1.0)
    (found,) = crashes(elsewhere, failed(1000, "n0", 0, 1))
    assert not found.blames_hardware
    (found,) = crashes(event(99, "n0", "xid:79", "kernel", severity="critical"), failed(1000, "n0", 0, 1))
    assert not found.blames_hardware


@pytest.mark.parametrize(
    "row", [failed(100, "n0", 0, 0), event(100, "n0", "nccl:warn"), event(9, "n0", "watchdog:timeout")]
)
def test_good_exits_and_errors_without_an_end_are_no_crash(row: dict[str, object]) -> None:
    assert crashes(row) == []


def test_a_rank_inside_a_communicator_is_no_global_rank() -> None:
    row = event(100, "n7", "cuda:error", rank=1.0, job="other", **{"attrs.rank_scope": "communicator"})
    (found,) = crashes(row)
    assert (found.rank, found.node, found.job) == (None, "n7", "other")


def test_steps_after_the_crash_clear_it_and_a_second_crash_is_raised_again() -> None:
    steps = pd.DataFrame({"ts": [T0, T0 + 90_000, T0 + 200_000], "job": "j", "run": "1", "step": [1.0, 2.0, 3.0]})
    found = crashes(failed(100, "n0", 0, 1), failed(300, "n1", 0, 1), steps=steps)
    assert [(one.state, one.rank) for one in found] == [
        (FindingState.RAISED, 0), (FindingState.CLEARED, 0), (FindingState.RAISED, 4),
    ]  # fmt: skip
    assert found[0].first_step == 2


def test_evidence_that_arrives_later_moves_the_root_of_the_same_finding() -> None:
    (early,) = crashes(failed(100, "n0", 0, 1))
    (late,) = crashes(failed(100, "n0", 0, 1), event(101, "n0", "xid:79", "kernel", severity="critical", device=3.0))
    assert early.id == late.id
    assert (early.blames_hardware, late.blames_hardware) == (False, True)
