"""The instance's own figures as OpenMetrics text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

#: Metric, help text, path in the status.
FIGURES = (
    ("flightwatch_rows_per_second", "Rows stored per second over the last minute", ("rows_per_second",)),
    ("flightwatch_lag_seconds", "Age of the oldest row on the bus that is not stored yet", ("lag_seconds",)),
    ("flightwatch_newest_row_age_seconds", "Age of the newest stored row", ("newest_row_age_seconds",)),
    ("flightwatch_nodes_reporting", "Nodes heard in the last minute", ("coverage", "nodes_reporting")),
    ("flightwatch_nodes_known", "Nodes heard in the last day", ("coverage", "nodes_known")),
    ("flightwatch_devices_reporting", "Accelerators heard in the last minute", ("coverage", "devices_reporting")),
    ("flightwatch_data_gaps_24h", "Batches known to be missing, last day", ("data_gaps_24h",)),
    ("flightwatch_dead_letters_24h", "Messages and rows put aside, last day", ("dead_letters_24h",)),
    ("flightwatch_disk_used_bytes", "Bytes on disk", ("disk", "used_bytes")),
    ("flightwatch_disk_free_bytes", "Bytes free on that disk", ("disk", "free_bytes")),
)


class _StatusCollector(Collector):
    def __init__(
        self, status: Mapping[str, Any], incidents: Mapping[str, int] | None, refused: Mapping[str, int]
    ) -> None:
        self._status, self._incidents, self._refused = status, incidents, refused

    def collect(self) -> Iterator[Metric]:
        for name, text, path in FIGURES:
            value: Any = self._status
            for key in path:
                value = value[key]
            if value is not None:  # unknown is absent, never 0
                yield GaugeMetricFamily(name, text, value=float(value))
        ages = GaugeMetricFamily("flightwatch_table_age_seconds", "Age of a table's newest row", labels=["table"])
        for table in self._status["tables"]:
            if table["age_seconds"] is not None:
                ages.add_metric([table["table"]], table["age_seconds"])
        yield ages
        yield from self._people()

    def _people(self) -> Iterator[Metric]:
        if self._incidents is not None:
            found = GaugeMetricFamily("flightwatch_open_incidents", "Open incidents", labels=["severity"])
            for severity, number in self._incidents.items():
                found.add_metric([severity], number)
            yield found
        refused = CounterMetricFamily("flightwatch_requests_refused", "Requests refused by the gate", labels=["code"])
        for code, number in self._refused.items():
            refused.add_metric([code], number)
        yield refused


def exposition(
    status: Mapping[str, Any], incidents: Mapping[str, int] | None = None, refused: Mapping[str, int] | None = None
) -> tuple[bytes, str]:
    """Return OpenMetrics text and its content type.

    Parameters
    ----------
    incidents: open ones by severity; None: unknown, and absent. refused: requests refused by code.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_StatusCollector(status, incidents, refused or {}))
    return generate_latest(registry), CONTENT_TYPE_LATEST  # type: ignore[no-untyped-call]
