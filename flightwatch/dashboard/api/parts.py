"""What the routes of the API work with."""

from __future__ import annotations

from functools import cached_property

from flightwatch.core.clock import Clock, SystemClock
from flightwatch.core.errors import TransientError
from flightwatch.dashboard.access.control import AccessControl
from flightwatch.dashboard.access.viewer import Viewer
from flightwatch.dashboard.services import Services
from flightwatch.pipeline.control.actions import ActionRecords
from flightwatch.pipeline.control.audit import AuditLog
from flightwatch.pipeline.control.database import Control
from flightwatch.pipeline.control.incidents import IncidentRecords
from flightwatch.pipeline.control.people import PeopleRecords
from flightwatch.pipeline.control.saved import SavedItems
from flightwatch.pipeline.control.tokens import Tokens
from flightwatch.pipeline.profiles.records import Profiles
from flightwatch.pipeline.store.people import People


class Parts:
    """Records and handles, made when they are first used.

    Parameters
    ----------
    services: handles of the process. access: who is who.
    clock: time of what this process measures.
    """

    def __init__(self, services: Services, access: AccessControl, clock: Clock | None = None) -> None:
        self.services = services
        self.access = access
        self.clock = clock or SystemClock()

    @property
    def control(self) -> Control:
        """The control database. Raises TransientError where this process has none."""
        if self.services.control is None:
            raise TransientError("this process has no control database")
        return self.services.control

    @cached_property
    def cluster(self) -> str:
        """Name of this cluster."""
        return str(self.services.status()["cluster"])

    @cached_property
    def incidents(self) -> IncidentRecords:
        """Incidents, notes, silences."""
        return IncidentRecords(self.control)

    @cached_property
    def actions(self) -> ActionRecords:
        """Actions and their approvals."""
        return ActionRecords(self.control, self.cluster)

    @cached_property
    def profiles(self) -> Profiles:
        """Profiler requests."""
        return Profiles(self.control)

    @cached_property
    def saved(self) -> SavedItems:
        """Saved queries and views."""
        return SavedItems(self.control)

    @cached_property
    def tokens(self) -> Tokens:
        """API tokens."""
        return Tokens(self.control)

    @cached_property
    def people(self) -> PeopleRecords:
        """People and their roles."""
        return PeopleRecords(self.control)

    @cached_property
    def audit(self) -> AuditLog:
        """The audit log."""
        return AuditLog(self.control)

    @cached_property
    def sql(self) -> People:
        """The runner of people's queries."""
        return People(self.services.store)

    def done(self, viewer: Viewer, action: str, target: str, detail: str = "") -> None:
        """Write a change that a viewer made to the audit log."""
        self.audit.record(None, viewer.subject, action, target, True, detail, address=viewer.address)
