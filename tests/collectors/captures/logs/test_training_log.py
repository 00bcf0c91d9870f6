"""Training output of the frameworks into scalars and timings; benchmark tables."""

from __future__ import annotations

import math
from typing import Any

import pytest


def test_megatron(sample: Any) -> None:
    found = sample("megatron.log")
    assert found.scalar(1, "loss") == pytest.approx(11.03511)
    assert found.scalar(1, "grad_norm") == 7.125
    assert found.scalar(1, "loss_scale") == 4096.0
    assert {row["rank"] for row in found.of("training_scalars")} == {-1}
    step = next(row for row in found.of("op_timings") if row["op"] == "step")
    assert (step["level"], step["kind"], step["dur_us"], step["node"]) == ("phase", "step", 4_200_500.0, "node-2")


def test_a_wrapped_iteration_keeps_its_nan(sample: Any) -> None:
    found = sample("megatron.log")
    assert math.isnan(found.scalar(2, "loss"))
    assert math.isnan(found.scalar(2, "grad_norm"))
    assert found.scalar(2, "nan_iterations") == 0.0


def test_timers(sample: Any) -> None:
    timers = {row["op"]: row for row in sample("megatron.log").of("op_timings") if row["level"] == "block"}
    assert timers["forward-compute"]["dur_us"] == pytest.approx(193_770.0)
    assert timers["forward-compute"]["span_us"] == timers["forward-compute"]["dur_us"]
    assert timers["all-grads-sync"]["kind"] == "comm"
    assert (timers["all-grads-sync"]["min_us"], timers["all-grads-sync"]["max_us"]) == (11_250.0, 42_500.0)
    assert timers["batch-generator"]["kind"] == "io"
    assert timers["save-checkpoint"]["kind"] == "checkpoint"
    assert timers["forward-backward"]["step"] == 1
    assert timers["forward-compute"]["step"] == 2


def test_other_frameworks(sample: Any) -> None:
    found = sample("frameworks.log")
    assert found.scalar(10, "skipped_iterations_total") == 6.0
    assert found.scalar(10, "samples_per_second") == 301.5
    assert found.scalar(380, "loss_scale") == 32.0
    assert found.scalar(381, "loss") == 2.0491
    assert found.scalar(4, "tokens_per_second") == 10050.0
    assert found.scalar(1212, "loss") == 8.512
    assert found.scalar(320, "loss") == 2.59
    assert found.scalar(2, "grad_norm") == 1.2
    assert found.scalar(10, "loss") == 9.512
    steps = {row["step"]: row["dur_us"] for row in found.of("op_timings") if row["op"] == "step"}
    assert steps == {1212: 5_312_000.0, 2: 12_295_000.0, 10: 338_130.0}


def test_prose_about_losses_is_not_a_measurement(sample: Any) -> None:
    assert not [row for row in sample("frameworks.log").of("training_scalars") if row["step"] in (3, 5)]


def test_a_record_without_a_bar_has_no_step(text: Any) -> None:
    found = text("{'loss': '2.5', 'grad_norm': '1.5', 'learning_rate': '0.1', 'epoch': '0.1'}\n")
    assert found.scalar(None, "loss") == 2.5


def test_trainer_state(sample: Any) -> None:
    found = sample("trainer_state.json")
    assert found.scalar(10, "lr") == 1e-05
    assert math.isnan(found.scalar(20, "grad_norm"))


def test_nccl_tests(sample: Any) -> None:
    found = sample("nccl_tests.txt")
    busbw = {row["label"]: row for row in found.of("sensor_samples")}
    assert busbw["all_gather 16777216 B out-of-place"]["value"] == 41.84
    assert busbw["all_gather 16777216 B out-of-place"]["status"] == "critical"
    assert busbw["all_gather 16777216 B in-place"]["status"] is None
    assert found.of("op_timings")[0]["dur_us"] == 120.5
    assert any("38.45" in note.text for note in found.notes)
    assert 38.45 not in [row["value"] for row in busbw.values()]


@pytest.mark.parametrize(
    ("columns", "cells", "ratio", "op"),
    [
        ("type redop root", "float sum -1", 1.75, "all_reduce"),
        ("type redop root", "float sum -1", 0.875, "reduce_scatter"),
        ("type redop root", "float sum 0", 1.0, "reduce"), ("type redop root", "float none 0", 1.0, "broadcast"),
        ("type redop", "float", 0.875, "collective"), ("type", "float", 0.875, "collective"),
        ("type redop", "float sum", 1.75, "all_reduce"),
    ],
)  # fmt: skip
def test_the_collective_of_an_unnamed_table(columns: str, cells: str, ratio: float, op: str, text: Any) -> None:
    ranks = "".join(f"#   Rank  {rank} Pid 1{rank} on localhost device  {rank} [0x00] A100\n" for rank in range(8))
    figures = f"100.0 80.00 {80 * ratio:.2f} 0"
    found = text(
        f"# nThread 1 nGpus 8 minBytes 8 maxBytes 1048576\n{ranks}#  size count {columns} time algbw busbw error "
        f"time algbw busbw error\n  8 2 {cells} 30.0 0.00 0.00 0 30.1 0.00 0.00 0\n"
        f"  1048576 262144 {cells} {figures} {figures}\n"
    )
    labels = [row["label"] for row in found.of("sensor_samples")]
    assert labels[0] == f"{op} 8 B out-of-place"
    assert len(labels) == 4


def test_superbench(sample: Any) -> None:
    rows = {(row["node"], row["label"]): row["value"] for row in sample("superbench.jsonl").of("sensor_samples")}
    assert rows["sb-1", "nccl-bw/allreduce_8589934592_busbw:0"] == 231.25
    assert rows["sb-2", "mem-bw/h2d_bw:0"] is None


def test_a_broken_superbench_line_is_an_error_and_the_rest_is_read(text: Any) -> None:
    line = '{"node": "a", "x/y/z/steptime_a": 1.0, "x/q/w/return_code": 0}\n'
    found = text(line + line[:30] + "\n" + line)
    assert len(found.of("sensor_samples")) == 4
    assert [note.level for note in found.notes] == ["error"]
