"""Real processes that are killed, stopped and continued, on the local bus and on a Kafka-protocol broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flightwatch.pipeline.bus.base import Bus
from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.bus.settings import BusSettings
from flightwatch.pipeline.ingest.runner import BULK_TOPICS
from flightwatch.pipeline.ingest.settings import GROUP, fast_group
from flightwatch.pipeline.store.client import Store
from tests.pipeline.ingest.ingest_stage import Agent, StoreServer, check, finish, is_stored, setup_topics

ROOT = Path(__file__).parents[3]
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture(params=["local", pytest.param("kafka", marks=pytest.mark.kafka)])
def bus_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "kafka":
        return f"kafka://{request.getfixturevalue('own_broker').address}"
    return f"sqlite://{tmp_path}/bus"


@pytest.fixture
def end_sessions(request: pytest.FixtureRequest, bus_url: str) -> Callable[[], None]:
    """Ends the sessions of dead members at once on the test broker, which would keep them for ever."""

    def end() -> None:
        if bus_url.startswith("kafka"):
            request.getfixturevalue("expel")(bus_url.removeprefix("kafka://"), GROUP)
            request.getfixturevalue("expel")(bus_url.removeprefix("kafka://"), fast_group())

    return end


@pytest.fixture
def any_bus(bus_url: str) -> Iterator[Bus]:
    bus = open_bus(bus_url, BusSettings(kafka_delivery_timeout_ms=10_000))
    setup_topics(bus)
    yield bus
    bus.close()


@pytest.fixture
def start(bus_url: str, store: Store, tmp_path: Path) -> Iterator[Start]:
    server = StoreServer(store, tmp_path / "store.sock")
    running: list[subprocess.Popen[bytes]] = []
    session = "6" if bus_url.startswith("kafka") else "1"

    def begin(*orders: str, address: str = server.address) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.pipeline.ingest.ingest_worker", bus_url, address, *orders],
            cwd=ROOT,
            env=os.environ | {"TEST_SESSION_SECONDS": session},
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        running.append(process)
        return process

    yield begin
    for process in running:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.wait(300)
        if process.stdout is not None:
            process.stdout.close()
    server.close()


POINTS = ["commit.before:1", "commit.after:1", "insert.before:1", "insert.during:1", "insert.after:1",
          "insert.before:2", "insert.after:2", "commit.before:2", "commit.after:2", "commit.after:3"]  # fmt: skip


def test_kill_9_at_every_point(
    bus_url: str, any_bus: Bus, store: Store, start: Start, end_sessions: Callable[[], None]
) -> None:
    agents = [Agent(any_bus, f"n{n}") for n in range(6)]
    points = POINTS[1::3] if bus_url.startswith("kafka") else POINTS
    for number, point in enumerate(points):
        for agent in agents:
            agent.send(agent.samples(number))
        worker = start(f"{point}:SIGKILL")
        assert worker.wait(300) == -signal.SIGKILL, point
        end_sessions()
    for agent in agents:
        agent.send(agent.samples(99))
    finish(start(), any_bus)
    check(store, *agents)


@pytest.mark.parametrize("point", ["commit.after:1", "insert.before:1", "insert.after:1"])
def test_a_zombie_stores_nothing_twice(
    bus_url: str, any_bus: Bus, store: Store, start: Start, point: str, end_sessions: Callable[[], None]
) -> None:
    """Stopped in the middle of a range, overtaken by another process, continued afterwards."""
    if bus_url.startswith("kafka") and point != "commit.after:1":
        pytest.skip("one point is enough where the session takes 6 s to expire")
    agents = [Agent(any_bus, f"n{n}") for n in range(3)]
    for number in range(5):
        for agent in agents:
            agent.send(agent.samples(number))
    zombie = start(f"{point}:SIGSTOP")
    wait_until_stopped(zombie)
    end_sessions()
    heir = start()
    deadline = time.monotonic() + 300
    while not is_stored(any_bus, BULK_TOPICS):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    zombie.send_signal(signal.SIGCONT)
    for agent in agents:
        agent.send(agent.samples(50))
    # Both are members now; whoever owns a partition stores it.
    finish(heir, any_bus)
    for agent in agents:
        agent.send(agent.samples(51))
    finish(zombie, any_bus)
    check(store, *agents)


def wait_until_stopped(process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 300
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline, "the worker never reached its point"
        time.sleep(0.02)


def test_two_processes_share_the_work(
    bus_url: str, any_bus: Bus, store: Store, start: Start, end_sessions: Callable[[], None]
) -> None:
    agents = [Agent(any_bus, f"n{n}") for n in range(6)]
    workers = [start(), start()]
    for number in range(10):
        for agent in agents:
            agent.send(agent.samples(number))
        if number == 5:
            workers[0].send_signal(signal.SIGTERM)
            assert workers[0].wait(300) == 0
            end_sessions()
    finish(workers[1], any_bus)
    check(store, *agents)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_forty_kills_at_random(any_bus: Bus, store: Store, start: Start, end_sessions: Callable[[], None]) -> None:
    agents = [Agent(any_bus, f"n{n}") for n in range(4)]
    kills = 0
    for seed in range(200):
        for agent in agents:
            agent.send(agent.samples(seed))
        worker = start(f"random:{seed}:8")
        deadline = time.monotonic() + 15
        while worker.poll() is None and time.monotonic() < deadline and not is_stored(any_bus, BULK_TOPICS):
            time.sleep(0.02)
        if worker.poll() is None:
            worker.send_signal(signal.SIGTERM)
        if worker.wait(300) == -signal.SIGKILL:
            kills += 1
            end_sessions()
        if kills >= 40:
            break
    finish(start(), any_bus)
    assert kills >= 40
    check(store, *agents)
