"""Ways of training in real processes: what rows say, and that results are bitwise the same without the probe."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch

NAMES = (
    "plain", "nan_forward", "nan_backward", "nan_backward_first", "nan_parameters", "nan_loss", "recompute", "compiled",
    "compiled_in_place", "compiled_late", "evaluation", "optimizers", "scaled", "saving", "workers", "attached_late",
    "failing", "broken_hooks", "nan_in_place", "nan_in_second_micro_batch", "masked_infinity", "fp8", "many_steps",
    "own_hooks",
)  # fmt: skip
#: Scenarios that use no probe in their second run; the others attach by themselves.
COMPARED = tuple(name for name in NAMES if name not in ("attached_late", "failing", "fp8"))


class Results:
    def __init__(self, jobs: Any) -> None:
        self.jobs = jobs
        lines = [line.split("|") for line in jobs.output.splitlines() if "|" in line]
        self.exits = {(line[1], line[2]): line[3] for line in lines if line[0] == "exit"}
        self.digest = {(line[0], line[1]): line[2] for line in lines if line[0] in NAMES}
        self.errors = {line[0]: line[3] for line in lines if line[0] in NAMES and line[1] == "1"}

    def steps(self, job: str) -> list[dict[str, Any]]:
        return sorted(self.jobs.of("rank_steps", job=job), key=lambda row: int(row["step"]))

    def origins(self, job: str) -> list[tuple[Any, ...]]:
        names = ("step", "phase", "module", "params_finite")
        rows = [row for row in self.jobs.of("events", job=job) if row["code"].startswith("nonfinite:")]
        return [tuple(row["attrs"].get(name) for name in names) for row in rows]


@pytest.fixture(scope="module")
def results(torch_python: str, jobs_class: Any) -> Iterator[Results]:
    with tempfile.TemporaryDirectory(prefix="fw-") as folder:
        jobs = jobs_class(torch_python, Path(folder))
        jobs.run("scenarios.py", *NAMES, FLIGHTWATCH="0")
        yield Results(jobs)
        jobs.receiver.close()


def test_parameters_are_bitwise_the_same_with_and_without(results: Results) -> None:
    assert {name: results.digest.get((name, "1")) for name in COMPARED} == {
        name: results.digest.get((name, "0")) for name in COMPARED
    }
    assert len({results.digest[name, "1"] for name in COMPARED}) > 4


def test_no_hook_failed(results: Results) -> None:
    assert {name: text for name, text in results.errors.items() if text != "0 "}.keys() == {"broken_hooks"}


def test_exit_codes_are_the_trainings(results: Results) -> None:
    assert results.exits["failing", "1"] == results.exits["failing", "0"] == "17"
    assert {code for (name, _), code in results.exits.items() if name != "failing"} == {"0"}
    assert len(results.steps("failing")) == 3


def test_after_twenty_errors_the_probe_is_off_and_says_so(results: Results) -> None:
    assert results.errors["broken_hooks"].startswith("20 ")
    (event,) = results.jobs.of("events", job="broken_hooks", code="probe:off")
    assert "a hook is broken" in event["message"]


def test_a_nan_in_forward_is_named_with_its_block(results: Results) -> None:
    assert results.origins("nan_forward") == [("2", "forward", "blocks.2", "true")]
    bad = [row["step"] for row in results.steps("nan_forward") if row["nonfinite_count"]]
    assert bad == [2, 3, 4]
    assert results.origins("plain") == []


def test_an_infinity_in_backward_is_named_with_its_block(results: Results) -> None:
    assert results.origins("nan_backward") == [("2", "backward", "blocks.2", "true")]
    assert results.origins("nan_backward_first") == [("2", "backward", "blocks.0", "true")]


def test_a_nan_behind_the_blocks_is_not_blamed_on_one(results: Results) -> None:
    assert results.origins("nan_loss")[0][:3] == ("2", "forward", "head or loss")


def test_an_output_that_is_changed_in_place_is_not_blamed(results: Results) -> None:
    assert [origin[:3] for origin in results.origins("nan_in_place")] == [("5", "forward", "blocks.3")]


def test_the_micro_batch_that_is_bad_is_found(results: Results) -> None:
    # The third training call is the first micro-batch of the second step.
    assert results.origins("nan_in_second_micro_batch") == [("1", "forward", "blocks.2", "true")]


def test_an_infinity_that_goes_nowhere_is_no_event(results: Results) -> None:
    assert results.origins("masked_infinity") == []
    assert len(results.steps("masked_infinity")) == 5


def test_fp8_state_of_modules_and_as_given(results: Results) -> None:
    told = {(row["step"], row["name"]): row["value"] for row in results.jobs.of("training_scalars", job="fp8")
            if row["name"].startswith("fp8.")}  # fmt: skip
    layer = "blocks.1.linear"
    assert {name for step, name in told if step == 20} == {
        f"fp8.{quantity}.{layer}.{direction}.{place}"
        for quantity in ("amax", "scale", "overflow") for direction in ("forward", "backward") for place in (0, 1)
    } | {"fp8.amax.given", "fp8.overflow.given"}  # fmt: skip
    assert told[20, f"fp8.amax.{layer}.forward.0"] == 7.0
    assert told[20, f"fp8.overflow.{layer}.forward.0"] == 1.0  # 7 x 100 is beyond 448
    assert told[20, f"fp8.overflow.{layer}.backward.0"] == 0.0
    assert told[20, f"fp8.amax.{layer}.backward.1"] == 2.0  # the largest of its history
    assert told[20, "fp8.overflow.given"] == 0.25


def test_blocks_are_timed_on_sampled_steps(results: Results) -> None:
    rows = results.jobs.of("op_timings", job="many_steps", level="block")
    assert {row["step"] for row in rows} == {16, 32}
    names = {f"{block} {way}" for block in ("embed", "blocks.0", "blocks.1", "blocks.2", "blocks.3")
             for way in ("forward", "backward")}  # fmt: skip
    assert {row["op"] for row in rows if row["step"] == 16} == names
    assert all(0 < row["dur_us"] <= row["span_us"] and row["count"] == 1 for row in rows)
    phases = {row["step"]: row for row in results.steps("many_steps")}
    for step in (16, 32):
        inside = sum(row["span_us"] for row in rows if row["step"] == step and row["op"].endswith("backward"))
        assert inside <= phases[step]["backward_us"]


def test_compilation_is_a_phase_of_the_run(results: Results) -> None:
    phases = [row for row in results.jobs.of("runs", job="compiled") if row["phase"] == "compile"]
    assert phases, results.jobs.of("runs", job="compiled")
    assert all(row["ended_at"] > row["started_at"] for row in phases)
    assert results.jobs.of("runs", job="plain", phase="compile") == []


def test_contaminated_parameters_are_told_apart(results: Results) -> None:
    assert [origin[1:] for origin in results.origins("nan_parameters")] == [("forward", "blocks.1", "false")]


def test_activation_checkpointing_names_the_same_block_once(results: Results) -> None:
    assert [origin[1:3] for origin in results.origins("recompute")] == [("forward", "blocks.2")]
    assert [row["step"] for row in results.steps("recompute")] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["compiled", "compiled_in_place", "compiled_late"])
def test_compiled_models_are_timed_at_the_root_without_breaking_the_graph(name: str, results: Results) -> None:
    # The scenario compiles with fullgraph=True and turns warnings into errors: a graph break would have failed it.
    rows = results.steps(name)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    # The model is found at a backward: the first step of a model, or of its compiled wrapper, has no forward time.
    unknown = {0, 2} if name == "compiled_late" else {0}
    assert {row["step"] for row in rows if "forward_us" not in row} == unknown
    assert all(row["compute_us"] > 0 for row in rows if row["step"] not in unknown)


def test_evaluation_is_a_phase_and_not_part_of_a_step(results: Results) -> None:
    rows = results.steps("evaluation")
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4, 5]
    (phase,) = results.jobs.of("runs", job="evaluation", phase="evaluate")
    took_us = (phase["ended_at"] - phase["started_at"]) * 1000
    # A hundred evaluation batches take longer than any step; none of them is in the step they interrupted.
    assert rows[3]["step_us"] < took_us
    assert rows[3]["data_us"] < took_us / 2
    assert all(row["data_us"] > 0 for row in rows)


def test_several_optimizers_make_one_step(results: Results) -> None:
    rows = results.steps("optimizers")
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4, 5]
    assert all(row["optimizer_us"] > 0 for row in rows)


def test_a_step_that_the_loss_scaler_skipped_is_a_step(results: Results) -> None:
    rows = results.steps("scaled")
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    assert rows[2]["optimizer_us"] == 0
    assert [row["step"] for row in results.jobs.of("training_scalars", job="scaled", name="skipped_iterations")] == [2]
    scales = {row["step"]: row["value"] for row in results.jobs.of("training_scalars", job="scaled", name="loss_scale")}
    assert (scales[1], scales[2]) == (1024.0, 512.0)


def test_the_blocking_part_of_a_checkpoint_is_in_its_step(results: Results) -> None:
    rows = results.steps("saving")
    assert [row["step"] for row in rows if row["checkpoint_us"] > 0] == [3]
    ops = {row["op"]: row for row in results.jobs.of("op_timings", job="saving")}
    assert ops["checkpoint"]["kind"] == "checkpoint"


def test_forked_loader_workers_send_nothing_of_their_own(results: Results) -> None:
    assert [row["step"] for row in results.steps("workers")] == [0, 1, 2, 3, 4, 5]


def test_attach_takes_name_role_and_work(results: Results) -> None:
    rows = [row for row in results.steps("named") if row["step"] < 5]
    assert {row["tokens"] for row in rows} == {64.0}
    assert rows[0]["work"] == {"squared": 8.0}
    assert {(row["tp"], row["dp"]) for row in results.jobs.of("placements", job="named")} == {(1, 2)}


def test_without_torch_marked_steps_are_rows(jobs: Any) -> None:
    jobs.run("loop.py")
    rows = jobs.steps(0)
    assert [(row["step"], row["tokens"], row["loss"]) for row in rows] == [
        (0, 10.0, 1.0), (1, 10.0, 0.5), (2, 10.0, 1 / 3), (3, 10.0, 0.25)
    ]  # fmt: skip
    assert all(row["work"] == {"rows": 2.0} and "compute_us" not in row for row in rows)
