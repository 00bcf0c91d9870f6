"""Build `device_samples` rows (and the rows that go with them) out of cells, keeping why a value is NULL."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from flightwatch.collectors.captures.base import make_row
from flightwatch.collectors.captures.quantities import (
    ABSENT,
    MALFORMED,
    NOT_READABLE,
    NOT_SUPPORTED,
    OVERFLOW,
    UNKNOWN_UNIT,
    Quantity,
    quantity,
    reason_for,
    text_or_none,
    yes_no,
)
from flightwatch.core.catalogue import TABLES
from flightwatch.core.protocols import CaptureContext, Note, Row, Value

Carries = Mapping[str, tuple[str, ...]]

#: Columns that every device format carries or that say what the row is about.
IDENTITY = ("device", "parent_device", "mig_id", "vendor", "model", "uuid", "serial")
#: Columns of the rows that accompany devices.
CONFIG_COLUMNS = ("device", "name", "value")
EVENT_COLUMNS = ("device", "job", "rank", "source", "code", "severity", "message", "attrs")
SENSOR_COLUMNS = ("device", "chip", "label", "quantity", "unit", "value", "counter", "status")
INVENTORY_COLUMNS = ("device", "model", "serial", "scale_up_domain", "attrs")
LINK_COLUMNS = ("from_target", "to_target", "kind")

#: Samples older than this against the time of the capture are marked stale.
STALE_AFTER_MS = 600_000
_QUARTER_MS = 900_000

_COLUMNS = {column.name: column for column in TABLES["device_samples"].columns}
_UNIT_OF = {"C": "C", "W": "W", "mV": "mV", "MHz": "MHz", "%": "%", "bytes": "bytes", "us": "us", "J": "J"}
#: Values outside are kept as read and the row is marked implausible.
_PLAUSIBLE: dict[str, tuple[float, float]] = {
    "temp_c": (-40, 130),
    "mem_temp_c": (-40, 130),
    "hotspot_c": (-40, 140),
    "power_w": (0, 5000),
    "power_instant_w": (0, 5000),
    "power_limit_w": (0, 5000),
    "voltage_mv": (200, 60_000),
    "sm_clock_mhz": (0, 6000),
    "mem_clock_mhz": (0, 40_000),
    "util_pct": (0, 101),
    "mem_util_pct": (0, 101),
    "fan_pct": (0, 255),
    "sm_active_ratio": (0, 1.01),
    "tensor_active_ratio": (0, 1.01),
    "dram_active_ratio": (0, 1.01),
}
_LIMITS = {"u8": 2**8, "u16": 2**16, "u32": 2**32, "u64": 2**64}
#: Reasons for which a value exists and is not known.
_UNREAD = (NOT_READABLE, MALFORMED, UNKNOWN_UNIT, OVERFLOW)
_QUALITY_ORDER = ("stale", "implausible", "partial")
_EXTRA_NAME = re.compile(r"[^a-z0-9]+")


class Device:
    """One device (or MIG child) while its cells are read.

    Parameters
    ----------
    carries: the parser's CARRIES.
    context: capture's node and time.
    vendor: vendor word.
    where: how notes name the device, for example "gpu 00000000:83:00.0".
    """

    def __init__(self, carries: Carries, context: CaptureContext, vendor: str, where: str) -> None:
        self.where = where
        #: Node named by the capture itself; used where the context names none.
        self.node: str | None = None
        self._carries = carries
        self._context = context
        self._values: dict[str, Value] = {"vendor": vendor}
        self._extra: dict[str, float] = {}
        self._counters: dict[str, int] = {}
        self._reasons: dict[str, list[str]] = {}
        self._quality: set[str] = set()
        self._notes: list[Note] = []
        self._companions: list[tuple[str, dict[str, Value]]] = []

    def value(self, column: str) -> Value:
        """Return what has been read for a column so far, None when nothing."""
        return self._values.get(column)

    def set(self, column: str, text: str | None, default_unit: str = "", *, bare: bool = True) -> None:
        """Read a cell into a column in the column's unit; a missing cell is noted as absent.

        `default_unit` and `bare` are those of `quantities.quantity`.
        """
        if text is None:
            self.unknown(column, ABSENT)
            return
        definition = _COLUMNS[column]
        if definition.type in ("word", "text"):
            name = text_or_none(text)
            self.put(column, name) if name else self.unknown(column, reason_for(text) or NOT_SUPPORTED)
            return
        if definition.type == "bool":
            flag, reason = yes_no(text)
            self.put(column, flag) if flag is not None else self.unknown(column, reason or MALFORMED)
            return
        unit = "ratio" if definition.unit == "ratio" else _UNIT_OF.get(definition.unit, "count")
        read = quantity(text, unit, default_unit, bare=bare)
        if read.value is None:
            self.unknown(column, read.reason or MALFORMED)
        else:
            self.put(column, read.value)

    def put(self, column: str, value: Value) -> None:
        """Set a column to a value that is already in its unit; None does nothing.

        A value that does not fit the column's type (a negative counter) is left out and noted.
        """
        if value is None:
            return
        definition = _COLUMNS[column]
        if isinstance(value, int) and abs(value) >= 2**64:
            value = math.inf
        if isinstance(value, float) and not math.isfinite(value):
            self.unknown(column, OVERFLOW)
            return
        if definition.type in _LIMITS and isinstance(value, (int, float)) and not isinstance(value, bool):
            whole = round(value)
            if not 0 <= whole < _LIMITS[definition.type]:
                self.unknown(column, OVERFLOW)
                return
            value = whole
        elif definition.type in ("f32", "f64") and isinstance(value, int):
            value = float(value)
        if column in _PLAUSIBLE and isinstance(value, float):
            low, high = _PLAUSIBLE[column]
            if not low <= value <= high:
                self.flag("implausible", f"{column} = {value:g} is implausible; kept as read")
        self._values[column] = value

    def unknown(self, column: str, reason: str) -> None:
        """Keep why a column is NULL."""
        if column not in self._values:
            self._reasons.setdefault(reason, []).append(column)

    def extra(self, name: str, text: str | None, unit: str, suffix: str = "", default_unit: str = "") -> None:
        """Keep a further reading as `<source>.<name>_<unit>` in `extra`; an unreadable one is left out."""
        if text is None:
            return
        read = quantity(text, unit, default_unit)
        if read.value is not None:
            self.extra_value(f"{name}{suffix}", read.value)

    def extra_value(self, name: str, value: float) -> None:
        """Keep a further number in `extra`, or in `extra_counters` when a float cannot hold it exactly."""
        if isinstance(value, int) and abs(value) > 2**53:
            if 0 <= value < 2**64:
                self._counters[name] = value
        elif math.isfinite(value):
            self._extra[name] = float(value)

    def put_total(self, column: str, parts: Sequence[Quantity]) -> None:
        """Set a column to the sum of its parts; NULL when one of them is there and could not be read.

        A part that the device does not have is no part of the sum.
        """
        unread = next((part.reason for part in parts if part.reason in _UNREAD), None)
        value = total(part.value for part in parts) if unread is None else None
        if value is not None:
            self.put(column, value)
        else:
            self.unknown(column, unread or ((parts[0].reason or NOT_SUPPORTED) if parts else ABSENT))

    def flag(self, quality: str, text: str) -> None:
        """Mark the row (stale, implausible, partial) and say why."""
        self._quality.add(quality)
        self.note("warning", text)

    def note(self, level: str, text: str) -> None:
        """Add a note about this device."""
        self._notes.append(Note(level, self.where, text))

    def config(self, name: str, value: str | None) -> None:
        """Add a configuration fact; None adds nothing."""
        if value:
            self._companions.append(("config_facts", {"name": name, "value": value}))

    def event(self, code: str, severity: str, message: str, attrs: Mapping[str, str] | None = None) -> None:
        """Add an event that a summary must act upon."""
        self._companions.append(
            (
                "events",
                {"source": "agent", "code": code, "severity": severity, "message": message, "attrs": dict(attrs or {})},
            )
        )

    def sensor(
        self,
        chip: str,
        label: str,
        quantity_name: str,
        unit: str,
        value: float | None = None,
        counter: int | None = None,
        status: str | None = None,
    ) -> None:
        """Add one `sensor_samples` row of this device (a scale-up link, an additional probe).

        A counter that does not fit 64 bits and a value that is no number are damage, and left out.
        """
        counter = counter if counter is not None and 0 <= counter < 2**64 else None
        value = value if value is not None and math.isfinite(value) else None
        self._companions.append(
            (
                "sensor_samples",
                {"chip": chip, "label": label, "quantity": quantity_name, "unit": unit, "value": value,
                 "counter": counter, "status": status},
            )
        )  # fmt: skip

    def inventory(self, attrs: Mapping[str, str], scale_up_domain: str | None = None) -> None:
        """Add what the capture says about the device as a thing; empty attributes are left out."""
        kept: dict[str, str] = {name: text for name, text in attrs.items() if text}
        self._companions.append(("inventory", {"attrs": kept, "scale_up_domain": scale_up_domain}))

    def rows(self, ts: int | None = None, device: int | None = None, *, zoned: bool = False) -> Iterator[Row | Note]:
        """Yield the device's row, then its companions, then its notes.

        Parameters
        ----------
        ts: time the capture itself states; None takes the context's.
        device: index, when it was not set before.
        zoned: whether `ts` is certainly UTC; a printed time of day without a zone is not.
        """
        if ts is not None and not zoned:
            ts = without_zone(ts, self._context.at_ms)
        if device is not None and "device" not in self._values:
            self.put("device", device)
        columns = self._carries["device_samples"]
        if self._extra:
            self._values["extra"] = self._extra
        if self._counters:
            self._values["extra_counters"] = self._counters
        for quality in _QUALITY_ORDER:
            if quality in self._quality:
                self._values["quality"] = quality
                break
        known = {name: value for name, value in self._values.items() if name in columns}
        common: dict[str, Value] = {"ts": ts, "node": self._context.node or self.node}
        yield make_row("device_samples", self._carries, self._context, {**known, **common})
        index = self._values.get("device")
        for table, values in self._companions:
            if table == "inventory":
                values.update(model=self._values.get("model"), serial=self._values.get("serial"))
                if not any(values.values()):
                    continue
            yield make_row(table, self._carries, self._context, {**values, **common, "device": index})
        yield from self._reason_notes()
        yield from self._notes

    def _reason_notes(self) -> Iterator[Note]:
        for reason, columns in self._reasons.items():
            open_columns = sorted({name for name in columns if name not in self._values})
            if open_columns:
                yield Note("info", self.where, f"{', '.join(open_columns)}: {reason}")


def total(parts: Iterable[int | float | None]) -> int | float | None:
    """Add the known parts; None when no part is known. Parts a device does not have are unknown, not 0."""
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def extra_name(source: str, name: str) -> str:
    """Spell a foreign metric name as the second half of an `extra` key: `<source>.<lower_case_words>`."""
    return f"{source}.{_EXTRA_NAME.sub('_', name.lower()).strip('_')}"


_TIME_FORMATS = (
    "%a %b %d %H:%M:%S %Y", "%a %b %d %H:%M:%S.%f %Y", "%Y/%m/%d %H:%M:%S.%f", "%Y/%m/%d %H:%M:%S",
    "%Y-%m-%d %H:%M:%S.%f", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S.%f", "%Y-%m-%dT%H:%M:%S",
)  # fmt: skip
_TIME_IN_TEXT = re.compile(
    r"((?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)\s+[A-Z][a-z]{2}\s+\d{1,2}\s+\d{2}:\d{2}:\d{2}(?:\.\d+)?\s+\d{4}"
    r"|\d{4}[-/]\d{2}[-/]\d{2}[ T]\d{2}:\d{2}:\d{2}(?:\.\d{1,6})?)",
    re.ASCII,
)


def stated_time(text: str) -> int | None:
    """Find a time such as "Fri Jul  3 22:11:09 2026" or "2026/07/03 08:33:53.415" in a text.

    Returns milliseconds since the epoch with the clock read as UTC (these tools print no zone), else None.
    """
    match = _TIME_IN_TEXT.search(text[:400])
    if match is None:
        return None
    plain = " ".join(match[1].split())
    for layout in _TIME_FORMATS:
        try:
            moment = datetime.strptime(plain, layout).replace(tzinfo=UTC)
        except ValueError:
            continue
        return round(moment.timestamp() * 1000)
    return None


def without_zone(stated_ms: int, at_ms: int | None) -> int:
    """Take the time zone out of a time that was printed without one, when the time of the capture is known.

    A live tool prints local time: against the true time it is off by a whole number of quarters of an hour,
    up to 14 h. A difference that is no such offset (within 2 minutes) is left as it is.
    """
    if at_ms is None:
        return stated_ms
    offset_ms = round((stated_ms - at_ms) / _QUARTER_MS) * _QUARTER_MS
    is_offset = abs(offset_ms) <= 14 * 4 * _QUARTER_MS and abs(stated_ms - at_ms - offset_ms) <= 120_000
    return stated_ms - offset_ms if is_offset else stated_ms


def utc_note(where: str) -> Note:
    """Note that a stated time had no zone."""
    return Note("info", where, "the time is printed without a zone and was read as UTC")
