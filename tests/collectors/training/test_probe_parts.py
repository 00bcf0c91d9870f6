"""Parts of the probe that need no torch: wire, arithmetic of a step, identity, device events, summaries."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flightwatch.collectors.training.device_time import DeviceTimer
from flightwatch.collectors.training.identity import axis_of, find_identity, role_of_text
from flightwatch.collectors.training.placement import rank_runs
from flightwatch.collectors.training.step import BACKWARD, FORWARD, Step
from flightwatch.collectors.training.summary import STEPS, Summary
from flightwatch.collectors.training.wire import MOST_BYTES, MOST_ROWS, Wire

HEADER = {"v": 1, "job": "j", "run": "0", "rank": 0, "pid": 1}


@pytest.fixture
def path() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="fw-") as folder:
        yield f"{folder}/s"


def _wire(path: str) -> Wire:
    return Wire(path, lambda: HEADER, lambda: None)


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(path)
    listener.setblocking(False)
    return listener


def _received(listener: socket.socket) -> list[Any]:
    rows: list[Any] = []
    while True:
        try:
            data = listener.recv(1 << 17)
        except BlockingIOError:
            return rows
        assert len(data) <= MOST_BYTES
        rows.extend(json.loads(data)["rows"])


def test_rows_wait_for_an_absent_agent_and_come_in_order(path: str) -> None:
    wire = _wire(path)
    for number in range(300):
        wire.put(("rank_steps", {"step": number, "text": "x" * 500}))
        if number % 100 == 0:
            wire.flush()
    assert wire.failed_sends == 3
    with _listen(path) as listener:
        for _ in range(20):
            wire.flush()
            if wire.sent_rows == 300:
                break
        assert [row[1]["step"] for row in _received(listener)] == list(range(300))
    assert (wire.sent_rows, wire.dropped) == (300, 0)


def test_an_agent_that_never_comes_costs_bounded_memory_and_is_counted(path: str) -> None:
    wire = _wire(path)
    for number in range(3 * MOST_ROWS):
        wire.put(("rank_steps", {"step": number}))
    wire.flush()
    assert wire.dropped == 2 * MOST_ROWS
    wire.put(("rank_steps", {"text": "x" * 50_000}))
    with _listen(path) as listener:
        for _ in range(20):
            wire.flush()
            _received(listener)
    assert wire.dropped == 2 * MOST_ROWS + 1


def test_an_agent_that_is_full_and_then_restarted_gets_the_rest(path: str) -> None:
    wire = _wire(path)
    with _listen(path) as first:
        for number in range(2000):
            wire.put(("rank_steps", {"step": number, "text": "x" * 200}))
            wire.flush()
        got = [row[1]["step"] for row in _received(first)]
    assert wire.failed_sends > 0
    Path(path).unlink()
    with _listen(path) as second:
        for _ in range(50):
            wire.flush()
            got += [row[1]["step"] for row in _received(second)]
    assert got == list(range(2000))


@pytest.mark.parametrize("what", ["file", "folder", "link to nothing", "stream socket", "too long"])
def test_a_wrong_socket_is_a_failed_send_and_nothing_else(what: str, path: str) -> None:
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if what == "file":
        Path(path).write_text("precious")
    elif what == "folder":
        Path(path).mkdir()
    elif what == "link to nothing":
        Path(path).symlink_to("/nonexistent/socket")
    elif what == "stream socket":
        stream.bind(path)
        stream.listen()
    wire = _wire(path + "x" * 200 if what == "too long" else path)
    wire.put(("rank_steps", {"step": 1}))
    wire.flush()
    stream.close()
    assert (wire.failed_sends, wire.sent_rows) == (1, 0)
    assert what != "file" or Path(path).read_text() == "precious"


def _step(**counted: int) -> Step:
    step = Step(3, 0, 1_700_000_000_000)
    step.end_ns = 100_000_000
    step.forward_ns, step.backward_ns, step.optimizer_ns = 30_000_000, 50_000_000, 10_000_000
    step.forwards = step.backwards = 1
    for name, value in counted.items():
        setattr(step, name, value)
    return step


def test_a_step_is_compute_communication_and_what_is_neither() -> None:
    step = _step(reducer_ns=20_000_000, hidden_ns=5_000_000)
    step.blocked_ns[FORWARD] = 4_000_000
    step.blocked_ns[BACKWARD] = 1_000_000
    times = step.times_us(True, False, False)
    assert (times["compute_us"], times["comm_us"], times["unattributed_us"]) == (65_000.0, 25_000.0, 10_000.0)
    assert times["overlap_ratio"] == pytest.approx(5 / 30, abs=1e-3)
    assert "data_us" not in times


def test_unseen_communication_leaves_compute_unknown() -> None:
    assert {"compute_us", "comm_us"}.isdisjoint(_step().times_us(True, False, False))
    assert {"compute_us", "comm_us"}.isdisjoint(_step().times_us(False, True, False))
    assert "compute_us" not in _step(forwards=0).times_us(False, False, False)
    step = _step()
    step.device.update(compute_us=70_000.0, comm_us=9_000.0)
    assert step.times_us(False, True, False)["unattributed_us"] == 21_000.0


def test_identity_from_launchers() -> None:
    slurm = find_identity({"SLURM_JOB_ID": "77", "SLURM_PROCID": "5", "SLURM_NTASKS": "8", "TORCHELASTIC_RUN_ID": "x"})
    assert (slurm.job, slurm.rank, slurm.world, slurm.given) == ("77", 5, 8, True)
    elastic = find_identity({"TORCHELASTIC_RUN_ID": "none", "RANK": "1", "MASTER_PORT": "29500"})
    assert elastic.job.endswith("-29500")
    assert not elastic.given
    assert find_identity({"RANK": "-3", "WORLD_SIZE": "x"}, job="j", run="2").run == "2"
    pod = {"KUBERNETES_SERVICE_HOST": "x", "HOSTNAME": "llama-worker-3", "POD_NAMESPACE": "ml", "RANK": "3"}
    assert find_identity(pod).job == "ml/llama"
    assert role_of_text("tp=1, pipeline=2,x=3,dp=-1") == {"tp": 1, "pp": 2}
    assert (axis_of("mesh_tp"), axis_of("DATA_PARALLEL_GROUP"), axis_of("default_pg")) == ("tp", "dp", None)


def test_ten_thousand_ranks_fit_a_row() -> None:
    assert rank_runs(list(range(10_000))) == [[0, 9999, 1]]
    assert rank_runs([0, 8, 16, 17]) == [[0, 16, 8], [17, 17, 1]]
    assert rank_runs([4]) == [[4, 4, 1]]


class FakeEvent:
    """Stands for a device event: it has the time at which it was recorded, and passes when told."""

    now_ms = 0.0
    passed = False

    def record(self) -> None:
        self.at_ms = FakeEvent.now_ms

    def query(self) -> bool:
        return FakeEvent.passed

    def elapsed_time(self, end: FakeEvent) -> float:
        return end.at_ms - self.at_ms


def test_device_times_come_late_without_waiting_and_events_are_used_again() -> None:
    made: list[FakeEvent] = []

    def make() -> FakeEvent:
        made.append(FakeEvent())
        return made[-1]

    timer = DeviceTimer(make, lambda: False)
    FakeEvent.now_ms, FakeEvent.passed = 0.0, False
    steps = [_step() for _ in range(3)]
    for index, step in enumerate(steps):
        FakeEvent.passed = index > 0
        for phase, took_ms, stall_ms in (("forward", 10.0, 2.0), ("backward", 20.0, 0.0), ("optimizer", 1.0, 0.0)):
            timer.begin(phase)
            timer.begin("wait")
            FakeEvent.now_ms += stall_ms
            timer.end("wait")
            FakeEvent.now_ms += took_ms - stall_ms
            if phase != "optimizer":
                timer.end(phase)
        timer.optimizer_and_step_done(step)
        assert bool(step.device) == (index > 0)
    assert steps[0].device == {"forward_us": 10_000.0, "backward_us": 20_000.0, "optimizer_us": 1000.0,
                               "comm_us": 2000.0, "compute_us": 29_000.0}  # fmt: skip
    assert len(made) < 3 * 12


def test_nothing_is_recorded_while_a_stream_is_captured() -> None:
    def never() -> FakeEvent:
        raise AssertionError("recorded during capture")

    timer = DeviceTimer(never, lambda: True)
    timer.begin("forward")
    timer.end("forward")


def test_a_summary_is_of_twenty_steps_or_a_minute_whichever_is_longer() -> None:
    summary = Summary()
    rows: list[Any] = []
    for number in range(65):
        step = _step(number=number, start_ms=1_700_000_000_000 + number * 1000)
        rows += summary.add(step, step.times_us(False, False, False), {})
    whole = {values["op"]: values for _, values in rows}
    assert (whole["step"]["steps"], whole["step"]["count"], whole["step"]["dur_us"]) == (61, 61, 6_100_000.0)
    assert whole["forward"]["span_us"] == 61 * 30_000.0
    assert "dur_us" not in whole["forward"]
    assert {values["steps"] for _, values in summary.rest({})} == {4}
    for number in range(STEPS):
        assert not rows[len(whole) :]
        step = _step(number=number, start_ms=1_700_000_000_000 + number * 100_000)
        rows += summary.add(step, step.times_us(False, False, False), {})
    assert rows[-1][1]["steps"] == STEPS


def test_importing_the_package_imports_nothing_and_a_probe_only_the_standard_library() -> None:
    script = (
        "import sys; before = set(sys.modules); import flightwatch\n"
        "assert {m for m in set(sys.modules) - before} == {'flightwatch'}, set(sys.modules) - before\n"
        "import flightwatch._autoload as a; a.autoload()\n"
        "with flightwatch.step(): pass\n"
        "found = {m.split('.')[0] for m in set(sys.modules) - before}\n"
        "assert found <= set(sys.stdlib_module_names) | {'flightwatch'}, found\n"
        "ours = {m for m in sys.modules if m.startswith('flightwatch.')}\n"
        "assert all(m.startswith(('flightwatch.collectors.training', 'flightwatch._autoload')) or m in"
        " ('flightwatch.collectors', 'flightwatch.core', 'flightwatch.core.vocabulary') for m in ours), ours\n"
    )
    environment = os.environ | {"FLIGHTWATCH": "0", "FLIGHTWATCH_SOCKET": "/nonexistent"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
