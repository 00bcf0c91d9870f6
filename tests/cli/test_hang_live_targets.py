"""`flightwatch hang --live`: which job is meant when none is named, as agents tell them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flightwatch.cli import main
from flightwatch.pipeline.control.database import Control, open_control
from flightwatch.pipeline.control.settings import ControlSettings
from flightwatch.pipeline.profiles.records import Profiles


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    opened = open_control(f"sqlite:///{tmp_path}/control.db", ControlSettings())
    yield opened
    opened.close()


def seen(control: Control, node: str, *jobs: str) -> None:
    entries = [{"job": job, "run": "0", "rank": rank, "problem": ""} for job in jobs for rank in range(2)]
    Profiles(control).see_targets(node, entries)


def live(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["hang", "--live", "--data-dir", str(folder), *words])
    return code, capsys.readouterr().err.strip()


def test_no_job_that_runs_is_one_sentence(tmp_path: Path, control: Control, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = live(tmp_path, capsys)
    assert code == 1
    assert said.count("\n") == 0
    assert "no agent sees a training job" in said


def test_of_two_jobs_one_must_be_named(tmp_path: Path, control: Control, capsys: pytest.CaptureFixture[str]) -> None:
    seen(control, "n1", "llama", "qwen")
    code, said = live(tmp_path, capsys)
    assert code == 2
    assert "several jobs run, name one with --job: llama, qwen" in said
    assert "no agent sees job bert" in live(tmp_path, capsys, "--job", "bert")[1]


def test_the_only_job_is_meant_without_a_name(
    tmp_path: Path, control: Control, capsys: pytest.CaptureFixture[str]
) -> None:
    seen(control, "n1", "llama")
    # The job is found: what is missing now is the key with which commands are signed.
    code, said = live(tmp_path, capsys)
    assert code == 1
    assert "run this where the control server runs" in said
