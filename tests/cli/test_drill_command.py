"""`flightwatch drill`, `simulate` and `detect`: what cannot be is one sentence before anything is sent."""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from flightwatch.cli import drill, main
from flightwatch.core.clock import ManualClock, SystemClock
from flightwatch.pipeline.control.database import Control, open_control
from flightwatch.pipeline.control.erasures import Erasures
from flightwatch.pipeline.control.settings import ControlSettings
from flightwatch.pipeline.control.silences import Silences


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["drill", "--real", "--fault", "slow_gpu@1"], 2),
        (["drill", "--seconds", "0"], 2),
        (["drill"], 1),
        (["simulate", "--name", "prod"], 2),
        (["simulate", "--fault", "slow_gpu@9999"], 2),
        (["simulate", "--gpus", "0"], 2),
        (["simulate", "--step-seconds", "0"], 2),
        (["detect", "list"], 1),
        (["detect", "set"], 2),
        (["detect", "train"], 2),
    ],
)
def test_refusals(words: list[str], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--data-dir", str(tmp_path / "none")]) == code
    captured = capsys.readouterr()
    assert captured.err.startswith(f"flightwatch {words[0]}")
    assert "Traceback" not in captured.err


class Watching(ManualClock):
    """Notes at every wait how many silences hold."""

    def __init__(self, control: Control) -> None:
        super().__init__(SystemClock().now_ms())
        self._control = control
        self.silences: list[int] = []

    def sleep_s(self, seconds: float) -> None:
        self.silences.append(len(Silences(self._control).list()))
        super().sleep_s(10 * seconds)


@pytest.mark.parametrize("keep", [False, True])
def test_a_drill_stays_silent_until_it_is_removed(keep: bool, tmp_path: Path) -> None:
    control = open_control(f"sqlite:///{tmp_path / 'control.db'}", ControlSettings())
    clock, marked = Watching(control), drill._Drill("job", "sim-drill-1")
    with ExitStack() as stack:
        arguments = argparse.Namespace(page=False, keep=keep, seconds=60.0)
        drill._leave_no_trace(stack, control, marked, arguments, clock)
        (silence,) = Silences(control).list()
        assert silence.matchers == {"job": "sim-drill-1"}
    asked = Erasures(control).get("job", "sim-drill-1")
    if keep:
        assert (asked, clock.silences, len(Silences(control).list())) == (None, [], 1)
    else:
        assert asked is not None
        assert set(clock.silences) == {1}
        assert Silences(control).list() == []
    control.close()


def test_detectors_are_listed_changed_and_reset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    open_control(f"sqlite:///{tmp_path / 'control.db'}", ControlSettings()).close()

    def call(*words: str) -> tuple[int, dict[str, dict[str, object]]]:
        code = main(["detect", *words, "--data-dir", str(tmp_path), "--format", "json"])
        return int(code), {row["detector"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}

    code, before = call("list")
    assert (code, before["slow"]["mode"]) == (0, "on")
    assert call("shadow", "anomaly")[1]["anomaly"]["mode"] == "shadow"
    _, changed = call("set", "fail_slow.shift=0.07", "ports.z=9")
    assert set(changed) == {"fail_slow", "ports"}
    assert changed["fail_slow"]["changed"] == {"shift": 0.07}
    assert changed["fail_slow"]["version"] != before["fail_slow"]["version"]
    assert call("set", "fail_slow.shift=0.08", "ports.nothing=1")[0] == 2
    assert call("list")[1]["fail_slow"]["changed"] == {"shift": 0.07}
    assert call("reset", "fail_slow")[1]["fail_slow"]["version"] == before["fail_slow"]["version"]
    assert call("disable", "nobody")[0] == 2
