"""`flightwatch doctor`: whether this node is ready for probes, profiles and hang evidence."""

from __future__ import annotations

import argparse
import json
import os
import pwd
import shutil
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from flightwatch.cli.agent import receiver_settings
from flightwatch.cli.agent_parts import socket_folder
from flightwatch.cli.common_settings import CommonSettings
from flightwatch.cli.sections import load_agent_settings
from flightwatch.collectors.clock_offset import kernel_clock
from flightwatch.collectors.hang.stacks import py_spy_path
from flightwatch.collectors.profiler.folder import SOCKET, problem_of
from flightwatch.collectors.profiler.processes import DAEMON_NAME, FOLDER_NAME
from flightwatch.core.settings import Loaded
from flightwatch.core.vocabulary import ExitCode

HELP = "Check this node: agent, socket folder, torch, py-spy, clock. One line each; exit code 1 when one fails."
EPILOG = (
    "examples:\n  flightwatch doctor\n  flightwatch doctor --python /opt/train/bin/python --format json\n\n"
    "`ok` and `note` lines do not fail: a note names a feature that is missing and what works without it."
)
_PYTHON_SECONDS = 120
#: Further apart, timelines of nodes cannot be compared by the clock.
_CLOCK_US = 5_000.0
#: Runs in the given Python; prints what of torch the probe and the profiler use.
_ASK_TORCH = """
import importlib.util, json
found = {"torch": None, "flightwatch": importlib.util.find_spec("flightwatch") is not None}
try:
    import torch
    found["torch"] = torch.__version__
    found["kineto"] = bool(torch.profiler.kineto_available())
    import torch.distributed as dist
    found["distributed"] = dist.is_available()
    core = getattr(torch._C, "_distributed_c10d", None)
    found["worker_server"] = hasattr(core, "_WorkerServer")
    found["flight_recorder"] = hasattr(core, "_dump_fr_trace_json") or hasattr(core, "_dump_nccl_trace_json")
except ImportError as error:
    found["error"] = str(error)
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class Check:
    """One line.

    Attributes
    ----------
    state: ok, note (something optional is missing) or fail.
    """

    name: str
    state: str
    text: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    parser.add_argument("--config", help="configuration file (default: FLIGHTWATCH_CONFIG or /etc/flightwatch)")
    parser.add_argument("--data-dir", help="data folder of the agent (default: flightwatch.data_dir)")
    parser.add_argument("--python", help="Python of the training jobs (default: python3, if there is one)")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")


def run(arguments: argparse.Namespace) -> int:
    """Check and print."""
    if arguments.data_dir:
        os.environ["FLIGHTWATCH_FLIGHTWATCH_DATA_DIR"] = str(Path(arguments.data_dir).absolute())
    checks = list(_checks(arguments))
    for check in checks:
        if arguments.format == "json":
            print(json.dumps(asdict(check), ensure_ascii=False))
        else:
            print(f"{check.state:5} {check.name:14} {check.text}")
    return ExitCode.FAILED if any(check.state == "fail" for check in checks) else ExitCode.DONE


def _checks(arguments: argparse.Namespace) -> Iterator[Check]:
    settings = load_agent_settings(arguments.config)
    common = settings.section(CommonSettings)
    checks = node_checks(settings, common)
    yield from checks
    given = profiler_environment(settings, common, checks)
    if given:
        words = " ".join(f"{name}={value}" for name, value in given.items())
        yield Check("jobs", "ok", f"can be profiled when started with {words}")
    yield torch_check(arguments.python)


def node_checks(
    settings: Loaded, common: CommonSettings, clock: Callable[[], float | None] | None = None
) -> list[Check]:
    """Return the checks of the node itself: all but torch, which belongs to a job's Python.

    Parameters
    ----------
    clock: returns the clock's error in microseconds, as `clock_check` takes it; None asks the kernel.
    """
    folder = socket_folder(settings, common)
    return [
        socket_check("agent", receiver_settings(settings, common).socket, "probes are received"),
        folder_check(folder),
        socket_check("profiler", os.path.join(folder, SOCKET), "profiles are answered"),
        py_spy_check(),
        clock_check((clock or kernel_clock())()),
    ]


def profiler_environment(
    settings: Loaded, common: CommonSettings, checks: Sequence[Check] | None = None
) -> dict[str, str]:
    """Return what makes a job's processes ask for profiles; empty unless this node passes all of its checks.

    libkineto looks for its daemon once, when torch is imported, and logs a line every few seconds without one:
    a job gets the variables only where everything passed. What the user has set stays.

    Parameters
    ----------
    checks: of this node, where they were made already.
    """
    made = node_checks(settings, common) if checks is None else checks
    if any(check.state == "fail" for check in made) or any(name in os.environ for name in (DAEMON_NAME, FOLDER_NAME)):
        return {}
    return {DAEMON_NAME: "1", FOLDER_NAME: socket_folder(settings, common)}


def socket_check(name: str, path: str, meaning: str) -> Check:
    """Say whether somebody answers on a datagram socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(path)
        except FileNotFoundError:
            return Check(name, "fail", f"{path} is not there: the agent does not run (`flightwatch agent`)")
        except OSError as error:
            return Check(name, "fail", f"{path}: nobody answers ({error.strerror})")
    return Check(name, "ok", f"{meaning} at {path}")


def folder_check(folder: str) -> Check:
    """Say whether the profiler's folder is one that libkineto takes and every user can use."""
    name = "socket folder"
    problem = problem_of(folder)
    if problem:
        return Check(name, "fail", problem)
    try:
        found = os.lstat(folder)
    except OSError as error:
        return Check(name, "fail", f"{folder}: {error.strerror}; the agent makes it")
    owner = _user(found.st_uid)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (0, os.geteuid()):
        return Check(name, "fail", f"{folder} belongs to {owner}: it must belong to the agent's user")
    if stat.S_IMODE(found.st_mode) != 0o1777:
        mode = stat.S_IMODE(found.st_mode)
        return Check(name, "fail", f"{folder} has mode {mode:o}: jobs make sockets in it, so it must be 1777")
    return Check(name, "ok", f"{folder}, owner {owner}")


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def torch_check(python: str | None) -> Check:
    """Say which torch a Python has and what of it can be used."""
    program = python or shutil.which("python3")
    if program is None:
        return Check("torch", "note", "no python3 in PATH: name the jobs' Python with --python")
    try:
        done = subprocess.run(
            [program, "-c", _ASK_TORCH], capture_output=True, timeout=_PYTHON_SECONDS, check=False, text=True
        )
        found = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 and done.stdout else None
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        return Check("torch", "fail", f"{program} cannot be asked: {error}")
    if not isinstance(found, dict):
        return Check("torch", "fail", f"{program} ended with status {done.returncode}")
    if found["torch"] is None:
        return Check(
            "torch", "fail" if python else "note", f"{program} has no torch: name the jobs' Python with --python"
        )
    return _torch_features(program, found)


def _torch_features(program: str, found: dict[str, object]) -> Check:
    version = str(found["torch"])
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    missing = []
    if not found["flightwatch"]:
        missing.append("flightwatch is not installed in it: no probe")
    if numbers < (2, 5):
        missing.append("below 2.5: call flightwatch.attach() in the script")
    if not found.get("kineto"):
        missing.append("no Kineto: no profiles")
    if not found.get("worker_server"):
        missing.append("no worker server: hangs are judged without its flight recorder")
    if numbers < (2, 1):
        return Check("torch", "fail", f"{version} in {program}: 2.1 is the oldest that works")
    text = f"{version} in {program}" + ("; " + "; ".join(missing) if missing else "; probe, profiles, flight recorder")
    return Check("torch", "note" if missing else "ok", text)


def py_spy_check() -> Check:
    """Say whether stacks can be read from outside a process."""
    program = shutil.which(py_spy_path())
    if program is None:
        return Check("py-spy", "note", "not installed: stacks of a rank that holds the GIL are not read")
    if os.geteuid() != 0:
        return Check("py-spy", "note", f"{program}; only processes of user {_user(os.geteuid())} can be read")
    return Check("py-spy", "ok", program)


def clock_check(offset_us: float | None) -> Check:
    """Judge how far this node's clock is from true time.

    Parameters
    ----------
    offset_us: estimated error in microseconds, None when the kernel says that nobody keeps the clock.
    """
    if offset_us is None:
        return Check("clock", "note", "nobody keeps it (NTP, PTP): traces of nodes are aligned by collectives only")
    state = "ok" if abs(offset_us) <= _CLOCK_US else "fail"
    return Check("clock", state, f"{offset_us:.0f} us off")
