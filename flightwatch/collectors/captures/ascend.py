"""Huawei `npu-smi`: the table of `npu-smi info` and the `key : value` outputs of `npu-smi info -t ...`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO, ClassVar

from flightwatch.collectors.captures.base import Lines, head_text, to_int
from flightwatch.collectors.captures.box_reports import BOX_COLUMNS, BoxReport
from flightwatch.collectors.captures.device_rows import (
    CONFIG_COLUMNS,
    EVENT_COLUMNS,
    IDENTITY,
    INVENTORY_COLUMNS,
    SENSOR_COLUMNS,
    Device,
    extra_name,
)
from flightwatch.collectors.captures.quantities import quantity, text_or_none
from flightwatch.core.protocols import CaptureContext, Note, Row

_HEALTHY = ("ok", "healthy", "good", "normal")


class NpuSmiInfo(BoxReport):
    """Reads the table of `npu-smi info`, releases 21 to 25, one- and two-chip cards."""

    name = "npu-smi-info"
    VENDOR = "ascend"
    BANNER: ClassVar[re.Pattern[str]] = re.compile(r"npu-smi\s+(?P<npu_smi>\S+)\s+Version:\s*(?P<driver>\S+)")
    LABELS: ClassVar[Mapping[str, str]] = {
        "name": r"(?P<name>\S.*?)", "health": r"(?P<health>\S+)", "power(w)": r"(?P<power>\S+)",
        "temp(c)": r"(?P<temp>\S+)",
        "hugepages-usage(page)": r"\d+\s*/\s*\d+", "chip": r"(?P<chip>\d{1,3})", "phy-id": r"(?P<phy>\S+)",
        "device": r"(?P<logic>\S+)", "aicore(%)": r"(?P<util>\S+)", "aicore": r"(?P<util>\S+)",
        "memory-usage(mb)": r"(?P<ddr_used>\d+|-)\s*/\s*(?P<ddr_total>\d+|-)",
        "hbm-usage(mb)": r"(?P<hbm_used>\d+|-)\s*/\s*(?P<hbm_total>\d+|-)",
    }  # fmt: skip
    BARE: ClassVar[Mapping[str, str]] = {"temp_c": "C", "power_w": "W", "util_pct": "%"}
    CELLS: ClassVar[Mapping[str, str]] = {"temp_c": "temp", "power_w": "power", "util_pct": "util"}
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "power_w": "a two-chip card prints its power on the first chip only",
        "power_limit_w": "npu-smi prints no power limit",
        "ecc_corrected_total": "use npu-smi info -t ecc",
    }

    def device(self, cells: Mapping[str, str], number: int, context: CaptureContext) -> Device:
        """Build a device; its index is the physical id, else the logic id, else the NPU id."""
        index = next((i for name in ("phy", "logic", "index") if (i := to_int(cells.get(name, ""))) is not None), None)
        return super().device({**cells, "index": str(index)}, number, context)

    def further(self, device: Device, cells: Mapping[str, str]) -> None:
        """Read memory and health; HBM is the memory of chips that have it, DDR of the others."""
        kind = "hbm" if to_int(cells.get("hbm_total", "")) or not to_int(cells.get("ddr_total", "")) else "ddr"
        for column, name in (("mem_used_bytes", "used"), ("mem_total_bytes", "total")):
            device.set(column, cells.get(f"{kind}_{name}"), "MB")
        health = text_or_none(cells.get("health"))
        if health:
            device.config("health", health)
            if health.lower() not in _HEALTHY:
                severity = "critical" if health.lower() in ("critical", "alarm") else "warning"
                device.event("npu:health", severity, f"npu-smi reports the health as {health}", {"health": health})


@dataclass
class _Block:
    npu: int | None
    chip: int | None = None
    chip_name: str = ""
    fields: dict[str, str] = field(default_factory=dict)
    line: int = 0


class NpuSmiType:
    """Reads `npu-smi info -t common|usages|ecc|memory|temp|power|board ...` of any product.

    Some outputs print the `Chip ID` line before the values of the chip, others after them; which one is seen
    from the first values. A block of the board's controller (`Chip Name : mcu`) is not a chip.
    """

    name = "npu-smi-type"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "device_samples": tuple(dict.fromkeys((*IDENTITY, *BOX_COLUMNS, "mem_temp_c", "mem_util_pct", "voltage_mv",
            "ecc_corrected_lifetime_total", "ecc_uncorrected_lifetime_total", "retired_pages_total"))),
        "sensor_samples": SENSOR_COLUMNS,
        "config_facts": CONFIG_COLUMNS,
        "events": EVENT_COLUMNS,
        "inventory": INVENTORY_COLUMNS,
    }  # fmt: skip
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "temp_c": "each -t prints what it was asked for",
        "device": "outputs without an NPU ID line number chips of one card only",
    }
    _PAIR: ClassVar[re.Pattern[str]] = re.compile(r"\s*(\S[^:]{0,80}?)\s*:\s*(.*)$")
    #: Key without blanks and case to column and unit of a bare number.
    _KEYS: ClassVar[Mapping[str, tuple[str, str]]] = {
        "aicoreusagerate(%)": ("util_pct", ""), "hbmbandwidthusagerate(%)": ("mem_util_pct", ""),
        "temperature(c)": ("temp_c", ""), "nputemperature(c)": ("temp_c", ""),
        "hbmtemperature(c)": ("mem_temp_c", ""), "npureal-timepower(w)": ("power_w", ""),
        "powerdissipation(w)": ("power_w", ""), "aicorecurfreq(mhz)": ("sm_clock_mhz", ""),
        "hbmclockspeed(mhz)": ("mem_clock_mhz", ""), "hbmcapacity(mb)": ("mem_total_bytes", "MB"),
        "voltage(v)": ("voltage_mv", "V"), "npuvoltage(v)": ("voltage_mv", "V"), "serialnumber": ("serial", ""),
        "npuname": ("model", ""), "productname": ("model", ""), "productmodel": ("model", ""), "vdieid": ("uuid", ""),
    }  # fmt: skip
    _SUMS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "ecc_corrected_total": ("ddrsinglebiterrorcount", "hbmsinglebiterrorcount", "singlebiterrorcount"),
        "ecc_uncorrected_total": ("ddrdoublebiterrorcount", "hbmdoublebiterrorcount", "doublebiterrorcount"),
        "ecc_corrected_lifetime_total": ("ddrsinglebitaggregatetotalerrcnt", "hbmsinglebitaggregatetotalerrcnt"),
        "ecc_uncorrected_lifetime_total": ("ddrdoublebitaggregatetotalerrcnt", "hbmdoublebitaggregatetotalerrcnt"),
        "retired_pages_total": (
            "ddrsinglebitisolatedpagescount", "ddrdoublebitisolatedpagescount", "hbmsinglebitisolatedpagescount",
            "hbmdoublebitisolatedpagescount",
        ),
    }  # fmt: skip
    _HEAD: ClassVar[frozenset[str]] = frozenset(("npuid", "chipcount", "slotid", "cardid"))
    _FACTS: ClassVar[Mapping[str, str]] = {
        "softwareversion": "driver", "firmwareversion": "firmware", "health": "health", "healthstatus": "health",
    }  # fmt: skip

    def recognise(self, head: bytes) -> bool:
        """Recognise `Chip ID` or `NPU ID` lines with values."""
        text = head_text(head)
        ids = re.search(r"^[ \t]{0,40}(?:NPU ID|Chip ID)\s{0,40}:\s{0,40}\d", text, re.M) is not None
        words = re.search(r"Aicore|HBM|DDR|NPU|Temperature|Chip (?:Count|Name)|Bit Error", text) is not None
        return ids and words

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield a row per chip."""
        lines = Lines(stream)
        pairs: list[tuple[int, str, str, str]] = []
        for number, line in lines:
            pair = self._PAIR.match(line)
            if pair is not None and len(pairs) < 100_000:
                pairs.append((number, "".join(pair[1].lower().split()), pair[1].strip(), pair[2].strip()))
        for block in _blocks(pairs, self._HEAD):
            yield from self._chip(block, context)
        yield from lines.notes

    def _chip(self, block: _Block, context: CaptureContext) -> Iterator[Row | Note]:
        where = f"line {block.line} npu {'?' if block.npu is None else block.npu} chip {block.chip}"
        device = Device(self.CARRIES, context, "ascend", where)
        if block.npu is None:
            device.put("device", block.chip)
            device.note("warning", "the capture names no NPU: the chip id was taken as the device index")
        elif block.chip in (None, 0):
            device.put("device", block.npu)
        else:
            device.extra_value("npu_smi.npu_id", block.npu)
            device.extra_value("npu_smi.chip_id", float(block.chip or 0))
            device.note("warning", "the index of a further chip of a card depends on the product and is unknown")
        if block.chip_name == "mcu":
            self._controller(device, block)
        else:
            self._fields(device, block)
        yield from device.rows()

    def _controller(self, device: Device, block: _Block) -> None:
        for key, text in block.fields.items():
            read = quantity(text, "C").value if key.startswith("temperature") else None
            if read is not None:
                device.sensor("npu-mcu", "board", "temperature", "C", float(read))

    def _fields(self, device: Device, block: _Block) -> None:
        summed = {key for keys in self._SUMS.values() for key in keys}
        for key, text in block.fields.items():
            if key in self._KEYS:
                column, unit = self._KEYS[key]
                device.set(column, text, unit)
            elif key in self._FACTS:
                self._fact(device, self._FACTS[key], text)
            elif key not in summed and re.fullmatch(r"-?\d{1,18}(?:\.\d{1,9})?", text):
                device.extra_value(extra_name("npu_smi", key.replace("(%)", "_pct")), float(text))
        for column, keys in self._SUMS.items():
            cells = [block.fields[key] for key in keys if key in block.fields]
            if cells:
                device.put_total(column, [quantity(text, "count") for text in cells])

    def _fact(self, device: Device, name: str, text: str) -> None:
        value = text_or_none(text)
        device.config(name, value)
        if name == "health" and value and value.lower() not in _HEALTHY:
            severity = "critical" if value.lower() in ("critical", "alarm") else "warning"
            device.event("npu:health", severity, f"npu-smi reports the health as {value}", {"health": value})


def _blocks(pairs: list[tuple[int, str, str, str]], head: frozenset[str]) -> list[_Block]:
    """Cut the lines into one block a chip, whichever side of the values the `Chip ID` line stands."""
    first_id = next((i for i, pair in enumerate(pairs) if pair[1] == "chipid"), None)
    trailing = first_id is not None and any(pair[1] not in head for pair in pairs[:first_id])
    blocks: list[_Block] = []
    npu: int | None = None
    current: _Block | None = None
    for number, key, _, text in pairs:
        if key in ("npuid", "slotid", "cardid"):
            npu = to_int(text)
            current = None
        elif key in head:
            continue
        elif key == "chipid" and trailing:
            current = current or _Block(npu, line=number)
            current.chip = to_int(text)
            blocks.append(current)
            current = None
        elif key == "chipid" or (key == "chipname" and text.lower() == "mcu"):
            current = _Block(npu, to_int(text) if key == "chipid" else None, text.lower() if key == "chipname" else "",
                             line=number)  # fmt: skip
            blocks.append(current)
        else:
            if current is None:
                current = _Block(npu, line=number)
                if not trailing:
                    blocks.append(current)
            current.fields.setdefault(key, text)
    if trailing and current is not None and current.fields:
        blocks.append(current)
    return blocks
