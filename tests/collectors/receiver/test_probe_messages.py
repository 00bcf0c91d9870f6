"""What the receiver makes of messages: honest, lying, broken and flooding senders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flightwatch.collectors.environment import environment_at
from flightwatch.collectors.receiver import Intake
from flightwatch.collectors.receiver_rows import MOST_ROWS
from flightwatch.collectors.receiver_settings import ReceiverSettings
from flightwatch.collectors.receiver_socket import Datagram
from flightwatch.core.catalogue import TABLES
from flightwatch.core.protocols import Row

NOW_MS = 1_700_000_000_000
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
)
STEP = {"ts": NOW_MS, "step": 7, "step_us": 1000.0, "compute_us": 600.0}


class Machine:
    """An intake over a folder that stands for the machine's root, and a clock that a test moves."""

    def __init__(self, root: str, **wanted: Any) -> None:
        self.now_s = 100.0
        environment = environment_at(root)
        environment.receiver = ReceiverSettings(**wanted)
        self.intake = Intake(environment, lambda: self.now_s)

    def send(self, data: object, uid: int = 1000, pid: int | None = None, cut: bool = False) -> None:
        content = data if isinstance(data, bytes) else json.dumps(data).encode()
        self.intake.accept(Datagram(content, pid, uid, cut), NOW_MS)

    def rows(self, table: str | None = None) -> list[Row]:
        """Return rows of one table, or all but the receiver's own figures."""
        rows = self.intake.take(NOW_MS)
        return [row for row in rows if (row.table == table if table else row.table != "self_metrics")]

    def count(self, name: str) -> int:
        return self.intake._counts[name]


@pytest.fixture
def machine(tmp_path: Any) -> Machine:
    return Machine(str(tmp_path))


def message(*rows: Any, job: str = "j", rank: int = 0, **head: Any) -> dict[str, Any]:
    return {"v": 1, "job": job, "run": "0", "rank": rank, "pid": 5, "rows": list(rows)} | head


def test_a_step_becomes_a_row_of_its_sender(machine: Machine) -> None:
    machine.send(message(["rank_steps", STEP], rank=3))
    (row,) = machine.rows("rank_steps")
    assert row.values == STEP | {"job": "j", "run": "0", "rank": 3}


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\xff\xfe", b"[" * 60_000, b'{"v":1', b"null", b"[1]", b'{"v":2}', b'{"v":1,"job":"","run":"0"}',
        b'{"v":1,"job":"a","run":"0","rank":-1,"pid":1,"rows":[]}',
        b'{"v":1,"job":"a","run":"0","rank":1e9,"pid":1,"rows":[]}',
        b'{"v":1,"job":"a","run":"0","rank":true,"pid":1,"rows":{}}',
        b'{"v":1,"job":"a\\nb","run":"0","rank":1,"pid":1,"rows":[]}',
        b'{"v":1,"job":"a","run":"0","rank":' + b"9" * 5000 + b',"pid":1,"rows":[]}',
        json.dumps({"v": 1, "job": "a", "run": "0", "rank": 0, "pid": 1, "rows": [0] * (MOST_ROWS + 1)}).encode(),
    ],
)  # fmt: skip
def test_what_is_no_message_is_counted_and_nothing_else(data: bytes, machine: Machine) -> None:
    machine.send(data)
    assert machine.rows() == []
    assert machine.count("malformed_datagrams") == 1


def test_a_cut_message_is_refused(machine: Machine) -> None:
    machine.send(message(["rank_steps", STEP]), cut=True)
    assert machine.rows() == []


@pytest.mark.parametrize(
    ("table", "values"),
    [
        ("node_samples", {"load1": 1.0}),
        ("findings", {"kind": "slow"}),
        ("rank_steps", {"step": -1}),
        ("rank_steps", {"step": 1.5}),
        ("rank_steps", {"step": 2**64}),
        ("rank_steps", {"step": 1, "ts": NOW_MS + 3_600_000}),
        ("rank_steps", {"step": 1, "ts": NOW_MS - 48 * 3_600_000}),
        ("rank_steps", {"step": 1, "ts": "yesterday"}),
        ("op_timings", {"level": "galaxy", "step": 1, "steps": 1, "kind": "comm", "op": "x", "count": 1}),
        ("events", {"code": "xid:79", "severity": "critical", "message": "the device fell off the bus"}),
        ("runs", {"phase": "party"}),
        ("process_groups", {"process_group": "g", "desc": "d", "members": [[0, 2**31 - 2, 1]]}),
    ],
)
def test_rows_that_are_none_of_a_probe_are_left_out(table: str, values: dict[str, Any], machine: Machine) -> None:
    machine.send(message([table, {"ts": NOW_MS} | values], ["rank_steps", STEP]))
    assert [row.table for row in machine.rows()] == ["rank_steps"]
    assert machine.count("refused_values") >= 1


def test_a_sender_cannot_choose_node_job_rank_or_source(machine: Machine) -> None:
    lies = {"node": "other", "cluster": "other", "job": "other", "rank": 9, "wait_us": 5.0, "received_at": 1}
    machine.send(message(["rank_steps", STEP | lies]))
    event = {"ts": NOW_MS, "code": "nonfinite:forward", "severity": "error", "message": "m", "source": "kernel"}
    machine.send(message(["events", event]))
    step, said = sorted(machine.rows(), key=lambda row: row.table, reverse=True)
    assert step.values == STEP | {"job": "j", "run": "0", "rank": 0}
    assert said.values["source"] == "probe"


def test_damaged_values_are_left_out_and_the_rest_of_the_row_stays(machine: Machine) -> None:
    bad = {"compute_us": float("nan"), "comm_us": -1.0, "data_us": "x", "tokens": True, "loss": float("inf"),
           "work": {"a": 1.0, "b": "x", "": 2.0}}  # fmt: skip
    machine.send(message(["rank_steps", STEP | bad]))
    (row,) = machine.rows("rank_steps")
    assert row.values["loss"] == float("inf")
    assert row.values["work"] == {"a": 1.0}
    assert {"compute_us", "comm_us", "data_us", "tokens"}.isdisjoint(row.values)


def test_another_users_job_is_out_of_reach(machine: Machine) -> None:
    machine.send(message(["rank_steps", STEP], job="llama"), uid=1000)
    machine.rows()
    machine.send(message(["rank_steps", STEP], job="llama"), uid=2000)
    refused = machine.rows()
    assert [row.values["code"] for row in refused] == ["probe:refused"]
    machine.send(message(["rank_steps", STEP], job="llama"), uid=1000)
    assert [row.table for row in machine.rows()] == ["rank_steps"]
    # After an hour of silence the name is free again.
    machine.now_s += 3700
    machine.send(message(["rank_steps", STEP], job="llama"), uid=2000)
    assert [row.table for row in machine.rows("rank_steps")] == ["rank_steps"]


def test_the_schedulers_cgroup_counts_more_than_what_is_said(tmp_path: Any) -> None:
    (tmp_path / "proc/77").mkdir(parents=True)
    (tmp_path / "proc/77/cgroup").write_text("0::/system.slice/slurmstepd.scope/job_9/step_0/user/task_0\n")
    machine = Machine(str(tmp_path))
    machine.send(message(["rank_steps", STEP], job="9"), uid=2000)
    machine.send(message(["rank_steps", STEP], job="someone-elses"), uid=1000, pid=77)
    rows = machine.rows("rank_steps")
    assert [row.values["job"] for row in rows] == ["9", "9"]
    # The one without proof had taken the name; now it is its owner's.
    machine.send(message(["rank_steps", STEP], job="9"), uid=2000)
    assert machine.rows("rank_steps") == []


def test_a_flood_is_refused_told_once_and_harms_nobody_else(tmp_path: Any) -> None:
    machine = Machine(str(tmp_path), datagrams_per_second=10.0)
    for _ in range(500):
        machine.send(message(["rank_steps", STEP], job="flood"), uid=666)
    machine.send(message(["rank_steps", STEP], job="quiet"), uid=1000)
    rows = machine.rows()
    assert sum(row.values.get("job") == "flood" for row in rows) == 20
    assert sum(row.values.get("job") == "quiet" for row in rows) == 1
    (event,) = [row for row in rows if row.table == "events"]
    assert "uid 666" in str(event.values["message"])
    for _ in range(50):
        machine.send(message(["rank_steps", STEP], job="flood"), uid=666)
    assert [row for row in machine.rows() if row.table == "events"] == []


def test_names_are_bounded(tmp_path: Any) -> None:
    machine = Machine(str(tmp_path), names=10)
    for number in range(50):
        machine.send(message(["rank_steps", STEP | {"work": {f"counter{number}": 1.0}}]))
    counters = [row.values.get("work") for row in machine.rows("rank_steps")]
    names = {name for one in counters if isinstance(one, dict) for name in one}
    assert len(names) < 10


def test_waits_are_split_where_the_whole_group_is_here(machine: Machine) -> None:
    group = {"ts": NOW_MS, "process_group": "dp:1", "desc": "dp", "members": [[0, 1, 1]]}
    machine.send(message(["process_groups", group]))
    for rank, us in ((0, 900.0), (1, 100.0)):
        values = STEP | {"comm_us": us, "groups": {"dp:1": us}}
        machine.send(message(["rank_steps", values], rank=rank))
    rows = {row.values["rank"]: row.values for row in machine.rows("rank_steps")}
    assert (rows[0]["wait_us"], rows[0]["transfer_us"]) == (800.0, 100.0)
    assert (rows[1]["wait_us"], rows[1]["transfer_us"]) == (0.0, 100.0)


def test_a_group_with_members_elsewhere_has_unknown_waits_and_its_rows_are_not_held_for_ever(machine: Machine) -> None:
    group = {"ts": NOW_MS, "process_group": "dp:2", "desc": "dp", "members": [[0, 8, 8]]}
    machine.send(message(["process_groups", group]))
    machine.send(message(["rank_steps", STEP | {"comm_us": 5.0, "groups": {"dp:2": 5.0}}]))
    assert machine.rows("rank_steps") == []
    machine.now_s += 3
    (row,) = machine.rows("rank_steps")
    assert "wait_us" not in row.values


def test_a_placement_is_told_once_until_it_changes_or_its_process_is_gone(machine: Machine) -> None:
    place = ["placements", {"ts": NOW_MS, "dp": 0}]
    for _ in range(3):
        machine.send(message(place))
    assert len(machine.rows("placements")) == 1
    machine.send(message(["placements", {"ts": NOW_MS, "dp": 1}]))
    (changed,) = machine.rows("placements")
    assert changed.values["dp"] == 1
    machine.now_s += 130
    (ended,) = machine.rows("placements")
    assert ended.values["valid_until"] is not None


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.dictionaries(st.sampled_from(["v", "job", "run", "rank", "pid", "rows"]),
                    ANYTHING),
    st.sampled_from(sorted(TABLES)),
    st.dictionaries(st.sampled_from(["ts", "step", "loss", "work", "op", "level", "attrs", "members", "groups"]),
                    st.none() | st.integers() | st.floats() | st.text(max_size=9)
                    | st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=3)),
)  # fmt: skip
def test_nothing_a_message_holds_raises_or_leaves_the_catalogue(
    head: Mapping[str, Any], table: str, values: dict[str, Any]
) -> None:
    machine = Machine("/nonexistent")
    machine.send(message([table, values]) | dict(head))
    machine.send(message([table, {"ts": NOW_MS} | values]))
    machine.now_s += 5
    for row in machine.rows():
        columns = {column.name: column for column in TABLES[row.table].columns}
        for name, cell in row.values.items():
            assert cell is not None or columns[name].nullable
            assert name in columns


def _phase(phase: str, ended: bool = False) -> list[Any]:
    values = {"ts": NOW_MS, "phase": phase, "started_at": NOW_MS}
    return ["runs", values | ({"ended_at": NOW_MS} if ended else {})]


def test_phases_of_other_ranks_than_the_first_are_for_this_nodes_watch_alone(machine: Machine) -> None:
    watched: list[Row] = []
    machine.intake._environment.run_watch = watched.append
    machine.send(message(_phase("evaluate"), rank=8))
    assert machine.rows("runs") == []
    assert [(row.values["job"], row.values["phase"]) for row in watched] == [("j", "evaluate")]
    machine.send(message(_phase("evaluate"), rank=0))
    assert [row.values["phase"] for row in machine.rows("runs")] == ["evaluate"]
    assert len(watched) == 1


def test_a_run_has_ended_on_a_node_when_its_last_rank_there_says_so(machine: Machine) -> None:
    watched: list[Row] = []
    machine.intake._environment.run_watch = watched.append
    for rank in (8, 9):
        machine.send(message(["placements", {"ts": NOW_MS - 50, "dp": rank}], rank=rank))
    assert len(machine.rows("placements")) == 2
    machine.send(message(["left", {"ts": NOW_MS}], rank=8))
    (left,) = machine.rows("placements")
    assert (left.values["rank"], left.values["ts"], left.values["valid_until"]) == (8, NOW_MS - 50, NOW_MS)
    # One that ends while another hangs is no end of the run.
    assert watched == []
    machine.send(message(["left", {"ts": NOW_MS}], rank=9))
    (end,) = watched
    assert (end.table, end.values["phase"], end.values["ended_at"]) == ("runs", "train", NOW_MS)
    assert [row.values["rank"] for row in machine.rows("placements")] == [9]
