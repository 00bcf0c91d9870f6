from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import sqlalchemy as sa

from flightwatch import __version__
from flightwatch.core.clock import ManualClock, SystemClock
from flightwatch.core.errors import StaleGeneration, TransientError
from flightwatch.core.incident import IncidentState
from flightwatch.core.protocols import Row
from flightwatch.core.vocabulary import FindingKind as Kind
from flightwatch.core.vocabulary import Lane, Topic
from flightwatch.detectors.contract import Finding
from flightwatch.detectors.device_errors import DeviceErrorDetector
from flightwatch.incidents.fast_events import FastEvents, event_detectors
from flightwatch.incidents.intake import TOPICS, Intake
from flightwatch.incidents.service import GROUP, IncidentService
from flightwatch.pipeline.batch import Batch, BatchHeader
from flightwatch.pipeline.bus.base import Bus, Subscription
from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.bus.settings import BusSettings
from flightwatch.pipeline.bus.topics import setup_topics
from flightwatch.pipeline.codec import encode
from flightwatch.pipeline.control.database import open_control
from flightwatch.pipeline.control.engine_writes import EngineWrites
from flightwatch.pipeline.control.incidents import IncidentRecords
from flightwatch.pipeline.control.leases import Lease
from flightwatch.pipeline.control.schema_incidents import ALERT_NEEDS
from flightwatch.pipeline.control.settings import ControlSettings
from flightwatch.pipeline.detection.publish import FindingPublisher
from tests.incidents.engine_kit import FakeContext, Rig
from tests.incidents.grouping_kit import T0, finding, racks
from tests.pipeline.control.postgres_kit import PostgresServer, postgres

__all__ = ["postgres"]

_SETTINGS = BusSettings(session_timeout_seconds=2.0)


def event(
    code: str, message: str, at_ms: int, node: str = "n1", severity: str = "critical", **attrs: str
) -> dict[str, Any]:
    return {
        "ts": at_ms, "cluster": "lab", "node": node, "device": 3, "source": "kernel", "code": code,
        "severity": severity, "message": message, "attrs": attrs,
    }  # fmt: skip


def publish_events(bus: Bus, rows: list[dict[str, Any]], seq: int = 1) -> None:
    header = BatchHeader("agent", "spool", Lane.EVENTS.value, seq, "n1", "lab", rows[0]["ts"], __version__)
    value = encode(Batch(header, [Row("events", row) for row in rows]))
    bus.publish(Topic.EVENTS.value, "n1", value).result(120)


def publish(bus: Bus, *findings: Finding) -> None:
    FindingPublisher(bus, SystemClock(), "lab", "n0").publish(findings)


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    opened = open_bus(f"sqlite://{tmp_path / 'bus'}", _SETTINGS, SystemClock())
    setup_topics(opened, _SETTINGS)
    yield opened
    opened.close()


class Served:
    """A service that the test turns by hand."""

    def __init__(self, rig: Rig, bus: Bus, followers: tuple[Any, ...] = ()) -> None:
        self.rig, self.bus = rig, bus
        self.fast = FastEvents(event_detectors())
        self.service = IncidentService(
            rig.control, bus, rig.context, rig.clock, rig.settings, self.fast, followers, holder="a", cluster="lab"
        )
        self.subscription: Subscription | None = bus.subscribe(list(TOPICS), GROUP)
        self.intake = Intake(bus, self.subscription, EngineWrites(rig.control).positions(), self.fast)

    def turn(self, times: int = 3) -> None:
        for _ in range(times):
            self.service.step(self.intake, self.rig.lease)
            self.rig.clock.advance(0.2)

    def close(self) -> None:
        if self.subscription is not None:
            self.subscription.close()
            self.subscription = None


@pytest.fixture
def served(tmp_path: Path, bus: Bus) -> Iterator[Served]:
    rig = Rig(tmp_path)
    made = Served(rig, bus)
    yield made
    made.close()
    rig.close()


def test_a_critical_event_is_an_incident_at_once_with_the_id_of_the_detection_loop(served: Served, bus: Bus) -> None:
    rows = [event("xid:79", "GPU has fallen off the bus", T0 - 1000)]
    publish_events(bus, rows)
    served.turn()
    (incident,) = served.rig.incidents()
    frame = pd.DataFrame(rows).drop(columns="attrs").astype({"device": float, "ts": float})
    (expected,) = DeviceErrorDetector().score({"events": frame})
    assert incident.root_finding == expected.id
    assert (incident.node, incident.device, incident.kind) == ("n1", 3, "device_error")
    assert [reason for _, reason in served.rig.told()] == ["opened"]
    # The loop states the same a few seconds later: nothing new.
    before = served.rig.records.latest_sequence()
    publish(bus, expected)
    served.turn()
    assert (served.rig.records.latest_sequence(), len(served.rig.told())) == (before, 1)


def test_harmless_events_make_no_finding(served: Served, bus: Bus) -> None:
    publish_events(bus, [event("xid:43", "application", T0), event("link:up", "up", T0, severity="info")])
    served.turn()
    assert served.rig.incidents() == []


def test_a_burst_of_related_events_is_one_finding(served: Served, bus: Bus) -> None:
    rows = [event(f"xid:{number}", "x", T0 + number, pci_bus_id="0000:86:00.0") for number in (48, 63, 94)]
    publish_events(bus, rows[:1], 1)
    served.turn()
    publish_events(bus, rows[1:], 2)
    served.turn(10)
    (incident,) = served.rig.incidents()
    assert incident.kind == "ecc"


def test_findings_come_once_although_the_bus_was_not_told(served: Served, bus: Bus, tmp_path: Path) -> None:
    publish(bus, finding(Kind.THROTTLE, "n1", 3, T0), finding(Kind.THROTTLE, "n40", 3, T0))
    # Everything is stored, then the process ends before it tells the bus.
    taken = served.intake.read(1_000_000, 1.0, served.rig.clock.now_ms)
    served.rig.engine.cycle(served.rig.lease, taken.statements, taken.positions)
    served.close()
    again = Served(served.rig, bus)
    publish(bus, finding(Kind.ECC, "n50", 1, T0))
    read = again.intake.read(1_000_000, 1.0, served.rig.clock.now_ms)
    assert [one.kind for one in read.statements] == [Kind.ECC]
    again.close()


def test_an_older_database_reads_the_bus_again(served: Served, bus: Bus) -> None:
    publish(bus, finding(Kind.THROTTLE, "n1", 3, T0))
    served.turn(2)
    publish(bus, finding(Kind.ECC, "n2", 3, T0))
    served.turn(2)
    served.close()
    positions = EngineWrites(served.rig.control).positions()
    older = {key: (incarnation, 0) for key, (incarnation, _) in positions.items()}
    subscription = bus.subscribe(list(TOPICS), GROUP)
    intake = Intake(bus, subscription, older, served.fast)
    kinds = []
    for _ in range(4):
        kinds += [one.kind for one in intake.read(1_000_000, 0.2, served.rig.clock.now_ms).statements]
    assert sorted(kinds) == [Kind.ECC, Kind.THROTTLE]
    subscription.close()


def test_rubbish_on_the_bus_stops_nothing(served: Served, bus: Bus) -> None:
    bus.publish(Topic.FINDINGS.value, "x", b"rubbish").result(120)
    header = BatchHeader("a", "s", Lane.EVENTS.value, 1, "n1", "lab", T0, __version__)
    bad = finding(Kind.THROTTLE, "n1", 3, T0).to_row() | {"kind": "nonsense", "received_at": None}
    bus.publish(Topic.FINDINGS.value, "x", encode(Batch(header, [Row("findings", bad)]))).result(120)
    publish(bus, finding(Kind.THROTTLE, "n1", 3, T0))
    served.turn()
    assert len(served.rig.incidents()) == 1
    assert served.intake.unreadable == 2


def test_a_failing_follower_is_isolated_and_counted(tmp_path: Path, bus: Bus) -> None:
    cycled: list[int] = []

    class Good:
        name = "good"
        urgent = True

        def cycle(self, lease: Lease) -> None:
            cycled.append(lease.epoch)

    class Broken:
        name = "broken"
        urgent = True

        def cycle(self, lease: Lease) -> None:
            raise ZeroDivisionError("bug")

    class Away:
        name = "away"
        urgent = True

        def cycle(self, lease: Lease) -> None:
            raise TransientError("the database is away")

    clock = SystemClock()
    control = open_control(f"sqlite://{tmp_path / 'control.db'}", ControlSettings())
    context = FakeContext(ManualClock(T0), Rig.view_of(racks()))
    service = IncidentService(
        control, bus, context, clock, Rig.quick(), FastEvents([]), (Good(), Broken(), Away()), holder="a", cluster="lab"
    )
    with running(service):
        publish(bus, finding(Kind.THROTTLE, "n1", 3, clock.now_ms()))
        until(lambda: len(cycled) >= 2 and service.follower_states["broken"].failures >= 1)
        until(lambda: IncidentRecords(control).counts()["open"] == 1)
        assert service.health()["followers"]["broken"]["error"] == "ZeroDivisionError: bug"
        assert service.follower_states["away"].failures >= 1
        assert service.active
    assert service.health()["active"] is False
    control.close()


def until(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    """Wait for what another thread or process does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


class running:  # noqa: N801
    """Run a service in a thread."""

    def __init__(self, service: IncidentService) -> None:
        import threading

        self._stop = threading.Event()
        self._thread = threading.Thread(target=service.run, args=(self._stop,), daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(300)
        assert not self._thread.is_alive()


class Processes:
    """Engines in processes of their own on one control database and bus."""

    def __init__(self, folder: Path, control_url: str = "") -> None:
        self.control_url = control_url or f"sqlite://{folder / 'control.db'}"
        self.bus_url = f"sqlite://{folder / 'bus'}"
        self.messages = folder / "messages"
        self.messages.touch()
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, holder: str, lease_seconds: float = 2.0) -> subprocess.Popen[bytes]:
        program = Path(__file__).with_name("engine_process.py")
        arguments = [self.control_url, self.bus_url, str(self.messages), holder, str(lease_seconds)]
        process = subprocess.Popen(
            [sys.executable, str(program), *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"READY\n"
        return process

    def freeze(self, process: subprocess.Popen[bytes]) -> None:
        """Stop a process where it holds no lock of a SQLite file, which nobody could take from it."""
        for _ in range(2000):
            process.send_signal(signal.SIGSTOP)
            if all(self._is_free(Path(url.removeprefix("sqlite://"))) for url in self._files()):
                return
            process.send_signal(signal.SIGCONT)
            time.sleep(0.05)
        raise AssertionError("the process always holds a lock")

    def _files(self) -> list[str]:
        bus = f"{self.bus_url}/bus.db"
        return [self.control_url, bus] if self.control_url.startswith("sqlite:") else [bus]

    @staticmethod
    def _is_free(path: Path) -> bool:
        connection = sqlite3.connect(path, timeout=0.2)
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
            return True
        except sqlite3.OperationalError:
            return False
        finally:
            connection.close()

    def told(self) -> list[str]:
        return self.messages.read_text().splitlines()

    def stop(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(300)
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def processes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Processes]:
    server: PostgresServer | None = request.getfixturevalue("postgres") if request.param == "postgresql" else None
    made = Processes(tmp_path, server.new_database() if server is not None else "")
    yield made
    made.stop()


def test_an_engine_stopped_past_its_lease_changes_nothing_when_it_goes_on(
    processes: Processes, bus: Bus, tmp_path: Path
) -> None:
    control = open_control(processes.control_url, ControlSettings())
    records = IncidentRecords(control)
    now = SystemClock().now_ms()
    first = processes.start("first")
    publish(bus, finding(Kind.THROTTLE, "n1", 3, now))
    until(lambda: len(processes.told()) == 1)
    processes.freeze(first)
    publish(bus, *(finding(Kind.THROTTLE, f"m{number}", 0, now) for number in range(50)))
    second = processes.start("second")
    until(lambda: (held := control.leases.holder("incidents")) is not None and held.holder.startswith("second"))
    until(lambda: records.counts()["open"] == 51 and len(processes.told()) == 51, 60)
    id_ = records.page().items[0].id
    records.acknowledge(id_, "ada")
    until(lambda: len(processes.told()) == 52)
    first.send_signal(signal.SIGCONT)
    publish(bus, *(finding(Kind.THROTTLE, f"k{number}", 0, now) for number in range(10)))
    until(lambda: len(processes.told()) == 62)
    until(lambda: records.counts()["open"] + records.counts()["acknowledged"] == 61)
    held = control.leases.holder("incidents")
    assert held is not None
    assert held.holder.startswith("second")
    assert records.get(id_).acknowledged_by == "ada"
    assert records.get(id_).state is IncidentState.ACKNOWLEDGED
    told = processes.told()
    assert len(told) == len(set(told)) == 62
    assert (first.poll(), second.poll()) == (None, None)
    control.close()


@pytest.mark.soak
def test_an_engine_stopped_inside_a_transaction_is_put_out_by_the_server(
    postgres: PostgresServer, bus: Bus, tmp_path: Path
) -> None:
    made = Processes(tmp_path, postgres.new_database())
    control = open_control(made.control_url, ControlSettings())
    records, now = IncidentRecords(control), SystemClock().now_ms()
    try:
        first = made.start("first")
        for number in range(200):  # some of its batches are stopped between their statements
            publish(bus, finding(Kind.THROTTLE, f"a{number}", 0, now))
            first.send_signal(signal.SIGSTOP)
            if made._is_free(tmp_path / "bus" / "bus.db") and _inside_transactions(control):
                break
            first.send_signal(signal.SIGCONT)
        else:
            raise AssertionError("it was never stopped inside a transaction")
        published = number + 1
        second = made.start("second")
        until(lambda: (held := control.leases.holder("incidents")) is not None and held.holder.startswith("second"), 90)
        until(lambda: records.counts()["open"] == published and len(made.told()) == published, 60)
        first.send_signal(signal.SIGCONT)
        publish(bus, finding(Kind.THROTTLE, "last", 0, now))
        until(lambda: len(made.told()) == published + 1)
        assert len(set(made.told())) == published + 1
        assert (first.poll(), second.poll()) == (None, None)
    finally:
        made.stop()
        control.close()


def _inside_transactions(control: Any) -> int:
    """Count sessions of others that hold a transaction and do nothing."""
    with control.reading() as connection:
        text = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND pid <> pg_backend_pid()"
        return int(connection.execute(sa.text(text)).scalar_one())


def test_people_are_told_at_once_while_what_can_wait_stays_out_of_the_way(tmp_path: Path, bus: Bus) -> None:
    class Teller:
        name, urgent = "teller", True

        def cycle(self, lease: Lease) -> None:
            """Do nothing."""

    class Keeper(Teller):
        name, urgent = "keeper", False

    rig = Rig(tmp_path)
    made = Served(rig, bus, (Teller(), Keeper()))
    publish(bus, finding(Kind.THROTTLE, "n1", 3, T0))
    made.turn()
    states = made.service.follower_states
    assert (states["teller"].wake.is_set(), states["keeper"].wake.is_set()) == (True, False)
    made.close()
    rig.close()


def test_kill_9_in_the_middle_of_a_storm_loses_no_incident_and_repeats_no_message(
    processes: Processes, bus: Bus
) -> None:
    control = open_control(processes.control_url, ControlSettings())
    records = IncidentRecords(control)
    now = SystemClock().now_ms()
    storm = [finding(Kind.THROTTLE, f"n{number}", 0, now + number % 7) for number in range(600)]
    process = processes.start("a")
    publisher = FindingPublisher(bus, SystemClock(), "lab", "n0")
    for round_ in range(3):
        publisher.publish(storm[round_ * 200 : round_ * 200 + 100])
        until(lambda least=round_ * 200: records.counts()["open"] > least)  # type: ignore[misc]
        os.kill(process.pid, signal.SIGKILL)
        publisher.publish(storm[round_ * 200 + 100 : (round_ + 1) * 200])
        process = processes.start(f"b{round_}")
        until(lambda all_=(round_ + 1) * 200: records.counts()["open"] == all_, 60)  # type: ignore[misc]
    until(lambda: _needs(control) == 600 and not _waiting(control), 60)
    told = processes.told()
    assert len(told) == len(set(told))
    assert {line.split()[1] for line in told} == {"opened"}
    control.close()


def _needs(control: Any) -> int:
    """Count messages that ever became due."""
    with control.reading() as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(ALERT_NEEDS)).scalar_one())


def _waiting(control: Any) -> int:
    with control.reading() as connection:
        open_ = sa.select(sa.func.count()).select_from(ALERT_NEEDS).where(ALERT_NEEDS.c.handled_at_ms.is_(None))
        return int(connection.execute(open_).scalar_one())


def test_the_role_lost_in_between_stores_nothing(served: Served, bus: Bus) -> None:
    publish(bus, finding(Kind.THROTTLE, "n1", 3, T0))
    stale = served.rig.lease
    served.rig.take_role("a")
    taken = served.intake.read(1_000_000, 2.0, served.rig.clock.now_ms)
    assert len(taken.statements) == 1
    with pytest.raises(StaleGeneration):
        served.rig.engine.cycle(stale, taken.statements, taken.positions)
    assert served.rig.incidents() == []
    assert EngineWrites(served.rig.control).positions() == {}
