"""CSV tables of devices that vendor tools print (`xpu-smi dump`, `amd-smi monitor --csv`), by header."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from typing import BinaryIO, ClassVar

from flightwatch.collectors.captures.base import Lines, head_text, to_float
from flightwatch.collectors.captures.device_rows import Device, extra_name, stated_time, utc_note
from flightwatch.core.protocols import CaptureContext, Note, Row

_HEADER = re.compile(r"\s*(.*?)\s*(?:\(([^)]*)\))?\s*")


class DeviceCsv:
    """A CSV whose header names the values; one line is one device at one time.

    Attributes
    ----------
    VENDOR: vendor word.
    NAMES: header name in lower case, without its unit, to column.
    INDEX: header names of the device index.
    CHILD: header names of the sub-device (tile) number.
    UNITS: unit that a header shows to one `quantities` knows.
    """

    name: ClassVar[str]
    VENDOR: ClassVar[str]
    NAMES: ClassVar[Mapping[str, str]]
    INDEX: ClassVar[tuple[str, ...]]
    CHILD: ClassVar[tuple[str, ...]] = ()
    UNITS: ClassVar[Mapping[str, str]] = {}
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]]
    NULL_NOTES: ClassVar[Mapping[str, str]] = {}

    def recognise(self, head: bytes) -> bool:
        """Recognise a header with an index column and a known value."""
        return any(self._header(line) is not None for line in head_text(head).split("\n")[:60])

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield a row per line."""
        lines = Lines(stream)
        header: list[tuple[str, str]] | None = None
        told = False
        for number, line in lines:
            found = self._header(line)
            if found is not None:
                header = found
                continue
            if header is None or not line.strip() or "," not in line:
                continue
            cells = next(csv.reader([line], skipinitialspace=True), [])
            if len(cells) != len(header):
                yield Note("error", f"line {number}", f"{len(cells)} cells under a header of {len(header)}: skipped")
                continue
            row = {name: (text.strip(), unit) for (name, unit), text in zip(header, cells, strict=True)}
            ts = self._time(row)
            if ts is not None and not told:
                told = True
                yield utc_note(f"line {number}")
            yield from self._device(row, number, context).rows(ts)
        yield from lines.notes

    def _time(self, row: Mapping[str, tuple[str, str]]) -> int | None:
        text = row.get("timestamp", ("", ""))[0]
        seconds = to_float(text)
        if seconds is not None and 1e9 <= seconds <= 1e13:
            return round(seconds if seconds >= 1e11 else seconds * 1000)
        return stated_time(text)

    def _header(self, line: str) -> list[tuple[str, str]] | None:
        if "," not in line or len(line) > 20_000:
            return None
        names = []
        for cell in line.split(","):
            match = _HEADER.fullmatch(cell.strip().strip('"'))
            names.append((match[1].lower(), (match[2] or "")) if match else ("", ""))
        plain = [name for name, _ in names]
        known = any(name in plain for name in self.INDEX) and sum(name in self.NAMES for name in plain) >= 1
        return names if known else None

    def _device(self, row: Mapping[str, tuple[str, str]], number: int, context: CaptureContext) -> Device:
        index = next((row[name][0] for name in self.INDEX if name in row), None)
        device = Device(self.CARRIES, context, self.VENDOR, f"line {number} device {index}")
        device.set("device", index)
        child = next((row[name][0] for name in self.CHILD if name in row), None)
        if child is not None:
            device.set("parent_device", index)
            device.set("mig_id", child)
        for name, (text, shown) in row.items():
            unit = self.UNITS.get(shown.lower(), shown)
            column = self.NAMES.get(name)
            if column:
                device.set(column, text, unit)
            elif name not in (*self.INDEX, *self.CHILD, "timestamp") and (value := to_float(text)) is not None:
                suffix = f"_{shown.lower().replace('%', 'pct').replace('/', '_per_')}" if shown else ""
                device.extra_value(extra_name(self.VENDOR, name + suffix), value)
        self.further(device, row)
        return device

    def further(self, device: Device, row: Mapping[str, tuple[str, str]]) -> None:
        """Read what is particular to the tool."""


class AmdSmiCsv(DeviceCsv):
    """Reads `amd-smi monitor --csv` and `amd-smi metric --csv`."""

    name = "amd-smi-csv"
    VENDOR = "amd"
    INDEX: ClassVar[tuple[str, ...]] = ("gpu",)
    NAMES: ClassVar[Mapping[str, str]] = {
        "power_usage": "power_w", "socket_power": "power_w", "hotspot_temperature": "hotspot_c", "hotspot": "hotspot_c",
        "memory_temperature": "mem_temp_c", "edge": "temp_c", "gfx": "util_pct", "gfx_activity": "util_pct",
        "gfx_util": "util_pct", "mem": "mem_util_pct", "mem_util": "mem_util_pct", "umc_activity": "mem_util_pct",
        "gfx_clock": "sm_clock_mhz", "mem_clock": "mem_clock_mhz", "vram_used": "mem_used_bytes",
        "vram_total": "mem_total_bytes", "gfx_voltage": "voltage_mv", "pcie_replay": "pcie_replay_total",
        "single_bit_ecc": "ecc_corrected_total", "double_bit_ecc": "ecc_uncorrected_total",
        "total_correctable_count": "ecc_corrected_total", "total_uncorrectable_count": "ecc_uncorrected_total",
    }  # fmt: skip
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "device_samples": ("device", "vendor", *dict.fromkeys(NAMES.values()), "quality", "extra"),
    }
    NULL_NOTES: ClassVar[Mapping[str, str]] = {"temp_c": "amd-smi monitor prints hotspot and memory only"}

    def _device(self, row: Mapping[str, tuple[str, str]], number: int, context: CaptureContext) -> Device:
        sized = {name: (text, unit or ("MB" if name.startswith("vram_") else "")) for name, (text, unit) in row.items()}
        return super()._device(sized, number, context)
