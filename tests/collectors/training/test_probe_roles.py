"""Roles from frameworks' own state (stand-in modules), and modules that are hooked when they are imported."""

from __future__ import annotations

import importlib
import sys
import time
import types
from pathlib import Path
from typing import Any, ClassVar

import pytest

from flightwatch.collectors.training import hooks
from flightwatch.collectors.training.assembly import Assembly
from flightwatch.collectors.training.communication import Communication
from flightwatch.collectors.training.detail import Detail, block_every
from flightwatch.collectors.training.identity import find_identity
from flightwatch.collectors.training.late_imports import LateImports
from flightwatch.collectors.training.placement import Placement
from flightwatch.collectors.training.probe import Probe
from flightwatch.collectors.training.step import Step
from flightwatch.collectors.training.summary import Summary
from flightwatch.core.vocabulary import RunPhase


@pytest.fixture
def probe(tmp_path: Path) -> Probe:
    return Probe(lambda: find_identity({"RANK": "3", "WORLD_SIZE": "8"}, job="j"), str(tmp_path / "s"))


def standin(name: str, monkeypatch: pytest.MonkeyPatch, **members: Any) -> None:
    module = types.ModuleType(name)
    for member, value in members.items():
        setattr(module, member, value)
    monkeypatch.setitem(sys.modules, name, module)


def not_ready() -> int:
    raise AssertionError("expert model parallel group is not initialized")


def test_megatron_tells_its_coordinates(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    standin(
        "megatron.core.parallel_state", monkeypatch, get_tensor_model_parallel_rank=lambda: 1,
        get_pipeline_model_parallel_rank=lambda: 2, get_data_parallel_rank=lambda: 0,
        get_context_parallel_rank=lambda: 3, get_expert_model_parallel_rank=not_ready,
        get_expert_tensor_parallel_rank=lambda: 4,
    )  # fmt: skip
    assert Placement(probe, {}).role() == {"tp": 1, "pp": 2, "dp": 0, "cp": 3, "etp": 4}
    # What the job says itself counts more.
    assert Placement(probe, {"dp": 7}).role()["dp"] == 7


def test_deepspeed_tells_through_its_parallel_unit_and_never_makes_groups(
    probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    def makes_a_group() -> int:
        raise AssertionError("this getter communicates")

    unit = types.SimpleNamespace(
        get_model_parallel_rank=lambda: 1, get_pipe_parallel_rank=lambda: 0, get_data_parallel_rank=lambda: 5
    )
    experts = {"ep_size_2": types.SimpleNamespace(rank=lambda: 1)}
    standin("deepspeed.utils.groups", monkeypatch, mpu=unit, _get_data_parallel_rank=makes_a_group,
            _EXPERT_PARALLEL_GROUP=experts)  # fmt: skip
    assert Placement(probe, {}).role() == {"tp": 1, "pp": 0, "dp": 5, "ep": 1}
    standin("deepspeed.utils.groups", monkeypatch, mpu=None, _EXPERT_PARALLEL_GROUP={})
    assert Placement(probe, {}).role() == {}


class Mesh:
    """Stands for torch's DeviceMesh."""

    mesh_dim_names = ("replicate", "fsdp", "mesh_tp", "unknown")

    def get_coordinate(self) -> list[int]:
        return [0, 2, 1, 0]


def test_device_meshes_tell_by_the_names_of_their_dimensions(probe: Probe) -> None:
    placement = Placement(probe, {})
    mesh = Mesh()
    placement._meshes.append(lambda: mesh)
    placement.functional_seen = True
    assert placement.role() == {"dp_replicate": 0, "dp_shard": 2, "tp": 1}
    assert not probe.hidden_communication
    # In a compiled graph the collectives of tensor parallelism are not seen: compute is then unknown.
    probe.compiled = True
    placement.role()
    assert probe.hidden_communication


def test_a_module_imported_later_is_hooked_behind_its_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fw_late_module.py").write_text("value = 1\n")
    (tmp_path / "fw_late_broken.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    failures: list[BaseException] = []
    late, seen = LateImports(failures.append), []

    def fails(module: Any) -> None:
        raise ValueError("ours")

    late.when("fw_late_module", lambda module: seen.append(module.value))
    late.when("fw_late_broken", fails)
    late.when("json", lambda module: seen.append(module.__name__))
    assert seen == ["json"]
    assert importlib.import_module("fw_late_module").value == 1
    assert importlib.import_module("fw_late_broken").value == 1
    assert seen == ["json", 1]
    assert [str(failure) for failure in failures] == ["ours"]
    assert late not in sys.meta_path
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("fw_no_such_module")
    for name in ("fw_late_module", "fw_late_broken"):
        sys.modules.pop(name)


def test_rows_of_blocks_stay_within_the_jobs_budget_and_share_steps() -> None:
    assert block_every(2, 6, 100_000.0) == 16
    large = block_every(10_000, 100, 5_000_000.0)
    assert large == 256
    assert 10_000 * 100 * 2 * 60 / (large * 5.0) <= 100_000.0
    # A rank that is a little slower has half the interval at most: every step of the larger one is its too.
    assert large % block_every(10_000, 100, 5_500_000.0) == 0


def test_detail_names_are_told_once_and_again_on_request() -> None:
    detail = Detail({"dp:1": "dp"})
    step = Step(4, 1_000_000, 1_700_000_000_000)
    note = step.note(detail.name("op", "comm", "allreduce", "dp:1"), 3_000_000, 250_000, 64, 9, -1)
    assert note is not None
    names, ops = detail.rows(step)
    assert names[0] == "names"
    assert names[1]["keys"] == [["op", "comm", "allreduce", "dp:1", "dp"]]
    assert ops[1]["ops"] == [[0, 2000, 250.0, 64, 9, -1]]
    assert [kind for kind, _ in detail.rows(step)] == ["detail"]
    assert detail.names(5)[0][1]["first"] == 0
    for number in range(2000):
        detail.name("op", "comm", f"op{number}")
    assert len({detail.name("op", "comm", f"new{number}") for number in range(50)}) == 1


def test_a_step_notes_a_bounded_number_of_ops() -> None:
    step = Step(0, 0, 0)
    noted = [step.note(0, 0, 0, 0, -1, -1) for _ in range(3000)]
    assert len(step.ops) == 2048
    assert noted[-1] is None


class Event:
    """Stands for `torch.Event`: recorded now, passed later; nothing may wait for it."""

    made: ClassVar[list[Event]] = []
    now_ms = 0.0
    passed_ms = -1.0

    def __init__(self, device: str, enable_timing: bool) -> None:
        assert (device, enable_timing) == ("fake", True)
        self.at_ms = -1.0
        Event.made.append(self)

    def record(self) -> None:
        self.at_ms = Event.now_ms

    def query(self) -> bool:
        return self.at_ms <= Event.passed_ms

    def elapsed_time(self, end: Event) -> float:
        return end.at_ms - self.at_ms

    def synchronize(self) -> None:
        raise AssertionError("the training would wait for its device")

    wait = synchronize


def test_an_asynchronous_device_is_timed_by_events_that_nobody_waits_for(probe: Probe) -> None:
    Event.made.clear()
    Event.now_ms, Event.passed_ms = 0.0, -1.0
    torch = types.SimpleNamespace(Event=Event, fake=types.SimpleNamespace())
    assembly = Assembly(probe, torch, Placement(probe, {}), 0)
    lists: tuple[list[Any], ...] = (hooks.before_backward, hooks.after_backward, hooks.before_update)
    before = [list(calls) for calls in lists]
    try:
        assembly._use_device(types.SimpleNamespace(type="fake", index=2))
        timer = assembly._timer
        assert timer is not None
        steps = []
        for number in range(4):
            step = probe.step = Step(number, 0, 1_700_000_000_000)
            step.forwards = step.backwards = 1
            step.end_ns = 40_000_000
            for call in assembly.modules.forward_begins:
                call(None)
            timer.begin("0 forward")
            Event.now_ms += 4.0
            timer.end("0 forward")
            for call in assembly.modules.forward_done:
                call(None)
            for begins in hooks.before_backward[len(before[0]) :]:
                begins()
            assembly.around_wait(True)
            Event.now_ms += 3.0
            assembly.around_wait(False)
            Event.now_ms += 9.0
            for ends in hooks.after_backward[len(before[1]) :]:
                ends()
            for update in hooks.before_update[len(before[2]) :]:
                update(step)
            Event.now_ms += 2.0
            for closed in probe.on_close:
                closed(step)
            steps.append(step)
            Event.passed_ms = Event.now_ms if number >= 1 else -1.0  # The device is a step behind.
        assert steps[0].device == {"forward_us": 4000.0, "backward_us": 12_000.0, "optimizer_us": 2000.0,
                                   "comm_us": 3000.0, "compute_us": 15_000.0}  # fmt: skip
        times = steps[0].times_us(False, probe.hidden_communication, False)
        assert (times["compute_us"], times["comm_us"], times["unattributed_us"]) == (15_000.0, 3000.0, 22_000.0)
        # Events are used again: far fewer than were recorded.
        assert len(Event.made) < 4 * 10
        assert probe.device_index == 2
    finally:
        for calls, kept in zip(lists, before, strict=True):
            calls[:] = kept


def test_host_times_of_calls_on_an_asynchronous_device_are_unknown(probe: Probe) -> None:
    probe.asynchronous = probe.hidden_communication = True
    communication = Communication(probe, lambda group: "dp:1")
    communication.issued(("allreduce", "dp:1"), 1000, 5000, 64, [7])
    step = probe.current()
    step.end_ns = step.start_ns + 1_000_000
    assert step.ops[0][2] == -1
    summary = Summary()
    summary.add(step, {}, {})
    ((_, values),) = summary.rest({})
    assert (values["op"], values["bytes"], values["count"]) == ("allreduce", 64, 1)
    assert "dur_us" not in values
    ops = detail_rows(probe, step)
    assert ops[0][2] == -1


def detail_rows(probe: Probe, step: Step) -> list[Any]:
    return next(list(values["ops"]) for kind, values in probe.detail.rows(step) if kind == "detail")


def test_a_phase_that_lasts_is_told_while_it_runs_and_a_short_one_is_not(probe: Probe) -> None:
    probe.identity = probe.identity._replace(local_rank=0)  # Rank 3 is the first of its node.
    probe.phases.training_begins(1_700_000_000_000)
    probe.wire._queue.clear()
    now_ns = time.perf_counter_ns()
    probe.phases.begins(RunPhase.EVALUATE, now_ns - 5_000_000_000)
    probe.phases.begins(RunPhase.CHECKPOINT, now_ns)
    probe.phases.tell_running()
    probe.phases.tell_running()
    probe.phases.passed_over(RunPhase.CHECKPOINT)
    ((table, values),) = [row for row in probe.wire._queue if isinstance(row, tuple)]
    assert (table, values["phase"], "ended_at" in values) == ("runs", "evaluate", False)
    probe.wire._queue.clear()
    probe.identity = probe.identity._replace(local_rank=1)
    probe.phases.span_ns(RunPhase.EVALUATE, now_ns - 5_000_000_000, now_ns)
    assert not probe.wire._queue
