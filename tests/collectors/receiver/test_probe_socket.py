"""The socket itself: who may put it where, what the kernel says of senders, removal and restart."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flightwatch.collectors.environment import environment_at
from flightwatch.collectors.receiver import ReceiverCollector
from flightwatch.collectors.receiver_settings import DEFAULT_SOCKET, ReceiverSettings, socket_path
from flightwatch.collectors.receiver_socket import ReceiverSocket
from flightwatch.core.errors import NoData
from flightwatch.core.protocols import Row


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not tmp_path: the path of a unix socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="fw-") as made:
        yield Path(made)


def _send(path: Path, data: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(data, str(path))


def test_the_kernel_names_the_sender(folder: Path) -> None:
    receiver = ReceiverSocket(str(folder / "s"))
    _send(folder / "s", b"x")
    datagram = receiver.receive()
    receiver.close()
    assert datagram is not None
    assert (datagram.data, datagram.pid, datagram.uid) == (b"x", os.getpid(), os.getuid())
    assert not (folder / "s").exists()


def test_a_socket_left_behind_is_replaced_and_one_in_use_is_not(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as old:
        old.bind(str(folder / "s"))
        with pytest.raises(NoData, match="in use by another agent"):
            ReceiverSocket(str(folder / "s"))
    ReceiverSocket(str(folder / "s")).close()


def test_files_links_and_open_folders_are_refused(folder: Path) -> None:
    (folder / "file").write_text("precious")
    with pytest.raises(NoData, match="is no socket"):
        ReceiverSocket(str(folder / "file"))
    assert (folder / "file").read_text() == "precious"
    (folder / "real").mkdir()
    (folder / "link").symlink_to(folder / "real")
    with pytest.raises(NoData, match="is a link"):
        ReceiverSocket(str(folder / "link" / "s"))
    (folder / "open").mkdir()
    (folder / "open").chmod(0o777)
    with pytest.raises(NoData, match="written by other users"):
        ReceiverSocket(str(folder / "open" / "s"))
    with pytest.raises(NoData, match="longer than 107 bytes"):
        ReceiverSocket(str(folder / ("x" * 120)))


def _wait_for(collector: ReceiverCollector, table: str) -> Row:
    for _ in range(3000):
        for row in collector.collect(time.time_ns() // 1_000_000):
            if row.table == table:
                return row
        time.sleep(0.02)
    raise AssertionError(f"no row of {table}")


def test_a_removed_socket_is_made_again(folder: Path) -> None:
    environment = environment_at("/")
    environment.receiver = ReceiverSettings(socket=str(folder / "s"))
    collector = ReceiverCollector(environment)
    try:
        list(collector.collect(0))
        (folder / "s").unlink()
        list(collector.collect(0))
        values = {"ts": time.time_ns() // 1_000_000, "step": 1, "name": "loss", "value": 2.0}
        message = {"v": 1, "job": "j", "run": "0", "rank": 0, "pid": 1, "rows": [["training_scalars", values]]}
        _send(folder / "s", json.dumps(message).encode())
        assert _wait_for(collector, "training_scalars").values["value"] == 2.0
    finally:
        collector.close()
    assert list(folder.iterdir()) == []


def test_a_recorded_tree_has_no_senders(tmp_path: Path) -> None:
    with pytest.raises(NoData):
        list(ReceiverCollector(environment_at(str(tmp_path))).collect(0))


def test_each_installation_has_its_own_socket() -> None:
    default = "/var/lib/flightwatch"
    assert socket_path(ReceiverSettings(), default, default, "") == DEFAULT_SOCKET
    assert socket_path(ReceiverSettings(), "/home/me/.demo", default, "") == "/home/me/.demo/probe.sock"
    assert socket_path(ReceiverSettings(), "/home/me/.demo", default, "/given") == "/given"
    assert socket_path(ReceiverSettings(socket="/set"), default, default, "/given") == "/set"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_two_users_are_told_apart_whatever_they_say(folder: Path) -> None:
    folder.chmod(0o755)
    environment = environment_at("/")
    environment.receiver = ReceiverSettings(socket=str(folder / "s"))
    collector = ReceiverCollector(environment)
    script = (
        "import json, os, socket, sys, time\n"
        "os.setuid(int(sys.argv[2]))\n"
        "values = {'ts': time.time_ns() // 1000000, 'step': int(sys.argv[2]), 'step_us': 1.0}\n"
        "message = {'v': 1, 'job': 'contested', 'run': '0', 'rank': 0, 'pid': 1, 'rows': [['rank_steps', values]]}\n"
        "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(json.dumps(message).encode(), sys.argv[1])\n"
    )
    try:
        list(collector.collect(0))
        for uid in ("65534", "65533"):
            subprocess.run([sys.executable, "-I", "-c", script, str(folder / "s"), uid], check=True)
        rows: list[Row] = []
        for _ in range(3000):
            rows += collector.collect(time.time_ns() // 1_000_000)
            if any(row.table == "events" for row in rows):
                break
            time.sleep(0.02)
    finally:
        collector.close()
    assert [row.values["step"] for row in rows if row.table == "rank_steps"] == [65534]
    (event,) = [row for row in rows if row.table == "events"]
    assert "uid 65533 sends for job contested" in str(event.values["message"])


@pytest.mark.skipif(
    subprocess.run(["unshare", "-pf", "true"], capture_output=True, check=False).returncode != 0,
    reason="pid namespaces cannot be made here",
)
def test_a_sender_in_another_pid_namespace_is_known_by_our_pid(folder: Path) -> None:
    receiver = ReceiverSocket(str(folder / "s"))
    script = (
        "import os, socket, sys, time\n"
        "with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:\n"
        "    one.sendto(str(os.getpid()).encode(), sys.argv[1])\n"
        "sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        ["unshare", "-pf", sys.executable, "-I", "-c", script, str(folder / "s")], stdin=subprocess.PIPE
    )
    try:
        datagram = next(found for found in (receiver.receive() for _ in range(40)) if found is not None)
        assert datagram.data == b"1"  # what it is in its own namespace
        assert datagram.pid is not None
        words = Path(f"/proc/{datagram.pid}/cmdline").read_bytes().split(b"\0")
        assert str(folder / "s").encode() in words
        assert datagram.uid == os.getuid()
    finally:
        process.communicate(timeout=300)
        receiver.close()
