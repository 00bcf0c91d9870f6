from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from flightwatch.core.clock import SystemClock
from flightwatch.core.errors import ConfigError
from flightwatch.pipeline.store import jobs_reads, ledger_reads
from flightwatch.pipeline.store.client import Store, open_store
from flightwatch.pipeline.store.migrate import migrate
from flightwatch.pipeline.store.settings import StoreSettings
from tests.incidents.store_kit import insert

NOW = SystemClock().now_ms() // 86_400_000 * 86_400_000
HOUR = 3_600_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    opened = open_store(f"chdb://{tmp_path_factory.mktemp('ledger') / 'data'}", StoreSettings())
    migrate(opened)
    insert(opened, "incidents", _incidents(), "incidents")
    insert(opened, "runs", _runs(), "runs")
    insert(opened, "rank_steps", _steps(), "steps")
    insert(opened, "inventory", [{"ts": NOW - 9 * HOUR, "node": f"n{n}"} for n in range(4)], "nodes")
    yield opened
    opened.close()


def incident(id_: str, at: float, **cells: Any) -> dict[str, Any]:
    opened = NOW + round(at * HOUR)
    return {"ts": opened, "id": id_, "version": 1, "state": "open", "severity": "P2", "kind": "slow", "title": id_,
            "opened_at": opened, "updated_at": opened, "findings": [f"f-{id_}"], "tenant": "red",
            "job": "llm"} | cells  # fmt: skip


def _incidents() -> list[dict[str, Any]]:
    return [
        incident("a", 0, node="n1", lost_gpu_hours=2.0),
        incident("a", 0, node="n1", lost_gpu_hours=5.0, version=2),
        incident("b", 1, node="n2", lost_gpu_hours=7.5, kind="hang", state="resolved", closed_at=NOW + 2 * HOUR),
        incident("c", 2, node="n1", lost_gpu_hours=None, kind="ecc", state="resolved", closed_at=NOW + 5 * HOUR),
        incident("d", 3, node="n1", lost_gpu_hours=99.0, state="false_positive", closed_at=NOW + 4 * HOUR),
        # Taken over by `b`: its loss and findings are told there.
        incident("e", 1, node="n3", lost_gpu_hours=None, kind="hang", state="resolved", findings=[],
                 closed_at=NOW + 2 * HOUR),
        incident("f", 4, node="n2", lost_gpu_hours=1.0, kind="hang", tenant="blue", state="resolved",
                 closed_at=NOW + 6 * HOUR),
        incident("g", 30, node="n2", lost_gpu_hours=50.0),
    ]  # fmt: skip


def _runs() -> list[dict[str, Any]]:
    def phase(run: str, name: str, begin: float, end: float | None) -> dict[str, Any]:
        return {"ts": NOW + round(begin * 1000), "job": "llm", "run": run, "phase": name,
                "started_at": NOW + round(begin * 1000),
                "ended_at": None if end is None else NOW + round(end * 1000)}  # fmt: skip

    return [
        # First attempt: 100 s of init with a rendezvous in it, 400 s of train with a checkpoint and an evaluation.
        phase("1", "init", 0, 100), phase("1", "rendezvous", 10, 40),
        phase("1", "train", 100, None), phase("1", "train", 100, 500),
        phase("1", "checkpoint", 200, 230), phase("1", "evaluate", 300, 350),
        # Down for 100 s. Second attempt: restores inside init, and its train still runs.
        phase("2", "init", 600, 700), phase("2", "restore", 620, 680), phase("2", "train", 700, None),
    ]  # fmt: skip


def _steps() -> list[dict[str, Any]]:
    def step(run: str, number: int, at: float, seconds: float) -> list[dict[str, Any]]:
        return [{"ts": NOW + round(at * 1000), "job": "llm", "run": run, "step": number, "rank": rank,
                 "step_us": seconds * 1e6, "node": "n1"} for rank in (0, 1)]  # fmt: skip

    rows: list[dict[str, Any]] = []
    for number in range(30):  # steps 0..29 of 10 s from 100 s on
        rows += step("1", number, 100 + 10 * number, 10)
    for number in range(20, 40):  # 20..29 again, then 30..39: 11 s each from 700 s on
        rows += step("2", number, 700 + 11 * (number - 20), 11)
    return rows


def test_lost_hours_count_each_incident_once_by_its_newest_version(store: Store) -> None:
    by_kind = ledger_reads.lost_gpu_hours(store, NOW, NOW + 24 * HOUR)
    columns = ("kind", "incidents", "lost_gpu_hours", "incidents_without_figure")
    assert [tuple(row[name] for name in columns) for row in by_kind] == [
        ("hang", 2, 8.5, 0), ("slow", 1, 5.0, 0), ("ecc", 1, None, 1),
    ]  # fmt: skip
    by_node = ledger_reads.lost_gpu_hours(store, NOW, NOW + 24 * HOUR, by=("node",))
    assert {row["node"]: row["lost_gpu_hours"] for row in by_node} == {"n2": 8.5, "n1": 5.0}
    by_incident = ledger_reads.lost_gpu_hours(store, NOW, NOW + 24 * HOUR, by=("incident", "kind"), tenants=["blue"])
    assert [(row["incident"], row["kind"], row["lost_gpu_hours"]) for row in by_incident] == [("f", "hang", 1.0)]
    assert ledger_reads.lost_gpu_hours(store, NOW, NOW + 24 * HOUR, tenants=[]) == []
    for by in (("price",), ()):
        with pytest.raises(ConfigError):
            ledger_reads.lost_gpu_hours(store, NOW, NOW + 1, by=by)


def test_the_view_agrees_with_the_read(store: Store) -> None:
    rows = store.rows("SELECT sum(lost_gpu_hours) AS lost, sum(incidents) AS n FROM flightwatch.v_lost_gpu_hours")
    # 5 + 7.5 + 1 + 50; a, b, c, f, g.
    assert rows == [{"lost": 63.5, "n": 5}]


def test_goodput_by_phase_against_a_hand_computed_job(store: Store) -> None:
    (found,) = ledger_reads.goodput(store, ["llm"])
    assert found["attempts"] == 2
    # From 0 s to the end of the newest step: 700 + 20 * 11.
    assert found["wall_s"] == 920.0
    assert found["phase_s"] == {
        "checkpoint": 30.0, "evaluate": 50.0, "init": 70.0 + 40.0, "rendezvous": 30.0, "restore": 60.0,
        "train": 400.0 - 80.0 + 220.0,
    }  # fmt: skip
    assert found["between_s"] == 100.0
    assert (found["steps"], found["steps_repeated"]) == (40, 10)
    # Steps 0..19 took 10 s each, 20..39 at last 11 s each.
    assert found["productive_s"] == 20 * 10 + 20 * 11
    assert found["goodput_ratio"] == pytest.approx(420 / 920)
    assert found["repeated_s"] == 540.0 - 420.0
    assert ledger_reads.goodput(store, ["nix"]) == []


def test_a_job_that_was_killed_does_not_train_on(store: Store) -> None:
    # The second attempt never said that it ended; its newest step did, long ago.
    found = jobs_reads.goodput(store, "llm")
    assert found is not None
    assert (found["wall_s"], found["train_s"]) == (920.0, 400.0 + 220.0)
    assert found["ratio"] == pytest.approx(620 / 920)


def test_a_job_that_only_steps_never_exceeds_its_time(store: Store) -> None:
    insert(store, "runs", [{"ts": NOW, "job": "calm", "run": "1", "phase": "train", "started_at": NOW + 400}], "calm")
    insert(store, "rank_steps", [
        {"ts": NOW + 5000 * step, "job": "calm", "run": "1", "step": step, "rank": 0, "step_us": 5_000_400.0}
        for step in range(10)
    ], "calm-steps")  # fmt: skip
    (found,) = ledger_reads.goodput(store, ["calm"])
    assert found["wall_s"] == 50.0
    assert found["phase_s"] == {"train": 49.6}
    assert found["goodput_ratio"] == 1.0


def test_interruptions_of_a_job(store: Store) -> None:
    found = ledger_reads.interruptions(store, "llm")
    assert (found["attempts"], found["interruptions"]) == (2, 1)
    # Up from 100 to 400 s and from 700 to 920 s; down from 400 to 700 s.
    assert found["up_h"] == pytest.approx(520 / 3600)
    assert found["mtbf_h"] == pytest.approx(520 / 3600)
    assert found["mttr_h"] == pytest.approx(300 / 3600)
    assert ledger_reads.interruptions(store, "nix")["mtbf_h"] is None


def test_failures_and_repairs(store: Store) -> None:
    by_kind = ledger_reads.failures_and_repairs(store, NOW, NOW + 24 * HOUR)
    assert by_kind == [
        # 4 nodes x 24 h / 2 failures; repaired in 1 h and 2 h.
        {"kind": "hang", "failures": 2, "repaired": 2, "mtbf_h": 48.0, "mttr_h": 1.5},
        {"kind": "ecc", "failures": 1, "repaired": 1, "mtbf_h": 96.0, "mttr_h": 3.0},
    ]
    by_node = ledger_reads.failures_and_repairs(store, NOW, NOW + 24 * HOUR, by="node")
    assert [(row["node"], row["failures"], row["mtbf_h"]) for row in by_node] == [("n2", 2, 12.0), ("n1", 1, 24.0)]
    with pytest.raises(ConfigError):
        ledger_reads.failures_and_repairs(store, NOW, NOW + 1, by="price")


def test_the_history_follows_a_serial_number_to_another_node(store: Store) -> None:
    insert(store, "inventory", [
        {"ts": NOW, "node": "x1", "device": 2, "serial": "S-7"},
        {"ts": NOW, "node": "x2", "device": 0, "serial": "S-8"},
        {"ts": NOW + 4 * HOUR, "node": "x2", "device": 0, "serial": "S-7"},
    ], "serials")  # fmt: skip
    insert(store, "events", [
        {"ts": NOW + HOUR, "node": "x1", "device": 2, "source": "kernel", "code": "xid:48", "severity": "error",
         "message": "first"},
        {"ts": NOW + 2 * HOUR, "node": "x2", "device": 0, "source": "kernel", "code": "xid:79", "severity": "critical",
         "message": "another card"},
        {"ts": NOW + 5 * HOUR, "node": "x2", "device": 0, "source": "kernel", "code": "xid:94", "severity": "error",
         "message": "moved"},
    ], "serial-events")  # fmt: skip
    found = ledger_reads.node_history(store, serial="S-7", sources=["event"])
    assert [(row["node"], row["summary"]) for row in found] == [("x2", "moved"), ("x1", "first")]
    newest = ledger_reads.node_history(store, node="x2", since_ms=NOW + 3 * HOUR, limit=1)
    assert [row["summary"] for row in newest] == ["moved"]
    with pytest.raises(ConfigError):
        ledger_reads.node_history(store)
