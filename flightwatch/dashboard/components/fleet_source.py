"""Reads of the fleet page, shared by all who look at it, scoped to whoever asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from flightwatch.core.clock import SystemClock
from flightwatch.core.incident import Incident
from flightwatch.dashboard.components import fleet_view
from flightwatch.dashboard.components.incident_reads import IncidentReads
from flightwatch.dashboard.components.remembered import Remembered
from flightwatch.dashboard.components.request import viewer
from flightwatch.dashboard.components.scope import own_jobs, own_nodes, visible
from flightwatch.dashboard.i18n import t
from flightwatch.dashboard.services import Services
from flightwatch.pipeline.control.incident_rows import OPEN_STATES, IncidentFilter
from flightwatch.pipeline.store import counter_reads, fleet_reads, machine_reads

#: The roster changes rarely; what pages ask for within a refresh is read once.
ROSTER_SECONDS, EMPTY_SECONDS, VALUES_SECONDS, COUNTERS_SECONDS, LOST_SECONDS = 30.0, 3.0, 1.5, 60.0, 10.0
CHANGES_SECONDS = 3600
MOST_INCIDENTS = 200


@dataclass(frozen=True)
class OpenIncidents:
    """Open incidents, the worst first; None where this process has no control database."""

    items: list[Incident]
    by_severity: dict[str, int]


class FleetSource:
    """What the fleet page reads."""

    def __init__(self, services: Services) -> None:
        self._store = services.store
        self._incidents = IncidentReads(services)
        self._quick = Remembered(VALUES_SECONDS)
        self._slow = Remembered(ROSTER_SECONDS)

    def roster(self) -> fleet_reads.Roster:
        """Return who belongs to the fleet: at most half a minute old, 3 s while it is empty."""

        def read() -> fleet_reads.Roster:
            return fleet_reads.roster(self._store, SystemClock().now_ms())

        found = self._slow.get("roster", read)
        found = found if len(found.keys) else self._slow.get("roster", read, EMPTY_SECONDS)
        nodes = own_nodes(self._store)
        if nodes is None:
            return found
        # What an id is of is kept with the result: else another roster could get the id, and another tenant this one.
        return self._slow.get(
            ("mine", id(found), frozenset(nodes)), lambda: (found, fleet_reads.only_nodes(found, nodes))
        )[1]

    def arrangement(self, place: str) -> fleet_view.Arrangement:
        """Return the fleet in blocks."""
        roster = self.roster()
        words = t("place.no_job") if place == "job" else t("place.unknown")
        # An arrangement keeps its roster, so no other one has the same id while it is remembered.
        return self._slow.get((place, id(roster), words), lambda: fleet_view.arrange(roster, place, words))

    def drawn(self, metric: str, arrangement: fleet_view.Arrangement) -> fleet_view.Drawn:
        """Return what the map draws for a metric."""
        found = self._quick.get(("values", metric), lambda: self._read(metric))
        severities = fleet_view.worst_by_target(self.findings()) if metric == "findings" else {}
        label = t(f"metric.{metric}")
        # The key of an arrangement is made of the devices in it, so nobody gets the map of another tenant.
        key = ("drawn", metric, arrangement.payload["key"], label, tuple(sorted(severities.items(), key=str)))
        return self._quick.get(key, lambda: fleet_view.drawn(arrangement, metric, label, found, severities))

    def _read(self, metric: str) -> fleet_reads.DeviceValues:
        if metric in fleet_reads.DEVICE_METRICS:
            return fleet_reads.newest_values(self._store, metric)
        if metric in counter_reads.COUNTER_METRICS:
            # Readings of an hour ago are a minute older at most.
            before = self._slow.get(
                ("before", metric), lambda: counter_reads.counters_before(self._store, metric), COUNTERS_SECONDS
            )
            return counter_reads.counter_growth(self._store, metric, before)
        if metric == "slowness":
            return fleet_reads.step_slowness(self._store)
        if metric == "cpu_pct":
            return fleet_reads.host_values(self._store)
        devices, hosts = fleet_reads.newest_values(self._store, "temp_c"), fleet_reads.host_values(self._store)
        return fleet_reads.joined(devices, hosts)

    def coverage(self, of_all: Mapping[str, int]) -> Mapping[str, int]:
        """Return how many nodes and accelerators report, of those that whoever asks may see.

        Parameters
        ----------
        of_all: the same figures of everybody.
        """
        nodes = own_nodes(self._store)
        if nodes is None:
            return of_all
        names = sorted(nodes)
        return self._quick.get(("coverage", tuple(names)), lambda: machine_reads.coverage(self._store, names))

    def findings(self) -> list[dict[str, Any]]:
        """Return open findings."""
        return visible(self._store, self._quick.get("findings", lambda: fleet_reads.open_findings(self._store)))

    def changes(self) -> list[dict[str, Any]]:
        """Return what happened in the last hour."""
        found = self._quick.get("changes", lambda: fleet_reads.recent_changes(self._store, CHANGES_SECONDS))
        return visible(self._store, found)

    def jobs(self) -> int:
        """Return how many jobs stepped in the last minutes."""
        return len(visible(self._store, self._quick.get("jobs", lambda: fleet_reads.running_jobs(self._store))))

    def lost_today(self) -> float | None:
        """Return GPU-hours lost by incidents that opened today (UTC); None where none has a figure."""
        today = datetime.now(UTC).date().isoformat()
        tenants = viewer().tenants
        names = None if tenants is None else sorted(tenants)
        return self._slow.get(
            ("lost", tenants), lambda: fleet_reads.lost_gpu_hours(self._store, today, names), LOST_SECONDS
        )

    def goodput(self) -> float | None:
        """Return the share of stepping jobs' time, by their ranks, in which they trained; None where no job tells."""
        jobs = own_jobs(self._store)
        names = None if jobs is None else sorted(jobs)
        key = ("goodput", None if names is None else tuple(names))
        return self._slow.get(key, lambda: fleet_reads.training_share(self._store, names))

    def incidents(self) -> OpenIncidents | None:
        """Return open incidents; None where this process knows of none."""
        if not self._incidents.available:
            return None
        tenants = viewer().tenants
        wanted = IncidentFilter(states=OPEN_STATES, tenants=None if tenants is None else sorted(tenants))
        found = self._quick.get(
            ("incidents", tenants), lambda: self._incidents.records.page(wanted, None, MOST_INCIDENTS).items
        )
        items = sorted(found, key=lambda one: (one.severity.value, -one.opened_at_ms))
        by_severity: dict[str, int] = {}
        for one in items:
            by_severity[one.severity.value] = by_severity.get(one.severity.value, 0) + 1
        return OpenIncidents(items, by_severity)
