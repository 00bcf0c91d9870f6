"""Tables of devices that vendor tools print line by line (`xpu-smi dump`, `amd-smi monitor`), by header."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import BinaryIO, ClassVar

from flightwatch.collectors.captures.base import Lines, head_text, to_float
from flightwatch.collectors.captures.device_rows import Device, extra_name, stated_time, utc_note
from flightwatch.collectors.captures.quantities import NOT_READABLE
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
            cells = self._cells(line, header) if header is not None else None
            if header is None or cells is None:
                continue
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

    def _cells(self, line: str, header: Sequence[tuple[str, str]]) -> list[str] | None:
        """Split a line of values; None when it is none."""
        return next(csv.reader([line], skipinitialspace=True), []) if "," in line else None

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


#: A unit that `amd-smi monitor` prints apart from its number; broken degree signs too.
_APART = re.compile(r"(?:W|%|MHz|[KMGT]B|[KMG]b/s|\S{0,4}C)")
_PAIR = re.compile(r"([\d.]{1,12})\s?/\s?([\d.]{1,12})\s{0,2}([KMGT]i?B)")
_WORDS = re.compile(r"[A-Z][A-Z0-9_%]{0,20}")


class AmdSmiCsv(DeviceCsv):
    """Reads `amd-smi monitor` as text or CSV, and `amd-smi metric --csv`."""

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
        "power": "power_w", "pwr_cap": "power_limit_w", "gpu_temp": "hotspot_c", "gpu_t": "hotspot_c",
        "mem_temp": "mem_temp_c", "mem_t": "mem_temp_c", "gfx%": "util_pct", "mem%": "mem_util_pct",
        "gfx_clk": "sm_clock_mhz", "mem_clk": "mem_clock_mhz", "single_ecc": "ecc_corrected_total",
        "double_ecc": "ecc_uncorrected_total",
    }  # fmt: skip
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "device_samples": (
            "device", "vendor", *dict.fromkeys(NAMES.values()), "throttle_reasons", "quality", "extra",
        ),
    }  # fmt: skip
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "temp_c": "amd-smi monitor prints hotspot and memory only",
        "throttle_reasons": "0 when UNTHROTTLED; a throttled device names no reason",
    }

    def _header(self, line: str) -> list[tuple[str, str]] | None:
        """Read a header with commas, or the spaced one of the text form: GPU and at least two known words."""
        if "," in line or len(line) > 2000:
            return super()._header(line)
        words = line.split()
        names = [(word.lower(), "") for word in words]
        known = sum(name in self.NAMES or name == "vram_usage" for name, _ in names)
        is_text = "GPU" in words and known >= 2 and all(_WORDS.fullmatch(word) for word in words)
        return names if is_text else None

    def _cells(self, line: str, header: Sequence[tuple[str, str]]) -> list[str] | None:
        if "," in line:
            return super()._cells(line, header)
        cells: list[str] = []
        for word in line[:2000].split():
            if cells and _APART.fullmatch(word) and " " not in cells[-1]:
                cells[-1] += f" {word}"
            else:
                cells.append(word)
        # A line of values begins with a number; notices and further tables do not.
        return cells if cells and cells[0].replace(".", "", 1).isdecimal() else None

    def _device(self, row: Mapping[str, tuple[str, str]], number: int, context: CaptureContext) -> Device:
        parts = dict(row)
        if "vram_usage" in parts and (pair := _PAIR.fullmatch(parts.pop("vram_usage")[0])):
            parts["vram_used"], parts["vram_total"] = (f"{pair[1]} {pair[3]}", ""), (f"{pair[2]} {pair[3]}", "")
        sized = {
            name: (text, unit or ("MB" if name.startswith("vram_") else "")) for name, (text, unit) in parts.items()
        }
        return super()._device(sized, number, context)

    def further(self, device: Device, row: Mapping[str, tuple[str, str]]) -> None:
        """Read the throttle word."""
        word = row.get("throttle", ("", ""))[0].upper()
        if word == "UNTHROTTLED":
            device.put("throttle_reasons", 0)
        elif word:
            device.unknown("throttle_reasons", NOT_READABLE)
