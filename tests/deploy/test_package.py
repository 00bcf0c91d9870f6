"""The distributions: complete, and of use where nothing else is installed."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "tests/collectors/captures"
#: Commands that must work in a training image, a rescue shell or a laptop without any other package.
BARE_COMMANDS = ("agent", "config", "hang", "inspect", "run", "size", "status", "trace")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that package indexes would build: from the unpacked source distribution."""
    folder = tmp_path_factory.mktemp("package")
    build("sdist", ROOT, folder)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder / "source", filter="data")
    build("wheel", next((folder / "source").iterdir()), folder)
    return next(folder.glob("*.whl"))


def build(target: str, source: Path, folder: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but the wheel's content: what `pip install --no-deps` leaves."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def flightwatch(installed: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the standard library and the wheel alone: -S leaves site-packages out."""
    program = f"import sys; sys.path.insert(0, {str(installed)!r}); from flightwatch.cli import main; sys.exit(main())"
    command = [sys.executable, "-I", "-S", "-c", program, *words]
    return subprocess.run(command, cwd=installed, capture_output=True, text=True, check=False, timeout=300)


def test_every_file_of_the_package_is_in_the_wheel(wheel: Path) -> None:
    tracked = subprocess.run(["git", "ls-files", "flightwatch"], cwd=ROOT, capture_output=True, text=True, check=False)
    if tracked.returncode:
        pytest.skip("not a git checkout: nothing says which files belong to the package")
    with zipfile.ZipFile(wheel) as archive:
        assert set(tracked.stdout.split()) <= set(archive.namelist())
        assert not [name for name in archive.namelist() if not name.startswith(("flightwatch/", "flightwatch-"))]


def test_the_base_has_no_dependency_and_the_extras_are_the_documented_ones() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["dependencies"] == []
    assert {"agent", "server", "deep", "dev", "all"} <= set(project["optional-dependencies"])
    documented = (ROOT / "docs/decisions/0002-dependencies.md").read_text()
    for extra in ("agent", "server", "deep", "dev"):
        for requirement in project["optional-dependencies"][extra]:
            name = requirement.partition("[")[0].partition(">")[0].partition("=")[0]
            assert name == "flightwatch" or name in documented or name.endswith("stubs") or name.startswith("types-")


def json_lines(lines: Iterable[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("command", BARE_COMMANDS)
def test_help_needs_no_other_package(installed: Path, command: str) -> None:
    done = flightwatch(installed, command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"usage: flightwatch {command}" in done.stdout


def test_files_are_read_and_settings_checked_without_another_package(installed: Path) -> None:
    read = flightwatch(installed, "inspect", str(SAMPLES / "devices/samples/nvidia_smi_610.xml"))
    assert read.returncode == 0
    assert any(line.get("table") == "device_samples" for line in json_lines(read.stdout.splitlines()))
    hung = flightwatch(installed, "hang", str(SAMPLES / "logs/samples/watchdog.log"))
    assert hung.returncode in (0, 4)
    assert "verdict" in json.loads(hung.stdout)
    assert flightwatch(installed, "config", "check").returncode == 0
    assert "[store]" in flightwatch(installed, "config", "init").stdout


@pytest.mark.parametrize("words", [["sql", "SELECT 1"], ["up"], ["pipeline"], ["dead", "list"]])
def test_what_needs_a_package_says_which_one(installed: Path, tmp_path: Path, words: list[str]) -> None:
    done = flightwatch(installed, *words)
    assert done.returncode == 1
    assert "needs the Python package" in done.stderr
    assert "pip install 'flightwatch[server]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_version_is_the_one_of_the_metadata(installed: Path) -> None:
    version = importlib.metadata.Distribution.at(next(installed.glob("*.dist-info"))).version
    assert flightwatch(installed, "--version").stdout.strip() == f"flightwatch {version}"
