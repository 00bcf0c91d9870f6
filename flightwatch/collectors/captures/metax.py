"""MetaX `mx-smi`: the boxed table of releases 2.1 to 2.2 and the `--show-*` reports."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import BinaryIO, ClassVar

from flightwatch.collectors.captures.base import Lines, head_text, make_row, to_int
from flightwatch.collectors.captures.box_reports import BoxReport
from flightwatch.collectors.captures.device_rows import (
    CONFIG_COLUMNS,
    EVENT_COLUMNS,
    INVENTORY_COLUMNS,
    SENSOR_COLUMNS,
    Device,
    stated_time,
    utc_note,
)
from flightwatch.collectors.captures.quantities import quantity, text_or_none
from flightwatch.core.protocols import CaptureContext, Note, Row
from flightwatch.core.vocabulary import EventSeverity, EventSource


class MxSmi(BoxReport):
    """Reads the table of `mx-smi`; older releases print no power cap and no state."""

    name = "mx-smi"
    VENDOR = "metax"
    BANNER: ClassVar[re.Pattern[str]] = re.compile(
        r"MX-SMI (?P<mx_smi>\d\S*)\s+Kernel Mode Driver Version:\s*(?P<driver>\S+)"
        r"|MACA Version:\s*(?P<maca>\S+)\s+BIOS Version:\s*(?P<vbios>\S+)"
    )
    LABELS: ClassVar[Mapping[str, str]] = {
        "power": r"(?P<power>\S+)", "gpu-state": r"(?P<state>.+?)", "persist-m": r"(?P<persistence>\S+)",
        "sgpu-m": r"(?P<sgpu>\S+)", "vgpu-m": r"(?P<vgpu>\S+)",
        "persistence-m": r"(?P<persistence>\S+)",
    }  # fmt: skip
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "power_limit_w": "printed from release 2.1.12 on",
        "ecc_mode": "the table does not show it",
    }

    def further(self, device: Device, cells: Mapping[str, str]) -> None:
        """Read the device's state."""
        state = text_or_none(cells.get("state"))
        if state:
            device.config("gpu_state", state)
            if state.lower() not in ("available", "native", "normal"):
                device.event("metax:state", "error", f"the device's state is {state}", {"state": state})


class MxSmiList:
    """Reads `mx-smi -L`: which devices there are, and those that cannot be used."""

    name = "mx-smi-list"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {"inventory": INVENTORY_COLUMNS, "events": EVENT_COLUMNS}
    NULL_NOTES: ClassVar[Mapping[str, str]] = {"inventory.serial": "the list does not print it"}
    _LINE: ClassVar[re.Pattern[str]] = re.compile(
        r"GPU#(\d{1,3})\s{1,20}(\S{1,60})\s{1,20}([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])\s{1,20}"
        r"(\S.{0,120}?)\s{0,4}\(UUID: ([^)]{0,80})\)\s*"
    )

    def recognise(self, head: bytes) -> bool:
        """Recognise a device line."""
        return any(self._LINE.fullmatch(line) for line in head_text(head).split("\n")[:50])

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield one inventory row per device, and an event for one that is not available."""
        lines = Lines(stream)
        for number, line in lines:
            found = self._LINE.fullmatch(line)
            if found is None:
                if line.startswith("GPU#"):
                    yield Note("warning", f"line {number}", "not a device line")
                continue
            device, state = to_int(found[1]), found[4]
            yield make_row("inventory", self.CARRIES, context, {
                "device": device, "model": found[2], "attrs": {"uuid": found[5], "pci_bus_id": found[3]},
            })  # fmt: skip
            if state.lower() not in ("available", "native", "normal"):
                yield make_row("events", self.CARRIES, context, {
                    "device": device, "source": EventSource.AGENT.value, "code": "metax:state",
                    "severity": EventSeverity.ERROR.value, "message": f"the device's state is {state}",
                    "attrs": {"state": state},
                })  # fmt: skip
        yield from lines.notes


class MxSmiShow:
    """Reads `mx-smi --show-temperature`, `--show-board-power`, ...: `key : value` lines below `GPU#n` heads."""

    name = "mx-smi-show"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "device_samples": (
            "device", "vendor", "model", "temp_c", "mem_temp_c", "hotspot_c", "power_w", "util_pct", "mem_util_pct",
            "mem_used_bytes", "mem_total_bytes", "sm_clock_mhz", "mem_clock_mhz", "voltage_mv", "pcie_gen",
            "pcie_width",
            "ecc_corrected_total", "ecc_uncorrected_total", "link_errors_total", "quality", "extra",
        ),
        "sensor_samples": SENSOR_COLUMNS,
        "config_facts": CONFIG_COLUMNS,
        "events": EVENT_COLUMNS,
        "inventory": INVENTORY_COLUMNS,
    }  # fmt: skip
    NULL_NOTES: ClassVar[Mapping[str, str]] = {"temp_c": "each report shows what it was asked for"}
    _GPU: ClassVar[re.Pattern[str]] = re.compile(r"\s*GPU#(\d{1,4})\s+(\S.*?)\s+([0-9a-fA-F]{4}:\S+)\s*")
    _PAIR: ClassVar[re.Pattern[str]] = re.compile(r"\s*(\S[^:]{0,80}?)\s*:\s*(\S.*)?$")
    _LINK: ClassVar[re.Pattern[str]] = re.compile(r"metaxlink|mxlink", re.I)
    #: Start of a key (lower case) to column.
    _KEYS: ClassVar[tuple[tuple[str, str], ...]] = (
        ("hotspot", "hotspot_c"), ("hbm", "mem_temp_c"), ("memory temp", "mem_temp_c"), ("soc", "temp_c"),
        ("core", "temp_c"),
        ("gpu utilization", "util_pct"), ("gpu", "util_pct"), ("memory utilization", "mem_util_pct"),
        ("vram utilization", "mem_util_pct"), ("vram total", "mem_total_bytes"), ("vram used", "mem_used_bytes"),
        ("vis_vram", ""), ("total power", "power_w"), ("power", "power_w"), ("board power", "power_w"),
        ("xcore", "sm_clock_mhz"), ("mc", "mem_clock_mhz"),
    )  # fmt: skip

    def recognise(self, head: bytes) -> bool:
        """Recognise MetaX's log header with `GPU#` lines."""
        text = head_text(head)
        return "MetaX System Management Interface" in text and re.search(r"^\s*GPU#\d", text, re.M) is not None

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield a row per GPU."""
        lines = Lines(stream)
        device: Device | None = None
        ts: int | None = None
        section = ""
        count = 0
        attached: int | None = None
        for number, line in lines:
            gpu = self._GPU.fullmatch(line)
            pair = self._PAIR.match(line)
            if gpu is not None:
                if device is not None:
                    yield from device.rows(ts)
                count += 1
                section = ""
                device = Device(self.CARRIES, context, "metax", f"line {number} gpu {gpu[1]}")
                device.put("device", to_int(gpu[1]))
                device.put("model", gpu[2])
                device.inventory({"pci_bus_id": gpu[3]})
            elif pair is not None and pair[1] == "Timestamp":
                ts = stated_time(pair[2] or "")
                if ts is not None:
                    yield utc_note(f"line {number}")
            elif pair is not None and pair[1] == "Attached GPUs":
                attached = to_int(pair[2] or "")
            elif pair is not None and device is not None:
                self._field(device, section, pair[1], pair[2] or "")
            elif line.strip() and device is not None:
                section = line.strip()
        if device is not None:
            yield from device.rows(ts)
        if attached is not None and attached != count:
            yield Note("warning", "attached gpus", f"the report says {attached} GPUs are attached and shows {count}")
        yield from lines.notes

    def _field(self, device: Device, section: str, key: str, text: str) -> None:
        lower = key.strip().lower()
        in_section = section.lower()
        column = next((column for start, column in self._KEYS if lower.startswith(start)), None)
        if "temperature" in in_section and (column is None or not column.endswith("_c")):
            read = quantity(text, "C").value
            if read is not None:
                device.sensor("metax", key.strip(), "temperature", "C", float(read))
            return
        if self._LINK.search(in_section) or self._LINK.search(lower):
            self._link(device, key, text)
        elif column and device.value(column) is None and self._fits(column, in_section):
            device.set(column, text, bare=False)
            if column == "hotspot_c":
                read = quantity(text, "C").value
                device.sensor("metax", key.strip(), "temperature", "C", float(read) if read is not None else None)

    def _fits(self, column: str, section: str) -> bool:
        wanted = {"power_w": "power", "sm_clock_mhz": "clk", "mem_clock_mhz": "clk", "util_pct": "usage",
                  "mem_util_pct": "usage"}.get(column)  # fmt: skip
        also = {"clk": "clock", "usage": "util"}
        return wanted is None or wanted in section or also.get(wanted, wanted) in section

    def _link(self, device: Device, key: str, text: str) -> None:
        digits = re.search(r"\d{1,3}", key)
        label = digits[0] if digits else key.strip()[:40]
        counter = to_int(text.split()[0]) if text.split() else None
        if counter is not None and counter >= 0 and "error" in key.lower():
            device.sensor("metaxlink", label, "crc_errors", "errors", counter=counter)
        elif text:
            device.sensor("metaxlink", label, "state", "", status=text_or_none(text[:40]))
