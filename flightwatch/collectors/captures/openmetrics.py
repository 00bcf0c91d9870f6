"""Any exporter's text: known names become columns, the rest is kept by name.

What a metric means is decided by the map of its exporter; metrics that no map owns become `extra` readings
of the node (without labels) or sensor rows (with labels).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import BinaryIO, ClassVar

from flightwatch.collectors.captures.base import head_text, make_row
from flightwatch.collectors.captures.dcgm import DCGM_NULL_NOTES, DcgmMap
from flightwatch.collectors.captures.device_rows import SENSOR_COLUMNS
from flightwatch.collectors.captures.exporter_map import ExporterMap, clamp_ms
from flightwatch.collectors.captures.facility import FacilityMap
from flightwatch.collectors.captures.npu_exporter import NpuExporterMap
from flightwatch.collectors.captures.nvidia_exporter import NvidiaExporterMap
from flightwatch.collectors.captures.openmetrics_text import Exposition, Family, Sample, parse_sample
from flightwatch.collectors.captures.sonic import SonicMap
from flightwatch.collectors.captures.vendor_exporters import VendorExportersMap
from flightwatch.collectors.captures.xpu_timer import XpuTimerMap
from flightwatch.core.clock import Clock, SystemClock
from flightwatch.core.protocols import CaptureContext, Note, Row, Value

#: Metrics of the exporters' own runtimes.
_RUNTIME = ("go_", "process_", "promhttp_", "python_", "scrape_", "http_", "net_conntrack_", "exporter_")
#: Labelled samples of unknown exporters kept per exposition.
_SENSORS_LIMIT = 20_000
_COLUMNS = {"node_load1": "load1"}


class UnknownExporterMap:
    """Keeps what no other map owns: readings without labels in `extra`, labelled ones as sensors."""

    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "node_samples": ("load1", "mem_used_bytes", "extra", "extra_counters"),
        "sensor_samples": SENSOR_COLUMNS,
    }

    def __init__(self, context: CaptureContext, now_ms: int) -> None:
        self._context = context
        self._extra: dict[str, float] = {}
        self._counters: dict[str, int] = {}
        self._values: dict[str, Value] = {}
        self._memory: dict[str, int] = {}
        self._sensors: list[Row] = []
        self._at_ms: int | None = None
        self.runtime = self.histograms = self.dropped = 0

    @staticmethod
    def owns(name: str) -> bool:
        """Own every name."""
        return True

    def take(self, sample: Sample, family: Family) -> None:
        """Take one sample."""
        if sample.name.startswith(_RUNTIME):
            self.runtime += 1
        elif sample.name.endswith("_bucket") or "quantile" in sample.labels:
            self.histograms += 1
        elif sample.value is None or sample.value in (float("inf"), float("-inf")):
            self.dropped += 1
        elif sample.labels:
            self._sensor(sample, family)
        else:
            self._reading(sample)

    def finish(self) -> Iterator[Row | Note]:
        """Yield the node's row, the sensors and what was left out."""
        if {"total", "available"} <= self._memory.keys():
            self._values["mem_used_bytes"] = max(0, self._memory["total"] - self._memory["available"])
        if self._extra or self._counters or self._values:
            values = {**self._values, "extra": self._extra or None, "extra_counters": self._counters or None}
            yield make_row("node_samples", self.CARRIES, self._context, {**values, "ts": self._at_ms})
        yield from self._sensors
        for count, what in (
            (self.runtime, "samples about the exporter's own process were skipped"),
            (self.histograms, "buckets and quantiles were skipped; sums and counts are kept"),
            (self.dropped, "samples were NaN, infinite or beyond the limit and were not kept"),
        ):
            if count:
                yield Note("info", "", f"{count} {what}")

    def _reading(self, sample: Sample) -> None:
        if sample.at_ms is not None:
            self._at_ms = clamp_ms(sample.at_ms)
        value = sample.value
        if value is None or len(self._extra) + len(self._counters) >= _SENSORS_LIMIT:
            self.dropped += 1
        elif sample.name in _COLUMNS:
            self._values[_COLUMNS[sample.name]] = float(value)
        elif sample.name in ("node_memory_MemTotal_bytes", "node_memory_MemAvailable_bytes"):
            self._memory["total" if "Total" in sample.name else "available"] = int(value)
        elif isinstance(value, int) and 2**53 < value < 2**64:
            self._counters[_key(sample.name)] = value
        else:
            self._extra[_key(sample.name)] = float(value)

    def _sensor(self, sample: Sample, family: Family) -> None:
        if len(self._sensors) >= _SENSORS_LIMIT:
            self.dropped += 1
            return
        chip, _, rest = sample.name.partition("_")
        label = ",".join(f"{name}={text[:120]}" for name, text in sorted(sample.labels.items()))
        values: dict[str, Value] = {
            "chip": chip, "label": label[:500], "quantity": rest or chip, "unit": family.unit,
            "ts": clamp_ms(sample.at_ms) if sample.at_ms is not None else None,
        }  # fmt: skip
        counter = family.kind == "counter" and isinstance(sample.value, int) and 0 <= sample.value < 2**64
        values["counter" if counter else "value"] = (
            sample.value if counter or sample.value is None else float(sample.value)
        )
        self._sensors.append(make_row("sensor_samples", self.CARRIES, self._context, values))


def _key(name: str) -> str:
    source, _, rest = name.partition("_")
    return f"{source.lower()}.{rest.lower()}" if rest else f"openmetrics.{source.lower()}"


#: Maps in the order in which they are asked who owns a metric.
MAPS: tuple[type[ExporterMap], ...] = (
    DcgmMap, NvidiaExporterMap, NpuExporterMap, XpuTimerMap, SonicMap, FacilityMap, VendorExportersMap,
    UnknownExporterMap,
)  # fmt: skip


def _united() -> dict[str, tuple[str, ...]]:
    tables: dict[str, dict[str, None]] = {}
    for kind in MAPS:
        for table, columns in kind.CARRIES.items():
            tables.setdefault(table, {}).update(dict.fromkeys(columns))
    return {table: tuple(columns) for table, columns in tables.items()}


class OpenMetrics:
    """Reads Prometheus text and OpenMetrics.

    Parameters
    ----------
    clock: tells which samples are old when the capture's own time is unknown.
    """

    name = "openmetrics"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = _united()
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        **DCGM_NULL_NOTES,
        "ts": "samples seldom carry a time; then it is the time of the scrape",
    }

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()

    def recognise(self, head: bytes) -> bool:
        """Recognise type or help comments with samples, or several sample lines with labels."""
        text = head_text(head)
        comments = re.search(r"^[ \t]*# (?:TYPE|HELP) [A-Za-z_:][\w:]* ", text, re.M | re.A) is not None
        lines = [line.strip() for line in text.split("\n")[:-1][:2000] if line.strip() and line.strip()[0] != "#"]
        if not lines:
            return comments
        good = sum(parse_sample(line, 0) is not None for line in lines[:200])
        labelled = any("{" in line for line in lines[:200])
        return good >= 0.5 * len(lines[:200]) and (comments or (labelled and good >= 2))

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield the rows of every exporter found in the text."""
        now_ms = context.at_ms if context.at_ms is not None else self._clock.now_ms()
        maps = [kind(context, now_ms) for kind in MAPS]
        used = [False] * len(maps)
        exposition = Exposition()
        owner: dict[str, int] = {}
        for sample in exposition.samples(stream):
            place = owner.get(sample.name)
            if place is None:
                place = next(i for i, kind in enumerate(MAPS) if kind.owns(sample.name))
                if len(owner) < _SENSORS_LIMIT:
                    owner[sample.name] = place
            maps[place].take(sample, exposition.family(sample.name))
            used[place] = True
        for exporter, seen in zip(maps, used, strict=True):
            if seen:
                yield from exporter.finish()
        yield from exposition.notes
