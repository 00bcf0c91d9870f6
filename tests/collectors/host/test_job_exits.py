"""Ends of jobs as Slurm's accounting and torchrun's error files tell them, once each, and as crashes read them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flightwatch.collectors.environment import Environment
from flightwatch.collectors.job_exits import JobExitsCollector
from flightwatch.collectors.settings import AgentSettings
from flightwatch.collectors.tree import FolderTree
from flightwatch.core.errors import NoData
from flightwatch.core.protocols import Row

NOW_MS = 1_700_000_000_000


class Sacct:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.asked: list[Sequence[str]] = []

    def __call__(self, words: Sequence[str], timeout_seconds: float) -> bytes:
        self.asked.append(words)
        return "\n".join(self.lines).encode()


def collector(tmp_path: Path, run: Sacct, **settings: object) -> JobExitsCollector:
    chosen = AgentSettings(**settings)  # type: ignore[arg-type]
    return JobExitsCollector(Environment(FolderTree(str(tmp_path)), True, chosen, run))


def attrs(row: Row) -> Any:
    return row.values["attrs"]


def told(one: JobExitsCollector) -> list[Row]:
    return list(one.collect(NOW_MS))


def test_job_steps_are_told_once_and_not_from_before_the_start(tmp_path: Path) -> None:
    run = Sacct()
    one = collector(tmp_path, run, slurm_accounting=True)
    run.lines = ["10.0|FAILED|1:0|n01"]
    assert told(one) == []
    run.lines += ["11|FAILED|1:0|n[02-03]", "11.batch|FAILED|1:0|n02", "11.0|FAILED|1:0|n[02-03]",
                  "12.1|OUT_OF_MEMORY|0:9|n04", "13.0|COMPLETED|0:0|n05", "broken", "14.0|TIMEOUT|0:0|[["]  # fmt: skip
    rows = told(one)
    assert [(row.values["code"], row.values["job"], row.values.get("node")) for row in rows] == [
        ("slurm:failed", "11", "n02"), ("slurm:killed", "12", "n04"), ("slurm:timeout", "14", None),
    ]  # fmt: skip
    assert [attrs(row)["exit_code"] for row in rows] == ["1", "-9", "0"]
    assert told(one) == []
    assert run.asked[0][0] == "sacct"


def test_error_files_of_torchrun_name_rank_and_message(tmp_path: Path) -> None:
    one = collector(tmp_path, Sacct(), torchelastic_error_files=(f"{tmp_path}/*/attempt_*/*/error.json",))
    old = tmp_path / "run" / "attempt_0" / "0"
    old.mkdir(parents=True)
    (old / "error.json").write_text("{}")
    assert told(one) == []
    new = tmp_path / "run" / "attempt_1" / "3"
    new.mkdir(parents=True)
    document = {"message": {"message": "RuntimeError: boom\nmore", "extraInfo": {"rank": 11, "timestamp": "1"}}}
    (new / "error.json").write_text(json.dumps(document))
    cut = tmp_path / "run" / "attempt_1" / "4"
    cut.mkdir()
    (cut / "error.json").write_text('{"message": ')
    link = tmp_path / "run" / "attempt_1" / "5"
    link.mkdir()
    os.symlink("/etc/hostname", link / "error.json")
    rows = told(one)
    assert [(row.values["code"], row.values["message"], row.values["rank"]) for row in rows] == [
        ("elastic:rank_failed", "RuntimeError: boom", 11), ("elastic:rank_failed", "a worker of torchrun failed", None),
    ]  # fmt: skip
    assert attrs(rows[0])["local_rank"] == "3"
    assert told(one) == []


def test_it_is_off_until_it_is_set(tmp_path: Path) -> None:
    with pytest.raises(NoData, match="not set"):
        told(collector(tmp_path, Sacct()))
    recorded = Environment(FolderTree(str(tmp_path)), False, AgentSettings(slurm_accounting=True), Sacct())
    with pytest.raises(NoData, match="recorded"):
        list(JobExitsCollector(recorded).collect(NOW_MS))
