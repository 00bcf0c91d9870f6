"""`make check` looks at every file: a path that a setting leaves out is a path nobody checks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def tracked() -> set[str]:
    done = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout: nothing says which files there are")
    return {line for line in done.stdout.splitlines() if (ROOT / line).exists()}


def test_lint_reads_every_python_file() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    folders = re.search(r"ruff check ([\w ]+)$", makefile, re.MULTILINE)
    assert folders is not None
    command = [sys.executable, "-m", "ruff", "check", "--show-files", *folders[1].split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    shown = {str(Path(line).relative_to(ROOT)) for line in done.stdout.splitlines()}
    assert tracked() <= shown
    assert all((ROOT / name).resolve() == ROOT / name for name in shown), "a file is read twice, through a root link"
