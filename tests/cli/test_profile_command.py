from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flightwatch.cli import main
from flightwatch.cli.instance import InstanceLock
from flightwatch.cli.profile import ranks_of
from flightwatch.core.errors import ConfigError
from flightwatch.pipeline.control.database import open_control
from flightwatch.pipeline.control.settings import ControlSettings
from flightwatch.pipeline.profiles.records import Profiles, RankNews
from flightwatch.pipeline.store.lock import StoreLock


@pytest.fixture
def stopped_dir(tmp_path: Path) -> Path:
    """A folder on which an instance ran and runs no more."""
    open_control(f"sqlite://{tmp_path}/control.db", ControlSettings()).close()
    (tmp_path / "instance.lock").write_text("1\n")
    return tmp_path


@pytest.fixture
def data_dir(stopped_dir: Path) -> Iterator[Path]:
    """A folder that an instance holds."""
    lock = InstanceLock(stopped_dir)
    lock.acquire()
    yield stopped_dir
    lock.release()


def flightwatch(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["profile", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def start(capsys: pytest.CaptureFixture[str], folder: Path, *more: str) -> dict[str, Any]:
    words = ("start", "--data-dir", str(folder), "--job", "llama", "--ranks", "3,7-9", "--format", "json")
    code, out, err = flightwatch(capsys, *words, *more)
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def test_ranks() -> None:
    assert ranks_of("3, 7-9,8") == [3, 7, 8, 9]
    for text in ("", "a", "9-7", "1,,2", "-1"):
        with pytest.raises(ConfigError, match="write ranks like"):
            ranks_of(text)
    assert len(ranks_of("0-9999999")) < 100


def test_a_request_from_start_to_fetch(data_dir: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    made = start(capsys, data_dir, "--steps", "3", "--stacks", "--reason", "slow")
    assert (made["state"], made["steps"], made["reason"]) == ("requested", 3, "slow")
    assert [row["rank"] for row in made["ranks"]] == [3, 7, 8, 9]
    here = ("--data-dir", str(data_dir))
    assert made["id"] in flightwatch(capsys, "list", *here)[1]
    code, _, err = flightwatch(capsys, "fetch", made["id"], *here)
    assert (code, "has no trace" in err) == (1, True)

    trace = tmp_path / "rank3.json.gz"
    trace.write_bytes(gzip.compress(b"{}"))
    control = open_control(f"sqlite://{data_dir}/control.db", ControlSettings())
    Profiles(control).tell(made["id"], [RankNews(3, "done", artifact=str(trace))])
    control.close()
    out = tmp_path / "out"
    assert flightwatch(capsys, "fetch", made["id"], "--out", str(out), *here)[0] == 0
    assert [path.name for path in out.iterdir()] == [f"{made['id']}-rank3.json.gz"]

    assert flightwatch(capsys, "stop", made["id"], *here)[0] == 0
    text = flightwatch(capsys, "status", made["id"], *here)[1]
    assert "stopping" in text
    assert "rank 3  done" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--ranks", "0-16"), "17 ranks: 1 to 16 are allowed; --override-limits"),
        (("--ranks", "0", "--steps", "11"), "11 steps: 1 to 10"),
        (("--ranks", "0", "--steps", "0"), "0 steps"),
        (("--ranks", "0", "--max-bytes", "30000000000"), "20000000000"),
        (("--ranks", "0", "--timeout", "601"), "601 seconds: 1 to 600 are allowed"),
        (("--role", "dp=zero"), "write axes like"),
    ],
)
def test_limits(data_dir: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str) -> None:
    code, _, err = flightwatch(capsys, "start", "--data-dir", str(data_dir), "--job", "j", *words)
    assert code == 2
    assert said in err


@pytest.mark.parametrize(
    ("words", "said"),
    [(("--ranks", "0-64"), "65 ranks: 1 to 64"), (("--ranks", "0", "--steps", "101"), "101 steps: 1 to 100")],
)
def test_limits_of_times_of_blocks(
    data_dir: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    code, _, err = flightwatch(capsys, "blocks", "--data-dir", str(data_dir), "--job", "j", *words)
    assert code == 2
    assert said in err


def test_times_of_blocks_are_a_request_without_files(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--data-dir", str(data_dir), "--format", "json")
    code, out, err = flightwatch(capsys, "blocks", "--job", "j", "--ranks", "3,7", *words)
    assert code == 0, err
    made = json.loads(out)
    assert (made["kind"], made["steps"], [row["rank"] for row in made["ranks"]]) == ("blocks", 20, [3, 7])
    code, _, err = flightwatch(capsys, "fetch", made["id"], "--data-dir", str(data_dir))
    assert code == 1
    assert "rows of op_timings, no file" in err


def test_limits_can_be_overridden_up_to_what_a_command_carries(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = start(capsys, data_dir, "--steps", "50", "--override-limits")
    assert made["steps"] == 50
    words = ("start", "--data-dir", str(data_dir), "--job", "j", "--ranks", "0-64", "--override-limits")
    assert flightwatch(capsys, *words)[0] == 2


def test_without_an_instance_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = flightwatch(capsys, "list", "--data-dir", str(tmp_path))
    assert code == 1
    assert "nothing runs on" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "control.db").exists()


def test_a_start_with_nothing_running_is_refused_at_once(stopped_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("start", "--data-dir", str(stopped_dir), "--job", "j", "--ranks", "0")
    code, out, err = flightwatch(capsys, *words)
    assert (code, out) == (1, "")
    assert f"nothing runs on {stopped_dir}; `flightwatch up` starts it" in err
    assert flightwatch(capsys, "list", "--data-dir", str(stopped_dir))[1] == ""


def test_a_pipeline_without_an_instance_takes_requests(stopped_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = StoreLock(stopped_dir / "store")
    store.acquire()
    try:
        assert start(capsys, stopped_dir)["state"] == "requested"
    finally:
        store.release()


def test_wait_ends_with_the_timeout(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("start", "--data-dir", str(data_dir), "--job", "j", "--ranks", "0", "--wait", "--timeout", "1")
    code, _, err = flightwatch(capsys, *words)
    assert code == 1
    assert "has not ended after 1 s (requested)" in err
