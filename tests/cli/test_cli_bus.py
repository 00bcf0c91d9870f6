from __future__ import annotations

from pathlib import Path

import pytest

from flightwatch.cli import main
from flightwatch.core.vocabulary import ExitCode, Topic


def configure(folder: Path, bus: str) -> str:
    path = folder / "flightwatch.toml"
    path.write_text(f'[flightwatch]\nbus = "{bus}"\n')
    return str(path)


def test_setup_creates_every_topic_and_repeating_it_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure(tmp_path, f"sqlite://{tmp_path}/bus")
    assert main(["bus", "setup", "--config", config]) == ExitCode.DONE
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [topic.value for topic in Topic]
    assert all(" created " in line for line in lines)
    monkeypatch.setenv("FLIGHTWATCH_BUS_ROWS_PARTITIONS", "9")
    assert main(["bus", "setup", "--config", config]) == ExitCode.DONE
    printed = capsys.readouterr()
    assert all(" present " in line for line in printed.out.splitlines())
    assert "keeps its 4 partitions" in printed.err


def test_an_unknown_url_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bus", "setup", "--config", configure(tmp_path, "rabbit://x")]) == ExitCode.USAGE
    assert "flightwatch.bus" in capsys.readouterr().err
