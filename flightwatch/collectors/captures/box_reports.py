"""One parser class for the boxed tables of several vendors' tools; each vendor states what differs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import BinaryIO, ClassVar

from flightwatch.collectors.captures.base import Lines, head_text, to_int
from flightwatch.collectors.captures.box_tables import COMMON_LABELS, read_tables
from flightwatch.collectors.captures.device_rows import (
    CONFIG_COLUMNS,
    EVENT_COLUMNS,
    INVENTORY_COLUMNS,
    Device,
    stated_time,
    utc_note,
)
from flightwatch.collectors.captures.quantities import text_or_none
from flightwatch.core.protocols import CaptureContext, Note, Row

BOX_COLUMNS = (
    "device", "vendor", "model", "temp_c", "power_w", "power_limit_w", "util_pct", "mem_used_bytes", "mem_total_bytes",
    "fan_pct", "sm_clock_mhz", "mem_clock_mhz", "ecc_mode", "ecc_corrected_total", "ecc_uncorrected_total",
    "pcie_width", "quality", "extra",
)  # fmt: skip
_UNIT = re.compile(r"[A-Za-z]+\Z")


class BoxReport:
    """A report whose devices are groups of lines in a boxed table.

    Attributes
    ----------
    VENDOR: vendor word.
    BANNER: pattern that recognises the tool; its named groups `driver`, `tool` become configuration facts.
    LABELS: header words beyond the common ones.
    CELLS: column to the name of the cell that holds it.
    BARE: column to the unit that stands in the header instead of the cell.
    """

    name: ClassVar[str]
    VENDOR: ClassVar[str]
    BANNER: ClassVar[re.Pattern[str]]
    LABELS: ClassVar[Mapping[str, str]] = {}
    BARE: ClassVar[Mapping[str, str]] = {}
    CELLS: ClassVar[Mapping[str, str]] = {
        "temp_c": "temp", "power_w": "power", "power_limit_w": "cap", "util_pct": "util", "fan_pct": "fan",
        "mem_used_bytes": "mem_used", "mem_total_bytes": "mem_total",
    }  # fmt: skip
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "device_samples": BOX_COLUMNS,
        "config_facts": CONFIG_COLUMNS,
        "events": EVENT_COLUMNS,
        "inventory": INVENTORY_COLUMNS,
    }
    NULL_NOTES: ClassVar[Mapping[str, str]] = {}

    def recognise(self, head: bytes) -> bool:
        """Recognise the tool's banner."""
        return self.BANNER.search(head_text(head)) is not None

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield a row per device of the table."""
        lines = Lines(stream)
        ts: int | None = None
        facts: dict[str, str] = {}
        count = 0
        for found in read_tables(lines, {**COMMON_LABELS, **self.LABELS}):
            if found.cells is None:
                stamp = stated_time(found.line)
                if stamp is not None:
                    ts = stamp
                    yield utc_note(f"line {found.number}")
                if (banner := self.BANNER.search(found.line)) is not None:
                    facts |= {name: text for name, text in banner.groupdict().items() if text}
            elif "index" in found.cells:
                count += 1
                device = self.device(found.cells, found.number, context)
                for name, text in facts.items():
                    device.config(name, text_or_none(text))
                if found.missing_lines:
                    device.flag("partial", "the table is cut off inside this device")
                yield from device.rows(ts)
                if found.missing_lines:
                    yield Note("error", f"line {found.number}", "the table is cut off inside this device")
        if not count:
            yield Note("error", "", "the table shows no device")
        yield from lines.notes

    def device(self, cells: Mapping[str, str], number: int, context: CaptureContext) -> Device:
        """Build one device from the cells of its group of lines."""
        index = to_int(cells["index"])
        device = Device(self.CARRIES, context, self.VENDOR, f"line {number} device {index}")
        device.put("device", index)
        device.put("model", text_or_none(cells.get("name")))
        cells = _with_units(cells)
        for column, cell in self.CELLS.items():
            unit = self.BARE.get(column, "")
            device.set(column, cells.get(cell), unit, bare=bool(unit))
        device.inventory({"pci_bus_id": cells.get("bus", "")})
        self.further(device, cells)
        return device

    def further(self, device: Device, cells: Mapping[str, str]) -> None:
        """Read what is particular to the vendor."""


def _with_units(cells: Mapping[str, str]) -> dict[str, str]:
    """Give `858/65536 MiB` its unit on both sides."""
    done = dict(cells)
    used, total = done.get("mem_used", ""), done.get("mem_total", "")
    unit = _UNIT.search(total)
    if unit is not None and used.isdigit():
        done["mem_used"] = f"{used} {unit[0]}"
    return done
