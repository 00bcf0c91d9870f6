"""`mlxlink` (text or --json): link state, error counters, bit error ratio and module readings of one port."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO, ClassVar

from flightwatch.collectors.captures.base import head_text, make_row, to_float
from flightwatch.collectors.captures.optics import OPTICS_COLUMNS, Optics
from flightwatch.collectors.captures.port_counters import (
    IDENTITY,
    MAPS,
    CounterNames,
    Counts,
    device_in_name,
    shown,
)
from flightwatch.collectors.captures.two_forms import objects, read_json_or_text
from flightwatch.core.protocols import CaptureContext, Note, Row, Value

NAMES = CounterNames(
    "mlxlink",
    {
        "link_downed_total": ("link_down_counter",),
        "link_recovered_total": ("link_error_recovery_counter",),
        "symbol_errors_total": ("symbol_errors",),
    },
)
#: Gbit/s of one lane by the speed's name.
_LANE_GBPS = {"SDR": 2.5, "DDR": 5, "QDR": 10, "FDR10": 10.3125, "FDR": 14.0625, "EDR": 25, "HDR": 50, "NDR": 100,
              "XDR": 200}  # fmt: skip
_MARKS = ("Physical Counters and BER Info", "Operational Info", "Troubleshooting Info", "Module Info")
_LINE = re.compile(r"(?:\x1b\[[\d;]*m)?([A-Za-z][^:]*?)\s*:\s*(.*)")
_LANE_FIELDS = {
    "bias current": "bias",
    "rx power current": "rx_power",
    "tx power current": "tx_power",
}


class MlxlinkParser:
    """Reads `mlxlink -d DEVICE [-p PORT] [-c] [-m] [-e] [--json]`."""

    name: ClassVar[str] = "mlxlink"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "port_samples": (*IDENTITY, *NAMES.columns, *OPTICS_COLUMNS, "ber_ratio", *MAPS),
        "sensor_samples": ("chip", "label", "quantity", "unit", "value", "status"),
    }
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "port_samples.hca": "mlxlink does not print its device; it is taken from the file name when that has one",
        "port_samples.optics_rx_power_dbm": "printed with -m only; N/A on copper cables",
        "port_samples.ber_ratio": "printed with -c only; N/A while the link is down",
    }

    def recognise(self, head: bytes) -> bool:
        """Say whether the head names two of mlxlink's sections."""
        text = head_text(head)
        return sum(mark in text for mark in _MARKS) >= 2 and "State" in text

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterable[Row | Note]:
        """Yield one port_samples row, and sensor rows for the lanes of the module."""
        documents, text, notes = read_json_or_text(stream)
        yield from notes
        for document in documents:
            for entry in objects(document):
                fields: dict[str, str] = {}
                _flatten(entry, fields)
                yield from self._rows(fields, context)
        fields = {}
        for line in text.split("\n"):
            if match := _LINE.match(line.strip()):
                fields.setdefault(match[1], match[2].replace("\x1b[0m", "").strip())
        if text:
            yield from self._rows(fields, context)

    def _rows(self, fields: Mapping[str, str], context: CaptureContext) -> Iterator[Row | Note]:
        counts, optics = Counts(), Optics()
        values: dict[str, Value] = {}
        extra: dict[str, float] = {}
        for name, text in fields.items():
            key = re.sub(r"\s*\[[^\]]*\]", "", name).strip().lower()
            text = re.sub(r"\s*\[[^\]]*\]\s*$", "", text)
            if key in _LANE_FIELDS and text.upper() != "N/A":
                for lane, part in enumerate(text.split(","), 1):
                    optics.lane(_LANE_FIELDS[key], str(lane), part, name)
            elif key == "temperature" and text.upper() != "N/A":
                optics.temperature(text, name)
            elif key == "voltage":
                optics.voltage(text, 1.0, name)
            elif key in (
                "effective physical errors",
                "symbol errors",
                "link down counter",
                "link error recovery counter",
            ):
                counts.read(key.replace(" ", "_"), text, name)
            elif key == "raw physical errors per lane":
                for lane, part in enumerate(text.split(","), 1):
                    counts.read(f"raw_physical_errors_lane_{lane}", part, name)
            elif key in ("raw physical ber", "symbol ber"):
                raw = to_float(text)
                if raw is not None and 0 <= raw <= 1:
                    extra[f"mlxlink.{key.replace(' ', '_')}_ratio"] = raw
            elif key == "effective physical ber":
                ratio = to_float(text)
                values["ber_ratio"] = ratio if ratio is not None and 0 <= ratio <= 1 else None
                if values["ber_ratio"] is None and text.upper() != "N/A":
                    yield Note("warning", name, f"not a ratio: {shown(text)}")
        if not fields:
            yield Note("error", "", "no field could be read")
            return
        values |= {"state": _state(fields), "rate_gbps": _rate(fields), "extra": extra or None}
        hca, port = device_in_name(context), to_float(fields.get("Label Port", fields.get("Local Port", "1")))
        values |= {"hca": hca, "port": int(port) if port is not None and 0 < port < 65536 else 1}
        yield make_row("port_samples", self.CARRIES, context,
                       {**NAMES.values(counts.numbers), **optics.port_values(), **values})  # fmt: skip
        for sensor in optics.sensor_values(hca):
            yield make_row("sensor_samples", self.CARRIES, context, sensor)
        yield from counts.notes
        yield from optics.notes


def _flatten(value: Mapping[str, Any], fields: dict[str, str], depth: int = 0) -> None:
    """Collect the leaf fields of mlxlink's JSON: values are strings, numbers, lists, or {"values": [...]}."""
    for name, inner in value.items():
        if isinstance(inner, dict) and isinstance(inner.get("values"), list):
            inner = inner["values"]
        if isinstance(inner, dict):
            if depth < 8:
                _flatten(inner, fields, depth + 1)
        elif isinstance(inner, list):
            fields.setdefault(name, ",".join(str(part) for part in inner[:64]))
        elif inner is not None:
            fields.setdefault(name, str(inner))


def _state(fields: Mapping[str, str]) -> str | None:
    state = fields.get("State", "").strip()
    return state.upper() if state and state.upper() not in ("N/A", "-1") else None


def _rate(fields: Mapping[str, str]) -> float | None:
    """Return Gbit/s: "200G" is the port's, "IB-HDR" is per lane and is multiplied by the width."""
    speed, width = fields.get("Speed", ""), re.match(r"(\d{1,2})x", fields.get("Width", ""))
    if match := re.match(r"(?:IB-)?(SDR|DDR|QDR|FDR10|FDR|EDR|HDR|NDR|XDR)\b", speed):
        return _LANE_GBPS[match[1]] * int(width[1]) if width else None
    match = re.match(r"(\d{1,5})G", speed)
    return float(match[1]) if match else None
