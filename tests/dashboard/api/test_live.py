"""The live channel: a change is told, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flightwatch.core.clock import ManualClock
from flightwatch.dashboard.api.live import MOST_EACH, POLL_SECONDS, Revisions, Sockets
from flightwatch.dashboard.api.parts import Parts
from flightwatch.pipeline.control.audit import AuditLog
from flightwatch.pipeline.control.incidents import IncidentRecords
from flightwatch.pipeline.control.roles import Role
from tests.dashboard.access_kit import Site
from tests.pipeline.control.incident_kit import add_incident

AT_MS = 1_795_990_000_000


@pytest.fixture
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = Site(tmp_path_factory.mktemp("live"))
    add_incident(site.control, "i1", AT_MS)
    yield site
    site.close()


def test_a_change_reaches_an_open_socket(alone: Site) -> None:
    with alone.client().websocket_connect("/api/v1/live", headers=alone.token(Role.VIEWER)) as socket:
        first = socket.receive_json()
        IncidentRecords(alone.control).note("i1", "alice", "a note")
        second = socket.receive_json()
    assert second["control"] > first["control"]
    assert set(first) == {"tables", "control", "at"}


def test_the_newest_revision_is_found_once_for_all_who_ask(alone: Site) -> None:
    clock = ManualClock(AT_MS)
    revisions = Revisions(Parts(alone.services, alone.access, clock))
    first = revisions.newest()
    IncidentRecords(alone.control).note("i1", "alice", "a note")
    assert revisions.newest() == first
    clock.advance(POLL_SECONDS)
    assert revisions.newest()["control"] > first["control"]


def test_reading_tells_nobody_anything(alone: Site) -> None:
    clock = ManualClock(AT_MS)
    revisions = Revisions(Parts(alone.services, alone.access, clock))
    first = revisions.newest()
    AuditLog(alone.control).record(None, "alice", "sql", "store", True, "")
    clock.advance(POLL_SECONDS)
    assert revisions.newest() == first


def test_sockets_of_one_person_are_limited() -> None:
    sockets = Sockets()
    assert [sockets.enter("alice") for _ in range(MOST_EACH + 1)] == [True] * MOST_EACH + [False]
    assert sockets.enter("bob")
    sockets.leave("alice")
    assert sockets.enter("alice")
