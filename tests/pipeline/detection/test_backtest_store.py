"""`flightwatch backtest --store` on a closed embedded store, and `--truth`, as somebody outside would call it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flightwatch.cli import main
from flightwatch.core.clock import iso_utc
from flightwatch.pipeline.store.client import open_store
from flightwatch.pipeline.store.migrate import migrate
from flightwatch.pipeline.store.settings import StoreSettings
from tests.pipeline.detection.test_loop import frames, put


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("closed")
    store = open_store(f"chdb://{folder / 'store'}", StoreSettings())
    migrate(store)
    for name, rows in frames(None).items():
        if name in ("rank_steps", "placements", "inventory"):
            put(store, name, rows, name)
    store.close()
    return folder


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[dict[str, object]], list[str]]:
    code = main(["backtest", "--config", "/dev/null", *words])
    captured = capsys.readouterr()
    return int(code), [json.loads(line) for line in captured.out.splitlines()], captured.err.splitlines()


def test_a_time_range_of_the_store_is_scored_and_graded(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    truth = tmp_path / "truth.csv"
    truth.write_text("kind,scope,target,first_step\nslow,rank,11,60\n")
    words = ("--store", "--data-dir", str(data_dir))
    code, found, err = call(capsys, *words, "--truth", str(truth))
    assert (code, [(one["rank"], one["node"]) for one in found if one["kind"] == "slow"]) == (0, [(11, "n0001")])
    graded = json.loads(err[-1])
    assert (graded["precision"], graded["recall"], graded["f1"]) == (1.0, 1.0, 1.0)

    # Up to the onset, and after the last row, there is nothing to find.
    steps = frames(None)["rank_steps"]
    onset = int(steps.loc[steps["step"] == 60, "ts"].min())
    code, found, _ = call(capsys, *words, "--detector", "slow", "--to", str(iso_utc(onset)))
    assert (code, found) == (0, [])
    late = str(int(steps["ts"].max()) + 600_000)
    code, found, err = call(capsys, *words, "--detector", "throttle", "--from", late)
    assert (code, found) == (4, [])
    assert "no rows" in err[-1]


def test_what_cannot_be_asked_is_said_in_a_sentence(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--store", "--data-dir", str(data_dir))
    for wrong in (
        ("--store", "--table", "rank_steps=x.csv"),
        ("--table", "rank_steps=x.csv", "--from", "2026-01-01"),
        (*words, "--from", "yesterday"),
        (*words, "--from", "2026-01-02", "--to", "2026-01-01"),
        (*words, "--truth", str(tmp_path / "absent.csv")),
    ):
        code, found, err = call(capsys, *wrong)
        assert (code, found, len(err)) == (2, [], 1)
    assert call(capsys, "--store", "--data-dir", str(tmp_path / "nothing"))[0] == 1
    (tmp_path / "bad.csv").write_text("kind,target\nslowly,n1\n")
    code, _, err = call(capsys, *words, "--truth", str(tmp_path / "bad.csv"))
    assert code == 3
    assert "slowly" in err[0]
