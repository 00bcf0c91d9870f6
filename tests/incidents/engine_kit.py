"""An engine on a control database of its own, with time and cluster in the test's hands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flightwatch.core.clock import ManualClock
from flightwatch.core.incident import Incident
from flightwatch.core.vocabulary import FindingState
from flightwatch.detectors.contract import Finding
from flightwatch.detectors.joint import Places
from flightwatch.incidents.context import ClusterView, Context
from flightwatch.incidents.engine import Engine
from flightwatch.incidents.settings import IncidentSettings
from flightwatch.incidents.statements import Statement, statement_of_finding
from flightwatch.pipeline.control.alert_needs import AlertNeeds
from flightwatch.pipeline.control.database import Control, open_control
from flightwatch.pipeline.control.engine_writes import EngineWrites
from flightwatch.pipeline.control.incident_rows import IncidentFilter
from flightwatch.pipeline.control.incidents import IncidentRecords
from flightwatch.pipeline.control.leases import Lease
from flightwatch.pipeline.control.settings import ControlSettings
from tests.incidents.grouping_kit import T0, racks

ROLE = "incidents"


class FakeContext(Context):
    """A picture of the cluster that the test sets."""

    def __init__(self, clock: ManualClock, view: ClusterView) -> None:
        super().__init__(None, clock)
        self.view = view
        self.lag: float | None = 0.0
        self.slow: dict[str, float] = {}

    def behind_seconds(self) -> float | None:
        return self.lag

    def slowdown(self, job: str, onset_ms: int) -> float | None:
        return self.slow.get(job)


class Rig:
    """One engine and the eyes of a person."""

    def __init__(self, folder: Path, view: ClusterView | None = None, url: str = "", **settings: Any) -> None:
        self.clock = ManualClock(T0)
        self.url = url or f"sqlite://{folder / 'control.db'}"
        self.control: Control = open_control(self.url, ControlSettings(), self.clock)
        self.context = FakeContext(self.clock, view or ClusterView(racks()))
        self.settings = replace(IncidentSettings(settle_seconds=0.0), **settings)
        self.records = IncidentRecords(self.control)
        self.needs = AlertNeeds(self.control)
        self.engine = self.another_engine()
        self.lease = self.take_role("a")

    @staticmethod
    def view_of(places: Places) -> ClusterView:
        return ClusterView(places)

    @staticmethod
    def quick() -> IncidentSettings:
        return IncidentSettings(settle_seconds=0.0)

    def another_engine(self) -> Engine:
        return Engine(EngineWrites(self.control), self.context, self.clock, self.settings, "lab")

    def take_role(self, holder: str) -> Lease:
        lease = self.control.leases.acquire(ROLE, holder, 1e9)
        assert lease is not None
        return lease

    def take(
        self, *findings: Finding | Statement, positions: Mapping[tuple[str, int], tuple[str, int]] | None = None
    ) -> None:
        """Give findings to the engine in one batch."""
        self.engine.cycle(self.lease, [statement(one) for one in findings], positions or {})

    def wait(self, seconds: float) -> None:
        """Let time pass in one step, then let the engine do what is due."""
        self.clock.advance(seconds)
        self.take()

    def incidents(self, *, merged: bool = False) -> list[Incident]:
        """All incidents, the oldest first."""
        return list(reversed(self.records.page(IncidentFilter(merged=merged), limit=1000).items))

    def told(self) -> list[tuple[str, str]]:
        """All messages that are due, as (id of the incident, reason)."""
        return [(need.incident.id, need.reason.value) for need in self.needs.waiting(10_000)]

    def close(self) -> None:
        self.control.close()


def statement(one: Finding | Statement) -> Statement:
    return one if isinstance(one, Statement) else statement_of_finding(one, "lab", T0)


def cleared(one: Finding, at_ms: int) -> Finding:
    return replace(one, state=FindingState.CLEARED, detected_at=at_ms)


def ids(incidents: Sequence[Incident]) -> list[str]:
    return [one.id for one in incidents]
