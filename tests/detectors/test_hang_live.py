"""A hang out of the rows that agents store: confirmed by a second sign, named, cleared."""

from __future__ import annotations

from typing import Any

import pandas as pd

from flightwatch.core.vocabulary import FindingScope, FindingState, Severity
from flightwatch.detectors.contract import Finding
from flightwatch.detectors.hang_live import HangDetector
from flightwatch.detectors.hang_rows import episodes_of

START = 1_700_000_000_000.0
WORLD = (0, 1, 2, 3)
GROUP = "default_pg:abc"
LATE = 2


class Store:
    """Rows as agents of two nodes (ranks 0-1 on n0, 2-3 on n1) send them."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {}
        for rank in WORLD:
            base = {"ts": START - 60_000, "job": "llama", "run": "0", "rank": float(rank)}
            self.add("placements", base | {"node": f"n{rank // 2}", "device": float(rank % 2), "valid_until": None})
            self.add("rank_steps", base | {"step": 41.0})
        self.add("process_groups", {"ts": START, "job": "llama", "run": "0", "process_group": GROUP, "members": WORLD})

    def add(self, table: str, row: dict[str, Any]) -> None:
        self.rows.setdefault(table, []).append(row)

    def capture(
        self, name: str, at_s: float, ranks: tuple[int, ...] = WORLD, seq: int = 7, waits_for: str = "unknown"
    ) -> None:
        for rank in ranks:
            base = {"ts": START + 1000 * at_s, "job": "llama", "run": "0", "rank": float(rank), "capture_id": name}
            self.add("dumps", base | {"cluster": "c", "node": f"n{rank // 2}", "status": "ok"})
            entry = base | {"process_group": GROUP, "op": "all_reduce", "is_p2p": 0.0, "peer": float("nan"),
                            "bytes": 32.0, "dtype": "Float", "state": "scheduled", "created_at": START}  # fmt: skip
            self.add("collectives", entry | {"seq": seq - 1.0, "retired": 1.0, "op": "unknown", "record_id": None})
            if rank != LATE:
                self.add("collectives", entry | {"seq": float(seq), "retired": 0.0, "record_id": 0.0})
            where = "stuck_here (train.py:7)" if rank == LATE else "all_reduce (distributed_c10d.py:9)"
            self.add("events", {
                "ts": base["ts"], "job": "llama", "run": "0", "rank": float(rank), "code": "hang:evidence",
                "message": f"stack: {where} < main (train.py:99)", "attrs.capture_id": name,
                "attrs.stack_digest": where,
                "attrs.waits_for": waits_for if rank == LATE else "collective",
            })  # fmt: skip

    def frames(self) -> dict[str, pd.DataFrame]:
        return {table: pd.DataFrame(rows) for table, rows in self.rows.items()}

    def findings(self) -> list[Finding]:
        return HangDetector().score(self.frames())


def test_two_captures_name_the_rank_its_node_and_its_line() -> None:
    store = Store()
    store.capture("h1", 0)
    assert store.findings() == [], "one capture proves nothing"
    store.capture("h1.2", 5)
    (found,) = store.findings()
    assert (found.class_, found.scope, found.rank, found.node, found.device) == (
        "missing_rank", FindingScope.RANK, 2, "n1", 0,
    )  # fmt: skip
    assert (found.severity, found.detected_at, found.blames_hardware) == (Severity.P1, START + 5000, False)
    assert "rank 2" in found.summary
    assert "stuck_here (train.py:7)" in found.summary
    assert found.evidence["second_sign"] == "two captures"
    assert (found.evidence["waiting"], found.evidence["ranks_seen"]) == ([0, 1, 3], 4)


def test_a_job_that_went_on_between_the_captures_does_not_hang() -> None:
    store = Store()
    store.capture("h1", 0, seq=7)
    store.capture("h1.2", 5, seq=9)
    assert store.findings() == []


def test_a_node_whose_evidence_is_late_is_not_blamed_yet() -> None:
    store = Store()
    store.capture("h1", 0, ranks=(0, 1))
    store.capture("h1.2", 5, ranks=(0, 1))
    assert store.findings() == [], "n1 may still answer"
    store.capture("h1.3", 15, ranks=(0, 1))
    (found,) = store.findings()
    assert (found.scope, found.node, found.targets) == (FindingScope.NODE, "n1", ("rank 2", "rank 3"))
    assert found.evidence["no_log"] == [2, 3]


def test_ports_that_carry_nothing_are_a_second_sign() -> None:
    store = Store()
    store.capture("h1", 0)
    for at_s in (1, 3):
        store.add("port_samples", {"ts": START + 1000 * at_s, "node": "n0", "hca": "mlx5_0", "port": 1.0,
                                   "rx_bytes_total": 5e9, "tx_bytes_total": 6e9})  # fmt: skip
    (found,) = store.findings()
    assert found.evidence["second_sign"] == "no RDMA traffic"
    store.rows["port_samples"][-1]["rx_bytes_total"] += 1e6
    assert store.findings() == []


def test_a_rank_that_writes_a_checkpoint_is_waited_for_without_alarm() -> None:
    store = Store()
    store.capture("h1", 0, waits_for="checkpoint")
    store.capture("h1.2", 5, waits_for="checkpoint")
    assert store.findings() == []


def test_a_data_loader_that_gives_nothing_is_an_input_stall() -> None:
    store = Store()
    store.capture("h1", 0, waits_for="input")
    store.capture("h1.2", 5, waits_for="input")
    (found,) = store.findings()
    assert (found.class_, found.rank, found.severity) == ("input_stall", 2, Severity.P2)


def test_steps_that_come_again_clear_it_and_a_second_hang_of_the_node_blames_it() -> None:
    store = Store()
    store.capture("h1", 0)
    store.capture("h1.2", 5)
    store.add("rank_steps", {"ts": START + 60_000, "job": "llama", "run": "0", "rank": 0.0, "step": 42.0})
    raised, cleared = store.findings()
    assert (raised.id, cleared.state, cleared.detected_at) == (cleared.id, FindingState.CLEARED, START + 60_000)
    store.capture("h2", 3600)
    store.capture("h2.2", 3605)
    last = store.findings()[-1]
    assert (last.state, last.blames_hardware) == (FindingState.RAISED, True)
    assert "second hang on n1 within a day" in last.summary


def test_old_torch_without_flight_recorder_is_judged_by_stacks() -> None:
    store = Store()
    for name, at_s in (("h1", 0), ("h1.2", 5)):
        store.capture(name, at_s)
    store.rows["collectives"] = []
    for row in store.rows["dumps"]:
        row["status"] = "missing"
    (found,) = store.findings()
    assert (found.class_, found.rank, found.confidence) == ("missing_rank", 2, 0.6)


def test_only_the_captures_asked_for_are_read() -> None:
    store = Store()
    store.capture("h1", 0)
    store.capture("e2", 1)
    assert [one.captures for one in episodes_of(store.frames(), {"e2"})] == [{"e2"}]
    assert episodes_of({}) == []


def test_a_run_that_evaluates_is_waited_for_until_it_has_taken_too_long() -> None:
    store = Store()
    phase = {"ts": START - 5000, "job": "llama", "run": "0", "phase": "evaluate", "started_at": START - 5000}
    store.add("runs", phase | {"ended_at": float("nan")})
    store.capture("h1", 0)
    store.capture("h1.2", 5)
    assert store.findings() == []
    store.rows["runs"][0]["started_at"] -= 2 * 3_600_000
    assert [one.rank for one in store.findings()] == [2]
    store.rows["runs"][0]["started_at"] += 2 * 3_600_000
    store.add("runs", phase | {"ended_at": START - 1000})
    assert [one.rank for one in store.findings()] == [2], "the evaluation is over"
