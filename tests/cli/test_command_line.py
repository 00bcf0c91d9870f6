"""The command frame: help, exit codes, clear refusals."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flightwatch.cli import main
from flightwatch.cli.registry import COMMANDS


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for name, _, line in COMMANDS:
        assert name in text
        assert line in text


@pytest.mark.parametrize("name", [name for name, _, _ in COMMANDS])
def test_each_command_has_help_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([name, "--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert "example" in text
    assert f"flightwatch {name}" in text
    module = importlib.import_module({n: m for n, m, _ in COMMANDS}[name])
    assert module.HELP.endswith(".")


def test_unknown_command_is_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["frobnicate"]) == 2
    assert "there is no command 'frobnicate'" in capsys.readouterr().err


def test_nothing_is_usage() -> None:
    assert main([]) == 2


def test_config_check_names_origins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "f.toml"
    file.write_text('[flightwatch]\ncluster = "c7"\n', encoding="utf-8")
    assert main(["config", "check", "--config", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("flightwatch.cluster") and "'c7'" in line and str(file) in line for line in lines)
    assert any(line.startswith("flightwatch.log_level") and line.endswith("# default") for line in lines)


def test_config_mistake_is_exit_2_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "f.toml"
    file.write_text("[flightwatch]\nclutser = 1\n", encoding="utf-8")
    assert main(["config", "check", "--config", str(file)]) == 2
    error = capsys.readouterr().err
    assert "unknown key flightwatch.clutser" in error
    assert error.count("\n") == 1


def test_config_init_is_accepted_by_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "init"]) == 0
    file = tmp_path / "f.toml"
    file.write_text(capsys.readouterr().out, encoding="utf-8")
    assert main(["config", "check", "--config", str(file)]) == 0


def test_closed_pipe_is_not_a_traceback() -> None:
    done = subprocess.run(
        f"{sys.executable} -m flightwatch.cli config init | head -1",
        shell=True,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""


def test_importing_flightwatch_imports_nothing_else() -> None:
    code = "import sys; import flightwatch; print([m for m in sys.modules if m.startswith('flightwatch')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['flightwatch']"


@pytest.mark.parametrize("redirect", [">/dev/full", ">&-", "<&-", "2>&-"])
def test_a_full_disk_or_a_closed_stream_is_no_traceback(redirect: str) -> None:
    command = f"exec {sys.executable} -m flightwatch.cli config check {redirect}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False, timeout=300)
    full = redirect == ">/dev/full"
    assert done.returncode == (1 if full else 0)
    assert done.stderr == ("flightwatch config: No space left on device\n" if full else "")


def test_a_command_leaves_the_callers_environment_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLIGHTWATCH_FLIGHTWATCH_DATA_DIR", str(tmp_path / "mine"))
    before = dict(os.environ)
    main(["doctor", "--data-dir", str(tmp_path / "other")])
    capsys.readouterr()
    assert dict(os.environ) == before
