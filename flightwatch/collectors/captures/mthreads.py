"""Moore Threads `mthreads-gmi`: the table (two or three lines a device) and the `-q` report."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import BinaryIO, ClassVar

from flightwatch.collectors.captures.base import Lines, head_text, to_int
from flightwatch.collectors.captures.box_reports import BOX_COLUMNS, BoxReport
from flightwatch.collectors.captures.device_rows import (
    CONFIG_COLUMNS,
    EVENT_COLUMNS,
    INVENTORY_COLUMNS,
    SENSOR_COLUMNS,
    Device,
    stated_time,
    utc_note,
)
from flightwatch.collectors.captures.quantities import NOT_READABLE, reason_for, text_or_none
from flightwatch.core.protocols import CaptureContext, Note, Row


class MthreadsGmi(BoxReport):
    """Reads the table of `mthreads-gmi`; it has no power column."""

    name = "mthreads-gmi"
    VENDOR = "mthreads"
    BANNER: ClassVar[re.Pattern[str]] = re.compile(
        r"mthreads-gmi:(?P<mthreads_gmi>\S+)\s+Driver Version:(?P<driver>\S+)"
    )
    LABELS: ClassVar[Mapping[str, str]] = {
        "pcie": r"(?P<bus>\S+)", "%gpu": r"(?P<util>\S+)", "mem": r"(?P<mem_used>[^(|]*?)\((?P<mem_total>[^)|]*)\)",
        "device type": r"(?P<kind>.+?)", "perf": r"(?P<perf>\S+)", "pcie lane width": r"(?P<lanes>\d+x?)(?:\(\S*\))?",
        "mpc capable": r"(?P<mpc>\S+)", "ecc mode": r"(?P<ecc>.*?)",
    }  # fmt: skip
    CELLS: ClassVar[Mapping[str, str]] = {
        "temp_c": "temp", "util_pct": "util", "mem_used_bytes": "mem_used", "mem_total_bytes": "mem_total",
        "pcie_width": "lanes",
    }  # fmt: skip
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "power_w": "the table has no power column",
        "ecc_mode": "unknown when the third line of a device is missing",
    }

    def further(self, device: Device, cells: Mapping[str, str]) -> None:
        """Read the ECC mode."""
        ecc = cells.get("ecc")
        if ecc is None:
            device.unknown("ecc_mode", "the line that shows it is not in this capture")
        elif text_or_none(ecc):
            device.config("ecc_mode", ecc)
            device.put("ecc_mode", "disabled" if ecc.lower() in ("off", "disabled") else "enabled")
        else:
            device.unknown("ecc_mode", reason_for(ecc) or NOT_READABLE)


class MthreadsGmiQuery:
    """Reads `mthreads-gmi -q`: sections of `key : value` lines per GPU."""

    name = "mthreads-gmi-q"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "device_samples": (
            *BOX_COLUMNS,
            "uuid",
            "serial",
            "mem_temp_c",
            "mem_util_pct",
            "pcie_gen",
            "retired_pages_total",
        ),
        "sensor_samples": SENSOR_COLUMNS,
        "config_facts": CONFIG_COLUMNS,
        "events": EVENT_COLUMNS,
        "inventory": INVENTORY_COLUMNS,
    }
    NULL_NOTES: ClassVar[Mapping[str, str]] = {"power_w": "not printed by drivers before 2.0 on some boards"}
    _GPU: ClassVar[re.Pattern[str]] = re.compile(r"\s{0,4}GPU\s?#?(\d{1,4})\b\s*:?\s*([0-9a-fA-F]{4,8}:\S+)?\s*")
    _PAIR: ClassVar[re.Pattern[str]] = re.compile(r"(\s*)(\S[^:]{0,80}?)\s*:\s*(.*)$")
    #: Section and key, in lower case, to column; an empty section is any.
    _KEYS: ClassVar[Mapping[tuple[str, str], str]] = {
        ("", "product name"): "model", ("", "gpu uuid"): "uuid", ("", "uuid"): "uuid", ("", "serial number"): "serial",
        ("temperature", "gpu current temp"): "temp_c", ("temperature", "gpu"): "temp_c",
        ("temperature", "memory current temp"): "mem_temp_c",
        ("", "power draw"): "power_w", ("power", "power draw"): "power_w", ("power readings", "power draw"): "power_w",
        ("power readings", "power limit"): "power_limit_w", ("utilization", "gpu"): "util_pct",
        ("utilization", "memory"): "mem_util_pct", ("fb memory usage", "total"): "mem_total_bytes",
        ("fb memory usage", "used"): "mem_used_bytes", ("memory usage", "total"): "mem_total_bytes",
        ("memory usage", "used"): "mem_used_bytes", ("clocks", "graphics"): "sm_clock_mhz",
        ("clocks", "memory"): "mem_clock_mhz", ("link width", "current"): "pcie_width",
        ("pcie generation", "current"): "pcie_gen", ("", "fan speed"): "fan_pct",
    }  # fmt: skip

    def recognise(self, head: bytes) -> bool:
        """Recognise a report that names the vendor's tool or products."""
        text = head_text(head)
        named = "mthreads" in text.lower() or "Moore Threads" in text
        vendor = named or re.search(r":\s{0,9}MTT S\d", text) is not None
        keyed = re.search(r"^[ \t]{0,40}(?:Product Name|Attached GPUs)\s{0,40}:", text, re.M) is not None
        return vendor and keyed and "mthreads-gmi:" not in text

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield a row per GPU."""
        lines = Lines(stream)
        device: Device | None = None
        ts: int | None = None
        driver: str | None = None
        stack: list[tuple[int, str]] = []
        for number, line in lines:
            gpu = self._GPU.fullmatch(line)
            pair = self._PAIR.match(line)
            if gpu is not None:
                if device is not None:
                    yield from device.rows(ts)
                device = Device(self.CARRIES, context, "mthreads", f"line {number} gpu {gpu[1]}")
                device.put("device", to_int(gpu[1]))
                device.config("driver", driver)
                device.inventory({"pci_bus_id": gpu[2] or ""})
                stack = []
            elif pair is None or not pair[3].strip():
                self._section(stack, line)
            elif pair[2].lower() == "timestamp":
                ts = stated_time(pair[3])
                if ts is not None:
                    yield utc_note(f"line {number}")
            elif pair[2].lower() == "driver version":
                driver = text_or_none(pair[3])
                if device is not None:
                    device.config("driver", driver)
            elif device is not None:
                self._leave(stack, len(pair[1]))
                self._field(device, stack, pair[2].lower(), pair[3].strip())
        if device is not None:
            yield from device.rows(ts)
        else:
            yield Note("error", "", "the report shows no GPU")
        yield from lines.notes

    def _section(self, stack: list[tuple[int, str]], line: str) -> None:
        if line.strip():
            indent = len(line) - len(line.lstrip())
            self._leave(stack, indent)
            stack.append((indent, line.strip().rstrip(":").strip().lower()))

    def _leave(self, stack: list[tuple[int, str]], indent: int) -> None:
        while stack and stack[-1][0] >= indent:
            stack.pop()

    def _field(self, device: Device, stack: list[tuple[int, str]], key: str, text: str) -> None:
        section = stack[-1][1] if stack else ""
        column = self._KEYS.get((section, key)) or self._KEYS.get(("", key))
        if "ecc" in section and key in ("current", "mode"):
            mode = text.lower()
            if mode in ("enabled", "disabled"):
                device.put("ecc_mode", mode)
            else:
                device.unknown("ecc_mode", reason_for(text) or NOT_READABLE)
        elif column is not None and device.value(column) is None and "max" not in section:
            device.set(column, text, bare=column in ("model", "uuid", "serial"))
        elif "link" in section and "mt" in section:
            digits = re.search(r"\d{1,3}", key)
            device.sensor("mtlink", digits[0] if digits else key[:40], "state", "", status=text_or_none(text[:40]))
