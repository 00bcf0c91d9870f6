"""Fixtures that several parts share: a real Kafka-protocol broker."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


def free_port() -> int:
    """Return a TCP port on loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Broker:
    """A noida-db process with the Kafka service only. Backlogs must stay below 60 MB."""

    def __init__(self, binary: str, folder: Path) -> None:
        self._binary = binary
        self._folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it (again, with the data it had) and wait until it accepts connections."""
        self._folder.mkdir(parents=True, exist_ok=True)
        arguments = ["start", "--data-dir", str(self._folder), "--only", "kafka", "--kafka-port", str(self.port)]
        os.chmod(self._binary, 0o755)
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 0.2):
            raise RuntimeError(f"something listens on port {self.port} already")
        with open(self._folder / "broker.log", "ab") as log:
            self._process = subprocess.Popen([self._binary, *arguments], stdout=log, stderr=log)
        for _ in range(4000):
            if self._process.poll() is not None:
                raise RuntimeError((self._folder / "broker.log").read_text(errors="replace"))
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 0.2):
                return
            time.sleep(0.025)
        raise RuntimeError("the test broker does not listen")

    def stop(self) -> None:
        """Stop it by SIGTERM: it saves its data."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(300)
            self._process = None

    def discard(self) -> None:
        """End it at once: saving what nobody reads again takes it up to 10 s."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(300)
            self._process = None


def expel_members(address: str, group: str) -> None:
    """Remove all members of a group, as a broker does when their sessions end.

    noida-db keeps a member that was killed or stopped for ever when it was the group's leader, so tests that
    kill or stop readers call this in place of waiting for the session timeout.
    """
    from kafka import KafkaAdminClient
    from kafka.admin import MemberToRemove

    admin = KafkaAdminClient(bootstrap_servers=address)
    try:
        members = admin.describe_groups([group])[group]["members"]
        if members:
            admin.remove_group_members(group, [MemberToRemove(member_id=member["member_id"]) for member in members])
    finally:
        admin.close()


def find_noida() -> str | None:
    """Return the path of the noida-db program itself.

    The `noida-db` command beside the interpreter is a Python wrapper that does not pass SIGTERM on, so a
    broker started through it would outlive every stop.
    """
    specification = importlib.util.find_spec("noida_db")
    folders = (specification.submodule_search_locations or []) if specification else []
    programs = [Path(folder) / "noida-db" for folder in folders]
    return next((str(program) for program in programs if program.exists()), None)


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker of the test's own, which it may stop and start."""
    binary = find_noida()
    if binary is None:
        pytest.skip("noida-db is not installed: pip install noida-db")
    broker = Broker(binary, tmp_path / "broker")
    broker.start()
    yield broker
    broker.discard()


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """HOST:PORT of a broker shared by the session: use topic and group names of your own."""
    binary = find_noida()
    if binary is None:
        pytest.skip("noida-db is not installed: pip install noida-db")
    broker = Broker(binary, tmp_path_factory.mktemp("kafka"))
    broker.start()
    yield broker.address
    broker.discard()


@pytest.fixture(scope="session")
def expel() -> Callable[[str, str], None]:
    """`expel_members`, for tests that cannot import this file."""
    return expel_members


@pytest.fixture(scope="session")
def real_kafka() -> str:
    """HOST:PORT of a real cluster, from FLIGHTWATCH_TEST_KAFKA."""
    address = os.environ.get("FLIGHTWATCH_TEST_KAFKA", "")
    if not address:
        pytest.skip("FLIGHTWATCH_TEST_KAFKA=host:port is not set: not run against a real Kafka cluster")
    return address
