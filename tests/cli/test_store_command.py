from __future__ import annotations

import json
from pathlib import Path

import pytest

from flightwatch.cli import main
from flightwatch.core.vocabulary import ExitCode


def store(data_dir: Path, *arguments: str) -> int:
    return main(["store", *arguments, "--data-dir", str(data_dir)])


def test_migrate_check_size_backup_restore(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    assert store(first, "migrate") == ExitCode.DONE
    assert "applied 0001_tables.sql" in capsys.readouterr().out
    assert store(first, "migrate") == ExitCode.DONE
    assert capsys.readouterr().out == "the store is up to date\n"
    assert store(first, "check") == ExitCode.DONE
    assert store(first, "size", "--format", "json") == ExitCode.DONE
    sizes = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [size["table"] for size in sizes] == ["schema_versions"]
    assert store(first, "rebuild-rollups") == ExitCode.DONE

    assert store(first, "backup", "--name", "b1") == ExitCode.DONE
    assert (first / "store.backups" / "b1" / "control.db").exists()
    assert store(first, "restore", "--name", "b1") == ExitCode.FAILED
    assert "empty data folder" in capsys.readouterr().err

    second.mkdir()
    (first / "store.backups").rename(second / "store.backups")
    assert store(second, "restore", "--name", "b1") == ExitCode.DONE
    assert (second / "control.db").stat().st_mode & 0o777 == 0o600
    assert store(second, "check") == ExitCode.DONE


def test_restore_needs_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert store(tmp_path, "restore") == ExitCode.USAGE
    assert "--name" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["check", "size", "backup", "rebuild-rollups"])
def test_a_store_that_is_not_there_is_said_and_not_made(
    tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert store(tmp_path / "data", verb) == ExitCode.FAILED
    assert f"there is no store at {tmp_path}/data/store" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
