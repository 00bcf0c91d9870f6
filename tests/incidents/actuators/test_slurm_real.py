"""A real Slurm controller from Debian's packages, with two node daemons, in a temporary folder."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from flightwatch.incidents.actuators.slurm import SlurmCommand
from flightwatch.incidents.contract import ActionRequest
from tests.conftest import free_port

_PROGRAMS = ("slurmctld", "slurmd", "munged", "scontrol", "sinfo")
_CONF = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
NodeName=n001 NodeAddr=127.0.0.1 NodeHostname=localhost Port={first} CPUs=1 State=UNKNOWN
NodeName=n002 NodeAddr=127.0.0.1 NodeHostname=localhost Port={second} CPUs=1 State=UNKNOWN
NodeName=n003 NodeAddr=127.0.0.1 NodeHostname=localhost Port={third} CPUs=1 State=UNKNOWN
PartitionName=p Nodes=ALL Default=YES State=UP
"""


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin")


def _missing() -> str | None:
    if os.geteuid() != 0:
        return "needs root"
    if not all(_program(name) for name in _PROGRAMS) and shutil.which("apt-get"):
        packages = ["slurmctld", "slurmd", "slurm-client", "munge"]
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
        subprocess.run(command, env=environment, capture_output=True, check=False)
    absent = [name for name in _PROGRAMS if not _program(name)]
    return f"not installed: {', '.join(absent)}" if absent else None


def _until(wanted: str, seconds: float, done: object) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if done():  # type: ignore[operator]
            return
        time.sleep(0.1)
    pytest.fail(f"{wanted} did not happen within {seconds:.0f} s")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCommand]:
    problem = _missing()
    if problem:
        pytest.skip(f"no Slurm here: {problem}")
    folder = tmp_path_factory.mktemp("slurm")
    key, conf = folder / "munge.key", folder / "slurm.conf"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    (folder / "state").mkdir()
    ports = {name: free_port() for name in ("port", "first", "second", "third")}
    conf.write_text(_CONF.format(folder=folder, **ports))
    with ExitStack() as stack:
        _start(stack, folder, "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.sock",
               f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log",
               f"--seed-file={folder}/munge.seed")  # fmt: skip
        _until("munge's socket", 20, (folder / "munge.sock").exists)
        _start(stack, folder, "slurmctld", "-D", "-f", str(conf))
        _until("the controller's port", 30, lambda: _listens(ports["port"]))
        for node in ("n001", "n002"):
            _start(stack, folder, "slurmd", "-D", "-f", str(conf), "-N", node)
        command = SlurmCommand(_program("scontrol") or "", _program("sinfo") or "", {"SLURM_CONF": str(conf)})
        _until("both nodes idle", 60, lambda: _usable(command) == {"n001", "n002"})
        yield command


def _start(stack: ExitStack, folder: Path, program: str, *arguments: str) -> None:
    output = stack.enter_context((folder / f"{program}.out").open("ab"))
    process = subprocess.Popen(
        [_program(program) or program, *arguments], stdout=output, stderr=output, stdin=subprocess.DEVNULL, cwd=folder
    )
    stack.callback(process.wait, 20)
    stack.callback(process.terminate)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _usable(command: SlurmCommand) -> set[str]:
    return {name for name, view in (command.nodes() or {}).items() if view.usable}


def _wish(kind: str, node: str, id_: str = "a0123456789abcde") -> ActionRequest:
    return ActionRequest(id_, kind, node, 'GPU 3 is slow; it\'s "hot" $(reboot) `x`', "rule:slow")


def test_a_node_is_drained_and_returned(slurm: SlurmCommand) -> None:
    done = slurm.apply(_wish("drain", "n001"))
    assert (done.ok, done.changed) == (True, True), done.message
    view = (slurm.nodes() or {})["n001"]
    assert (view.out, view.ours, view.usable) == (True, True, False)
    assert "a0123456789abcde" in view.why
    assert "reboot" in view.why
    again = slurm.apply(_wish("drain", "n001", "a_second_action"))
    assert (again.ok, again.changed) == (True, False)
    assert "by Flightwatch" in again.message
    back = slurm.apply(_wish("return", "n001"))
    assert (back.ok, back.changed) == (True, True), back.message
    _until("n001 back", 30, lambda: not (slurm.nodes() or {})["n001"].out)


def test_the_same_action_repeated_after_a_crash_owns_its_drain(slurm: SlurmCommand) -> None:
    slurm.apply(_wish("drain", "n002"))
    repeated = slurm.apply(_wish("drain", "n002"))
    assert (repeated.ok, repeated.changed) == (True, True)
    assert slurm.apply(_wish("return", "n002")).ok


def test_what_others_drained_stays_theirs(slurm: SlurmCommand) -> None:
    subprocess.run(
        [slurm._scontrol, "update", "NodeName=n002", "State=DRAIN", "Reason=bad fan, ann"],
        env=slurm._environment, check=True,
    )  # fmt: skip
    done = slurm.apply(_wish("drain", "n002"))
    assert (done.ok, done.changed) == (True, False)
    assert "bad fan, ann" in done.message
    back = slurm.apply(_wish("return", "n002"))
    assert not back.ok
    assert (slurm.nodes() or {})["n002"].out


def test_a_node_is_never_set_down(slurm: SlurmCommand) -> None:
    slurm.apply(_wish("drain", "n001"))
    shown = subprocess.run(
        [slurm._scontrol, "show", "node", "n001"], env=slurm._environment, capture_output=True, text=True, check=True
    ).stdout
    assert "DRAIN" in shown
    assert "DOWN" not in shown.split("State=")[1].split()[0]
    slurm.apply(_wish("return", "n001"))


@pytest.mark.parametrize("node", ["n9", "ALL", "n00[1-3]", "-n001", "n001,n002", "n001 State=DOWN", "", "n001\n"])
def test_a_strange_name_changes_nothing(slurm: SlurmCommand, node: str) -> None:
    before = _wanted(slurm)
    refused = slurm.apply(_wish("drain", node))
    assert not refused.ok
    assert _wanted(slurm) == before


def _wanted(slurm: SlurmCommand) -> dict[str, tuple[bool, str]]:
    """What controllers ask of the nodes; whether one is usable yet changes by itself after a return."""
    return {name: (view.out, view.why) for name, view in (slurm.nodes() or {}).items()}


def test_a_node_without_its_daemon_is_not_usable(slurm: SlurmCommand) -> None:
    assert not (slurm.nodes() or {})["n003"].usable
