"""`flightwatch run` becomes its command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FLIGHTWATCH")}
    return subprocess.run(
        [sys.executable, "-m", "flightwatch.cli", "run", *words],
        capture_output=True, text=True, check=False, timeout=300, env=clean | environment,
    )  # fmt: skip


def test_the_command_has_the_environment_and_its_own_exit_code(tmp_path: Path) -> None:
    script = (
        "import os, sys; print(*(os.environ.get('FLIGHTWATCH' + n, '-') for n in ('', '_SOCKET', '_JOB', '_RUN')));"
        " sys.exit(41)"
    )
    done = run("--data-dir", str(tmp_path), "--job", "llama", "--", sys.executable, "-c", script)
    assert done.returncode == 41
    assert done.stdout.split() == ["1", f"{tmp_path}/probe.sock", "llama", "-"]
    assert done.stderr == ""
    given = run("--", sys.executable, "-c", script, FLIGHTWATCH_SOCKET="/given/socket")
    assert given.stdout.split()[1] == "/given/socket"
    assert run("--", sys.executable, "-c", script).stdout.split()[1] == "/run/flightwatch/probe.sock"


def test_options_of_the_command_are_its_own() -> None:
    script = "import sys; print(sys.argv[1:])"
    done = run("--", sys.executable, "-c", script, "--config", "x", "--", "-h")
    assert done.stdout.strip() == "['--config', 'x', '--', '-h']"


def test_what_cannot_be_started_is_one_sentence() -> None:
    missing = run("--", "no-such-program-here")
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)
    assert "no-such-program-here: cannot be started" in missing.stderr
    nothing = run()
    assert nothing.returncode == 2
    assert "nothing to run" in nothing.stderr
