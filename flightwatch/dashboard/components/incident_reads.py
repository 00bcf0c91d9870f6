"""What the incident pages read from the control database, scoped to whoever asks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from flightwatch.core.clock import SystemClock
from flightwatch.core.errors import NotFound, TransientError
from flightwatch.core.incident import Incident, IncidentState
from flightwatch.dashboard.components.request import viewer
from flightwatch.dashboard.components.view import View
from flightwatch.dashboard.services import Services
from flightwatch.incidents.alert_settings import AlertSettings
from flightwatch.incidents.facts import FactReader
from flightwatch.pipeline.control.actions import ActionRecords
from flightwatch.pipeline.control.alerts import AlertRecords
from flightwatch.pipeline.control.database import Control
from flightwatch.pipeline.control.incident_rows import OPEN_STATES, IncidentFilter
from flightwatch.pipeline.control.incidents import IncidentRecords
from flightwatch.pipeline.profiles.records import Profiles

#: A rank that its agent named so long ago can be profiled.
SEEN_MS = 120_000
STATES = {
    "active": OPEN_STATES,
    "open": (IncidentState.OPEN.value,),
    "acknowledged": (IncidentState.ACKNOWLEDGED.value,),
    "closed": (IncidentState.RESOLVED.value, IncidentState.FALSE_POSITIVE.value),
    "all": (),
}


class IncidentReads:
    """Records of the process, made when first used. Raises TransientError where it has no control database."""

    def __init__(self, services: Services) -> None:
        self._services = services

    @property
    def available(self) -> bool:
        """Say whether this process knows of incidents at all."""
        return self._services.control is not None

    @property
    def _control(self) -> Control:
        if self._services.control is None:
            raise TransientError("this process has no control database, so it knows of no incidents")
        return self._services.control

    @cached_property
    def cluster(self) -> str:
        """Name of this cluster."""
        return str(self._services.status()["cluster"])

    @cached_property
    def records(self) -> IncidentRecords:
        """Incidents, notes, silences."""
        return IncidentRecords(self._control)

    @cached_property
    def actions(self) -> ActionRecords:
        """Actions and their approvals."""
        return ActionRecords(self._control, self.cluster)

    @cached_property
    def alerts(self) -> AlertRecords:
        """Deliveries and channels."""
        return AlertRecords(self._control)

    @cached_property
    def facts(self) -> FactReader:
        """What a message about an incident tells: the page tells the same."""
        clock, profiles = SystemClock(), Profiles(self._control)
        return FactReader(
            self.records, self.actions, self._services.store, AlertSettings(), clock,
            lambda job: bool(profiles.targets(job, clock.now_ms() - SEEN_MS)),
        )  # fmt: skip

    def get(self, id_: str) -> Incident:
        """Return an incident that whoever asks may see. Raises NotFound."""
        found = self.records.get(id_)
        if not viewer().sees_tenant(found.tenant):
            raise NotFound(f"there is no incident {id_[:80]}")
        return found


def filter_of(view: View) -> IncidentFilter:
    """Return which incidents an address asks for."""
    tenants = viewer().tenants
    quiet = {"yes": True, "no": False}.get(view.get("quiet"))

    def some(name: str) -> Sequence[str]:
        return tuple(part for part in view.get(name).split(",") if part)

    return IncidentFilter(
        states=STATES[view.choice("state", STATES, "active")], severities=some("severity"), kinds=some("kind"),
        nodes=some("node"), jobs=some("job"), assignees=some("assignee"), text=view.get("q"), quiet=quiet,
        tenants=None if tenants is None else sorted(tenants),
    )  # fmt: skip
