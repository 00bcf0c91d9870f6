"""AMD `rocm-smi --json` (ROCm 4 to 7), its concise table, and its answer when it has nothing to say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, ClassVar

from flightwatch.collectors.captures.base import (
    TRUNCATED,
    Lines,
    head_text,
    json_documents,
    make_row,
    read_document,
    to_float,
    to_int,
)
from flightwatch.collectors.captures.box_tables import line_pattern
from flightwatch.collectors.captures.device_rows import (
    CONFIG_COLUMNS,
    INVENTORY_COLUMNS,
    LINK_COLUMNS,
    Device,
    extra_name,
)
from flightwatch.collectors.captures.quantities import ABSENT, reason_for, text_or_none
from flightwatch.core.protocols import CaptureContext, Note, Row

NO_JSON = "WARNING: No JSON data to report"

#: Key in lower case to column; the first key present with a value wins.
CELLS: dict[str, tuple[str, ...]] = {
    "temp_c": ("temperature (sensor edge) (c)", "temperature (sensor core) (c)"),
    "hotspot_c": ("temperature (sensor junction) (c)",),
    "mem_temp_c": (
        "temperature (sensor memory) (c)", "temperature (sensor mem) (c)", "temperature (sensor hbm 0) (c)",
    ),
    "power_w": (
        "average graphics package power (w)", "average socket graphics package power (w)", "average socket power (w)",
        "current socket graphics package power (w)", "current socket power (w)",
    ),
    "power_instant_w": ("current socket graphics package power (w)", "current socket power (w)"),
    "power_limit_w": ("max graphics package power (w)", "power cap (w)", "max power (w)"),
    "voltage_mv": ("voltage (mv)",),
    "sm_clock_mhz": ("sclk clock speed:", "sclk clock speed", "sclk (mhz)"),
    "mem_clock_mhz": ("mclk clock speed:", "mclk clock speed", "mclk (mhz)"),
    "util_pct": ("gpu use (%)", "dcu use (%)", "hcu use (%)"),
    "mem_util_pct": ("gpu memory read/write activity (%)", "gpu memory use (%)", "dcu memory use (%)",
                     "hcu memory use (%)"),
    "mem_used_bytes": ("vram total used memory (b)",),
    "mem_total_bytes": ("vram total memory (b)",),
    "fan_pct": ("fan speed (%)", "fan level (%)"),
    "pcie_replay_total": ("pcie replay count",),
    "serial": ("serial number",),
    "uuid": ("unique id", "uuid"),
}  # fmt: skip
_MODEL_KEYS = ("device name", "card series", "card model", "card sku")
_EXTRA = {
    "gpu memory allocated (vram%)": "vram_allocated_pct", "avg. memory bandwidth": "memory_bandwidth_avg",
    "gpu overdrive value (%)": "overdrive_pct", "fan rpm": "fan_rpm", "accumulated energy (uj)": "energy_uj",
}  # fmt: skip
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
_PCIE = re.compile(r"([\d.]{1,8})\s*GT/s\s+x(\d{1,2})", re.ASCII)
_LINK = re.compile(r"\(topology\) link type between drm devices (\d{1,4}) and (\d{1,4})")
_CARD = re.compile(r"(?:card|gpu|dcu|hcu)\[?(\d{1,4})\]?", re.IGNORECASE)

ROCM_COLUMNS = ("device", "vendor", "model", *CELLS, "energy_j_total", "pcie_gen", "pcie_width", "link_errors_total",
                "quality", "extra", "extra_counters")  # fmt: skip
ROCM_CARRIES: Mapping[str, tuple[str, ...]] = {
    "device_samples": ROCM_COLUMNS,
    "config_facts": CONFIG_COLUMNS,
    "inventory": INVENTORY_COLUMNS,
    "links": LINK_COLUMNS,
}
ROCM_NULL_NOTES = {
    "ecc_corrected_total": "rocm-smi --json prints no RAS counters: use amd-smi metric -e",
    "hotspot_c": "not printed by integrated GPUs",
    "energy_j_total": "only with --showenergycounter",
    "fan_pct": "passively cooled boards print no fan",
}


class RocmSmi:
    """Reads `rocm-smi --json`: one object with a member per card and a `system` member."""

    name = "rocm-smi-json"
    VENDOR: ClassVar[str] = "amd"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = ROCM_CARRIES
    NULL_NOTES: ClassVar[Mapping[str, str]] = ROCM_NULL_NOTES

    def recognise(self, head: bytes) -> bool:
        """Recognise a `card<n>` member at the top, or the tool's complaint."""
        text = head_text(head)
        return NO_JSON in text or (
            re.match(r'[^{]{0,2000}\{\s*"(?:card\d+|system)"\s*:\s*\{', text) is not None and '"card' in text
        )

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield a row per card."""
        text, notes = read_document(stream)
        yield from notes
        if NO_JSON in text:
            line = text.count("\n", 0, text.index(NO_JSON)) + 1
            yield Note("warning", f"line {line}", "rocm-smi had no JSON to print: RAS counters were not collected and "
                       "are unknown, not 0; `amd-smi metric -e --json` prints them")  # fmt: skip
        start = text.find("{")
        if start < 0:
            if NO_JSON not in text:
                yield Note("error", "offset 0", "no JSON object was found")
            return
        good = 0
        for _, document, error in json_documents(" " * start + text[start:]):
            if error is not None:
                # Shell prompts and warnings around a document that was read do not make it malformed.
                if good and error.text != TRUNCATED:
                    error = Note("warning", error.where, "text after the JSON document was not read")
                yield error
            elif isinstance(document, dict):
                good += 1
                yield from cards(document, self.VENDOR, self.CARRIES, context)


def cards(
    document: Mapping[str, Any], vendor: str, carries: Mapping[str, tuple[str, ...]], context: CaptureContext
) -> Iterator[Row | Note]:
    """Yield the rows of a document with a member per card."""
    for name, member in document.items():
        card = _CARD.fullmatch(name)
        if card is not None and isinstance(member, dict):
            yield from card_device(member, to_int(card[1]), name, vendor, carries, context).rows()
        elif name.lower() == "system" and isinstance(member, dict):
            yield from _system(member, carries, context)


def card_device(
    member: Mapping[str, Any],
    index: int | None,
    name: str,
    vendor: str,
    carries: Mapping[str, tuple[str, ...]],
    context: CaptureContext,
) -> Device:
    """Build one device from the flat member of a card."""
    fields = {key.strip().lower(): _text(value) for key, value in member.items()}
    device = Device(carries, context, vendor, name)
    device.put("device", index)
    for column, keys in CELLS.items():
        present = [fields[key] for key in keys if key in fields]
        readable = [text for text in present if reason_for(text) is None]
        device.set(column, readable[0] if readable else (present[0] if present else None))
    device.put("model", _model(fields))
    if (energy := fields.get("accumulated energy (uj)")) is not None:
        device.set("energy_j_total", energy, "uj")
    link = _PCIE.search(fields.get("pcie clock level", ""))
    if link is not None:
        device.put("pcie_gen", _GENERATIONS.get(to_float(link[1]) or 0))
        device.put("pcie_width", to_int(link[2]))
    else:
        device.unknown("pcie_gen", ABSENT)
    for key, short in _EXTRA.items():
        device.extra(extra_name("rocm_smi", short), fields.get(key), "count" if "pct" not in short else "%")
    for key, fact in (("vbios version", "vbios"), ("performance level", "performance_level"),
                      ("driver version", "driver")):  # fmt: skip
        device.config(fact, text_or_none(fields.get(key)))
    device.inventory({"pci_bus_id": text_or_none(fields.get("pci bus")) or "",
                      "numa_node": text_or_none(fields.get("(topology) numa node")) or ""})  # fmt: skip
    return device


def _text(value: Any) -> str:
    if value is None:
        return "N/A"
    return str(value) if isinstance(value, (str, int, float)) else ""


def _model(fields: Mapping[str, str]) -> str | None:
    for key in _MODEL_KEYS:
        text = text_or_none(fields.get(key))
        if text and not text.lower().startswith("0x"):
            return text
    return next((text for key in _MODEL_KEYS if (text := text_or_none(fields.get(key)))), None)


def _system(
    member: Mapping[str, Any], carries: Mapping[str, tuple[str, ...]], context: CaptureContext
) -> Iterator[Row | Note]:
    for key, value in member.items():
        lower = key.strip().lower()
        text = text_or_none(_text(value))
        link = _LINK.fullmatch(lower)
        if link is not None and text:
            values = {"from_target": f"gpu{link[1]}", "to_target": f"gpu{link[2]}", "kind": text.lower()[:20]}
            yield make_row("links", carries, context, values)
        elif lower == "driver version" and text:
            yield make_row("config_facts", carries, context, {"name": "driver", "value": text})


class RocmSmiText:
    """Reads `rocm-smi -a` and `hy-smi -a` as text: lines of `GPU[0] : key: value`."""

    name = "rocm-smi-text"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = ROCM_CARRIES
    NULL_NOTES: ClassVar[Mapping[str, str]] = ROCM_NULL_NOTES
    _LINE: ClassVar[re.Pattern[str]] = re.compile(r"(GPU|DCU|HCU)\[(\d{1,4})\]\s*:\s*(\S[^:]{0,80}?)\s*:\s*(.*)")
    _SPEED: ClassVar[re.Pattern[str]] = re.compile(r"\((\d{1,6}\s*Mhz)\)", re.IGNORECASE)

    def recognise(self, head: bytes) -> bool:
        """Recognise such lines."""
        text = head_text(head)
        return len(re.findall(r"^(?:GPU|DCU|HCU)\[\d+\]\s*:\s*\S[^:\n]*:", text, re.M)) >= 2

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield a row per device."""
        lines = Lines(stream)
        found: dict[str, dict[str, str]] = {}
        driver: str | None = None
        vendor = "amd"
        for _, line in lines:
            pair = self._LINE.match(line)
            if pair is None:
                if line.startswith("Driver version:"):
                    driver = text_or_none(line.partition(":")[2])
                continue
            vendor = "hygon" if pair[1] != "GPU" else vendor
            fields = found.setdefault(pair[2], {}) if len(found) < 1024 else found.get(pair[2], {})
            key, text = pair[3], pair[4].strip()
            speed = self._SPEED.search(text)
            if key.lower().endswith("clock level") and speed is not None:
                key, text = f"{key.split()[0]} clock speed:", speed[1]
            if len(fields) < 2000:
                fields.setdefault(key, text)
        for index, fields in found.items():
            device = card_device(fields, to_int(index), f"device {index}", vendor, self.CARRIES, context)
            device.config("driver", driver)
            yield from device.rows()
        yield from lines.notes


class ConciseTable:
    """Reads the table that `rocm-smi` and `hy-smi` print without arguments, by the words of its header."""

    name = "rocm-smi-table"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "device_samples": (
            "device", "vendor", "temp_c", "hotspot_c", "power_w", "power_limit_w", "sm_clock_mhz", "mem_clock_mhz",
            "fan_pct", "util_pct", "quality", "extra",
        ),
        "config_facts": CONFIG_COLUMNS,
    }  # fmt: skip
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "mem_used_bytes": "the table prints a percentage only: extra rocm_smi.vram_allocated_pct",
        "power_w": "N/A on the second die of dual-die boards",
        "temp_c": "the table prints the junction's temperature on some boards: hotspot_c",
        "hotspot_c": "the table prints the die edge's temperature on the other boards: temp_c",
    }
    _LABELS: ClassVar[Mapping[str, str]] = {
        "gpu": r"(?P<index>\d{1,4})", "device": r"(?P<index>\d{1,4})", "dcu": r"(?P<index>\d{1,4})",
        "hcu": r"(?P<index>\d{1,4})", "[model : revision]": r".*?", "node": r"\d+", "ids": r"0x\w+,\s*\S+",
        "temp": r"(?P<temp>\S+)", "temp (dieedge)": r"(?P<temp>\S+)", "temp(dieedge)": r"(?P<temp>\S+)",
        "temp (junction)": r"(?P<temp>\S+)", "temp(junction)": r"(?P<temp>\S+)",
        "avgpwr": r"(?P<power>\S+)", "power": r"(?P<power>\S+)", "power(socket)": r"(?P<power>\S+)",
        "partitions": r"\S+,\s*\S+,\s*\S+", "sclk": r"(?P<sclk>\S+)", "mclk": r"(?P<mclk>\S+)", "fan": r"(?P<fan>\S+)",
        "perf": r"(?P<perf>\S+)", "pwrcap": r"(?P<cap>\S+)", "vram%": r"(?P<vram>\S+)", "gpu%": r"(?P<util>\S+)",
        "dcu%": r"(?P<util>\S+)", "hcu%": r"(?P<util>\S+)", "mode": r"(?P<mode>\S+)", "cu%": r"\S+", "mem%": r"\S+",
    }  # fmt: skip

    def recognise(self, head: bytes) -> bool:
        """Recognise the interface's title with a header of its columns."""
        text = head_text(head)
        return "System Management Interface" in text and re.search(
            r"^\s*(?:GPU|DCU|HCU|Device)\s.*\b(?:AvgPwr|Power|Perf)\b", text, re.M
        ) is not None  # fmt: skip

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield a row per line of the table."""
        lines = Lines(stream)
        pattern: re.Pattern[str] | None = None
        vendor, sensor = "amd", "temp_c"
        count = 0
        for number, line in lines:
            if "(Junction)" in line:  # stands below the word Temp
                sensor = "hotspot_c"
            found = line_pattern(line.strip(), self._LABELS, 4) if not line.strip()[:1].isdigit() else None
            if found is not None:
                pattern = found
                vendor = "hygon" if re.match(r"\s*(?:DCU|HCU)\s", line) else "amd"
            elif pattern is not None and line.strip()[:1].isdigit():
                row = pattern.fullmatch(line.strip()[:2000])
                if row is None or "index" not in row.groupdict():
                    yield Note("error", f"line {number}", "the line does not fit the header; skipped")
                    continue
                count += 1
                yield from self._device(row.groupdict(), vendor, sensor, number, context).rows()
        if not count:
            yield Note("error", "", "the table shows no device")
        yield from lines.notes

    def _device(
        self, cells: Mapping[str, str | None], vendor: str, sensor: str, number: int, context: CaptureContext
    ) -> Device:
        device = Device(self.CARRIES, context, vendor, f"line {number} device {cells.get('index')}")
        device.set("device", cells.get("index"))
        for column, cell in (
            (sensor, "temp"), ("power_w", "power"), ("power_limit_w", "cap"), ("sm_clock_mhz", "sclk"),
            ("mem_clock_mhz", "mclk"), ("fan_pct", "fan"), ("util_pct", "util"),
        ):  # fmt: skip
            device.set(column, cells.get(cell), bare=False)
        device.extra("rocm_smi.vram_allocated_pct", cells.get("vram"), "%")
        device.config("performance_level", text_or_none(cells.get("perf")))
        return device
