from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from flightwatch.collectors.command import run_command
from flightwatch.collectors.nvidia_smi import NvidiaSmiCollector
from flightwatch.core.errors import NoData, TransientError

XML = b"""<?xml version="1.0" ?>
<nvidia_smi_log>
<driver_version>570.1</driver_version>
<attached_gpus>1</attached_gpus>
<gpu id="00000000:1B:00.0">
  <product_name>NVIDIA L4</product_name>
  <uuid>GPU-1</uuid>
  <minor_number>0</minor_number>
  <temperature><gpu_temp>44 C</gpu_temp></temperature>
</gpu>
</nvidia_smi_log>
"""


def test_nvidia_smi_is_read_where_nvml_does_not_answer(
    tree_of: Callable[..., Any], environment_of: Callable[..., Any]
) -> None:
    environment = environment_of(tree_of({"x": ""}), live=True)
    asked: list[Sequence[str]] = []

    def answer(words: Sequence[str], timeout_seconds: float) -> bytes:
        asked.append(words)
        return XML

    environment.run_command = answer
    rows = [row.values for row in NvidiaSmiCollector(environment).collect(99) if row.table == "device_samples"]
    assert asked == [("nvidia-smi", "-q", "-x")]
    assert [(row["device"], row["model"], row["temp_c"], row["power_w"], row["ts"]) for row in rows] == [
        (0, "NVIDIA L4", 44.0, None, 99)
    ]
    environment.nvml_answers = True
    with pytest.raises(NoData, match="NVML answers"):
        NvidiaSmiCollector(environment).collect(99)


def test_output_that_is_no_report_is_a_failure(tree_of: Callable[..., Any], environment_of: Callable[..., Any]) -> None:
    environment = environment_of(tree_of({"x": ""}), live=True)
    environment.run_command = lambda words, timeout_seconds: b"Failed to initialize NVML: Unknown Error"
    with pytest.raises(TransientError, match="nvidia-smi"):
        NvidiaSmiCollector(environment).collect(1)


def test_a_command_is_run_without_a_shell_and_in_the_c_locale() -> None:
    program = "import os, sys; print(sys.argv[1], sorted(os.environ)[:1], os.environ['LC_ALL'])"
    assert (
        run_command((sys.executable, "-c", program, "$(id); `id`"), 20).split(b"\n")[0] == b"$(id); `id` ['LC_ALL'] C"
    )


@pytest.mark.parametrize(
    ("words", "kind", "message"),
    [
        (("no-such-program-anywhere",), NoData, "not installed"),
        ((sys.executable, "-c", "raise SystemExit(3)"), TransientError, "status 3"),
        ((sys.executable, "-c", "import time; time.sleep(60)"), TransientError, "did not answer in 0.2 s"),
    ],
)
def test_a_command_that_fails_says_how(words: Sequence[str], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        run_command(words, 0.2 if "sleep" in words[-1] else 20)
