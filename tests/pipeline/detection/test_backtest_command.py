"""`flightwatch backtest` on files, as somebody outside would call it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from flightwatch.cli import main
from flightwatch.core.catalogue import TABLES
from flightwatch.detectors.contract import Finding, Frames, Needs
from flightwatch.pipeline.detection.run import run_detectors
from flightwatch.simulator.cluster import Cluster, Job
from flightwatch.simulator.faults import Fault
from flightwatch.simulator.scenarios import build

Run = Callable[..., tuple[int, list[dict[str, Any]], str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*words: str) -> tuple[int, list[dict[str, Any]], str]:
        code = main(["backtest", *words])
        captured = capsys.readouterr()
        return int(code), [json.loads(line) for line in captured.out.splitlines()], captured.err

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recording")
    job = Job(tp=4, pp=2, dp=4, step_ms=1500)
    frames = build("x", Cluster(nodes=4), job, [Fault("slow_gpu", 1, 3, start_step=60, severity=0.25)], 3, 120).frames
    steps = frames["rank_steps"].copy()
    axes = [str(name) for name in steps if str(name).startswith("comm_by_axis_us.")]
    steps["comm_by_axis_us"] = [
        json.dumps(dict(zip("tdp", map(float, row), strict=False))) for row in steps[axes].to_numpy()
    ]
    steps = steps.drop(columns=axes)
    steps.to_parquet(path / "steps.parquet")
    steps["ts"] = pd.to_datetime(steps["ts"], unit="ms", utc=True).dt.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    steps.to_csv(path / "steps.csv", index=False)
    for name in ("placements", "inventory"):
        frames[name].to_csv(path / f"{name}.csv", index=False)
    ops = [
        frames["rank_steps"][["ts", "job", "run", "step", "rank", "node", "device"]].assign(
            kind=kind, op=op, dur_us=values
        )
        for kind, op, values in (
            ("compute", "forward", frames["rank_steps"]["forward_us"]),
            ("compute", "backward", frames["rank_steps"]["backward_us"]),
            ("compute", "optimizer", frames["rank_steps"]["optimizer_us"]),
            ("comm", "all_reduce", frames["rank_steps"]["comm_us"]),
            ("step", "step", frames["rank_steps"]["step_us"]),
        )
    ]
    pd.concat(ops).to_csv(path / "ops.csv", index=False)
    return path


def slow(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if row["kind"] == "slow"]


@pytest.mark.parametrize("steps", ["rank_steps=steps.parquet", "rank_steps=steps.csv", "op_timings=ops.csv"])
def test_the_rank_is_named_whatever_the_recording(call: Run, folder: Path, steps: str) -> None:
    table, name = steps.split("=")
    code, rows, _ = call("--table", f"{table}={folder / name}", "--table", f"placements={folder / 'placements.csv'}")
    assert code == 0
    (row,) = slow(rows)
    assert (row["node"], row["rank"], row["device"], row["class"], row["scope"]) == ("n0001", 11, 3, "compute", "rank")
    assert row["blames_hardware"] is True
    assert 60 <= row["detected_step"] <= 80
    assert row["state"] == "raised"
    assert list(row) == list(TABLES["findings"].column_names)
    assert row["detected_at"].endswith("Z")
    assert isinstance(row["evidence"], dict)


def test_csv_and_parquet_say_the_same(call: Run, folder: Path) -> None:
    placements = f"placements={folder / 'placements.csv'}"
    first = call("--table", f"rank_steps={folder / 'steps.csv'}", "--table", placements)[1]
    second = call("--table", f"rank_steps={folder / 'steps.parquet'}", "--table", placements)[1]
    assert first == second


@pytest.mark.parametrize("name", ["steps.csv", "steps.parquet"])
def test_a_file_in_gzip_says_the_same(call: Run, folder: Path, tmp_path: Path, name: str) -> None:
    words = ("--table", f"placements={folder / 'placements.csv'}", "--detector", "slow", "--table")
    packed = tmp_path / "packed"
    whole = (folder / name).read_bytes()
    # Two members, as `cat a.gz b.gz` makes them; the name says nothing.
    packed.write_bytes(gzip.compress(whole[:5000]) + gzip.compress(whole[5000:]))
    assert call(*words, f"rank_steps={packed}") == call(*words, f"rank_steps={folder / name}")


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_gzip_is_read_as_far_as_it_goes(call: Run, folder: Path, tmp_path: Path, damage: str) -> None:
    packed = gzip.compress((folder / "steps.csv").read_bytes())
    end = packed[-4:] if damage == "flipped" else b""
    bad = tmp_path / "steps.csv.gz"
    bad.write_bytes(packed[: len(packed) * 9 // 10] + end)
    code, rows, err = call(
        "--table", f"rank_steps={bad}", "--table", f"placements={folder / 'placements.csv'}", "--detector", "slow"
    )
    assert (code, [row["rank"] for row in slow(rows)]) == (3, [11])
    assert "damaged or cut" in err
    assert len(err.splitlines()) == 1


def test_chosen_detectors_and_one_explained(call: Run, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--table", f"rank_steps={folder / 'steps.csv'}", "--detector", "coverage")
    code, rows, _ = call(*words)
    assert (code, [row["kind"] for row in rows]) == (0, ["coverage"])
    assert main(["backtest", *words, "--explain", rows[0]["id"]]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == rows[0]["id"]


def test_exit_codes(call: Run, folder: Path, tmp_path: Path) -> None:
    assert call()[0] == 2
    assert call("--table", "rank_steps")[0] == 2
    assert call("--table", f"nothing={folder / 'steps.csv'}")[0] == 2
    assert call("--table", f"rank_steps={folder / 'absent.csv'}")[0] == 2
    assert call("--table", f"rank_steps={folder / 'steps.csv'}", "--detector", "nobody")[0] == 2
    bad = tmp_path / "bad.csv"
    bad.write_text("step,rank,compute_us\n1,0,x\n2,0,3\n")
    code, _, err = call("--table", f"rank_steps={bad}")
    assert code == 3
    assert "'x'" in err
    bad.write_text("\x00\x01")
    assert call("--table", f"rank_steps={bad}")[0] == 3
    bad.write_text("step,rank\n")
    assert call("--table", f"rank_steps={bad}")[0] == 4
    bad.write_bytes(gzip.compress(b""))
    assert call("--table", f"rank_steps={bad}")[0] == 3
    assert call("--table", f"rank_steps={tmp_path}")[0] == 2


def test_a_broken_table_does_not_hide_the_good_one(call: Run, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.csv").write_text("nonsense")
    code, rows, _ = call(
        "--table", f"rank_steps={folder / 'steps.csv'}", "--table", f"placements={folder / 'placements.csv'}",
        "--table", f"device_samples={tmp_path / 'broken.csv'}",
    )  # fmt: skip
    assert code == 3
    assert len(slow(rows)) == 1


class Broken:
    name = "broken"
    version = "1"
    needs = Needs({})

    def score(self, frames: Frames) -> list[Finding]:
        raise ValueError("no")


def test_one_bad_detector_does_not_stop_the_others() -> None:
    outcome = run_detectors([Broken()], {})
    assert outcome.findings == []
    assert outcome.failures == {"broken": "ValueError: no"}


#: Thresholds with which a slow rank is not found.
DEAF = "slow.effect=0.9,slow.cusum_effect=0.9,slow.level_effect=0.9,slow.recurrence_effect=0.9"


def test_thresholds_can_be_tried(call: Run, folder: Path) -> None:
    tables = ("--table", f"rank_steps={folder}/steps.parquet", "--table", f"placements={folder}/placements.csv")
    code, found, _ = call(*tables, "--detector", "slow")
    deaf = [word for one in DEAF.split(",") for word in ("--set", one)]
    calm_code, calm, _ = call(*tables, "--detector", "slow", *deaf)
    assert (code, calm_code) == (0, 0)
    assert found
    assert calm == []
    assert call(*tables, "--set", "slow.nothing=1")[0] == 2
    assert call(*tables, "--detector", "slow", "--set", "ports.z=1")[0] == 2


def test_versions_side_by_side(call: Run, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    truth = folder / "truth.csv"
    truth.write_text("kind,target\nslow,11\n")
    words = ["--table", f"rank_steps={folder}/steps.parquet", "--table", f"placements={folder}/placements.csv",
             "--detector", "slow", "--truth", str(truth), "--compare", "calm=slow.effect=0.9,slow.cusum_effect=0.9",
             "--compare", f"deaf={DEAF}"]  # fmt: skip
    code, rows, _ = call(*words, "--format", "json")
    assert code == 0
    assert [row["version"] for row in rows] == ["now", "calm", "deaf"]
    assert (rows[0]["recall"], rows[0]["precision"], rows[2]["findings"], rows[2]["recall"]) == (1.0, 1.0, 0, 0.0)
    assert main(["backtest", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["version", "findings"]
    assert len(lines) == 4


def test_a_finding_is_explained_with_its_cause(call: Run, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = ("--table", f"rank_steps={folder}/steps.parquet", "--table", f"placements={folder}/placements.csv")
    _, found, _ = call(*tables)
    slow = next(one for one in found if one["kind"] == "slow")
    assert main(["backtest", *tables, "--explain", slow["id"]]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["id"] == slow["id"]
    assert {one["id"] for one in told.get("explains", [])} <= {one["id"] for one in found}
    code, _, errors = call(*tables, "--explain", "nothing")
    assert code == 1
    assert "no finding has the id nothing" in errors


def test_a_gzip_file_that_unpacks_without_end_is_one_sentence(
    call: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flightwatch.pipeline.detection.files.MOST_UNPACKED_BYTES", 1 << 20)
    (tmp_path / "bomb.csv.gz").write_bytes(gzip.compress(b"step,rank\n" + b"1,1\n" * 400_000))
    code, _, said = call("--table", f"rank_steps={tmp_path / 'bomb.csv.gz'}")
    assert code == 3
    assert "unpacks to" in said
    assert "Traceback" not in said
