"""AMD `amd-smi` metric, static and xgmi reports: JSON (bare list, or wrapped in an object) and text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, ClassVar

from flightwatch.collectors.captures.base import (
    TRUNCATED,
    Lines,
    head_text,
    json_documents,
    read_document,
    to_float,
    to_int,
)
from flightwatch.collectors.captures.box_reports import BOX_COLUMNS, BoxReport
from flightwatch.collectors.captures.device_rows import (
    CONFIG_COLUMNS,
    IDENTITY,
    INVENTORY_COLUMNS,
    SENSOR_COLUMNS,
    Device,
    extra_name,
)
from flightwatch.collectors.captures.quantities import ABSENT, quantity, reason_for, text_or_none
from flightwatch.core.protocols import CaptureContext, Note, Row

Fields = dict[str, str]

#: Column to paths of lower-case words, the preferred one first.
_CELLS: dict[str, tuple[str, ...]] = {
    "model": ("asic/market_name", "board/product_name", "market_name", "name"),
    "serial": ("board/product_serial", "asic/asic_serial", "asic_serial"),
    "uuid": ("uuid", "gpu_uuid"),
    "temp_c": ("temperature/edge",),
    "hotspot_c": ("temperature/hotspot", "temperature/junction"),
    "mem_temp_c": ("temperature/mem", "temperature/memory"),
    "power_w": ("power/average_socket_power", "power/socket_power", "power/current_socket_power"),
    "power_instant_w": ("power/current_socket_power",),
    "power_limit_w": ("power/power_limit", "power/power_cap", "limit/max_power", "limit/socket_power",
                      "limit/ppt0/socket_power_limit"),
    "voltage_mv": ("power/gfx_voltage", "voltage/gfx"),
    "sm_clock_mhz": ("clock/gfx_0/clk", "clock/gfx/clk", "clock/gfx_0/cur_clk"),
    "mem_clock_mhz": ("clock/mem_0/clk", "clock/mem/clk", "clock/mem_0/cur_clk"),
    "util_pct": ("usage/gfx_activity", "gfx_activity", "usage/gfx_usage"),
    "mem_util_pct": ("usage/umc_activity", "usage/mem_activity"),
    "mem_used_bytes": ("mem_usage/used_vram", "fb_usage/used_vram", "vram/vram_used", "vram/used"),
    "mem_total_bytes": ("mem_usage/total_vram", "fb_usage/total_vram", "vram/size", "vram/vram_total"),
    "fan_pct": ("fan/usage",),
    "energy_j_total": ("energy/total_energy_consumption", "energy/energy_consumption"),
    "ecc_corrected_total": ("ecc/total_correctable_count", "ecc/total_correctable", "ecc/total/correctable"),
    "ecc_uncorrected_total": ("ecc/total_uncorrectable_count", "ecc/total_uncorrectable", "ecc/total/uncorrectable"),
    "retired_pages_total": ("bad_pages/retired_count",),
    "pcie_replay_total": ("pcie/replay_count", "pcie/replay_counter"),
    "pcie_width": ("pcie/width", "bus/pcie_width"),
}  # fmt: skip
_EXTRAS: tuple[tuple[str, str, str], ...] = (
    ("power/soc_voltage", "mV", "amd_smi.soc_voltage_mv"),
    ("power/mem_voltage", "mV", "amd_smi.mem_voltage_mv"),
    ("usage/mm_activity", "%", "amd_smi.mm_activity_pct"),
    ("ecc/total_deferred_count", "count", "amd_smi.ecc_deferred_total"),
    ("pcie/replay_roll_over_count", "count", "amd_smi.pcie_replay_rollover_total"),
    ("pcie/nak_received_count", "count", "amd_smi.pcie_nak_received_total"),
    ("pcie/nak_sent_count", "count", "amd_smi.pcie_nak_sent_total"),
    ("fan/rpm", "count", "amd_smi.fan_rpm"),
)
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
_FIELDS_LIMIT = 20_000
_DEPTH = 12

AMD_SMI_CARRIES: Mapping[str, tuple[str, ...]] = {
    "device_samples": tuple(dict.fromkeys((
        *IDENTITY, *_CELLS, "ecc_mode", "throttle_reasons", "pcie_gen", "link_rx_bytes_total", "link_tx_bytes_total",
        "quality", "extra", "extra_counters",
    ))),
    "sensor_samples": SENSOR_COLUMNS,
    "config_facts": CONFIG_COLUMNS,
    "inventory": INVENTORY_COLUMNS,
}  # fmt: skip
AMD_SMI_NULL_NOTES = {
    "temp_c": "MI300 and later print no edge temperature: hotspot_c",
    "throttle_reasons": "0 when UNTHROTTLED; a throttled device names no reason: extra amd_smi.throttled",
    "model": "amd-smi metric prints no names; amd-smi static does",
    "ecc_corrected_lifetime_total": "amd-smi counts since driver load only",
}


class AmdSmiJson:
    """Reads `amd-smi metric|static|xgmi --json`; values are plain, or `{"value":, "unit":}` objects."""

    name = "amd-smi-json"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = AMD_SMI_CARRIES
    NULL_NOTES: ClassVar[Mapping[str, str]] = AMD_SMI_NULL_NOTES
    _BLOCK: ClassVar[re.Pattern[str]] = re.compile(
        r'"(?:usage|power|clock|temperature|pcie|ecc|mem_usage|asic|bus|link_metrics|fan|energy|vram)"\s*:\s*[\[{]'
    )

    def recognise(self, head: bytes) -> bool:
        """Recognise a list of objects with a `gpu` number and the tool's blocks."""
        text = head_text(head)
        start = re.match(r"[^\[{]{0,2000}[\[{]", text)
        return (
            start is not None
            and re.search(r'"gpu"\s*:\s*"?\d', text) is not None
            and self._BLOCK.search(text) is not None
        )

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield a row per GPU."""
        text, notes = read_document(stream)
        yield from notes
        starts = [place for place in (text.find("["), text.find("{")) if place >= 0]
        if not starts:
            yield Note("error", "offset 0", "no JSON document was found")
            return
        start = min(starts)
        good = 0
        for _, document, error in json_documents(" " * start + text[start:]):
            if error is not None:
                if good and error.text != TRUNCATED:
                    error = Note("warning", error.where, "text after the JSON document was not read")
                yield error
                continue
            good += 1
            items = _items(document)
            if not items:
                yield Note("warning", "", "the document holds no GPU")
            for item in items:
                yield from self._gpu(item, context)

    def _gpu(self, item: Mapping[str, Any], context: CaptureContext) -> Iterator[Row | Note]:
        fields: Fields = {}
        _flatten(item, "", fields, 0)
        device = fill(fields, self.CARRIES, context)
        _links(device, item)
        yield from device.rows()


class AmdSmiText:
    """Reads `amd-smi metric|static` as text: `GPU: n`, then blocks of `KEY: value` by indentation."""

    name = "amd-smi-text"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = AMD_SMI_CARRIES
    NULL_NOTES: ClassVar[Mapping[str, str]] = AMD_SMI_NULL_NOTES
    _GPU: ClassVar[re.Pattern[str]] = re.compile(r"GPU:\s*(\d{1,4})\s*")
    _PAIR: ClassVar[re.Pattern[str]] = re.compile(r"(\s*)([A-Za-z][\w .%()-]{0,80}?):(?:\s+(.*))?$", re.ASCII)

    def recognise(self, head: bytes) -> bool:
        """Recognise a `GPU: n` line and an upper-case block below it."""
        text = head_text(head)
        return re.search(r"^GPU:\s*\d+\s*\n\s+[A-Z_]+:\s*(?:\n|\S)", text, re.M) is not None

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield a row per GPU."""
        lines = Lines(stream)
        fields: Fields | None = None
        stack: list[tuple[int, str]] = []
        for _, line in lines:
            gpu = self._GPU.fullmatch(line)
            if gpu is not None:
                if fields is not None:
                    yield from fill(fields, self.CARRIES, context).rows()
                fields, stack = {"gpu": gpu[1]}, []
                continue
            pair = self._PAIR.match(line)
            if fields is None or pair is None:
                continue
            indent = len(pair[1])
            while stack and stack[-1][0] >= indent:
                stack.pop()
            word = pair[2].strip().lower().replace(" ", "_")
            if pair[3] is None or not pair[3].strip():
                stack.append((indent, word))
            elif len(fields) < _FIELDS_LIMIT:
                fields.setdefault("/".join([*(name for _, name in stack), word]), pair[3].strip())
        if fields is not None:
            yield from fill(fields, self.CARRIES, context).rows()
        else:
            yield Note("error", "", "the report shows no GPU")
        yield from lines.notes


class AmdSmiTable(BoxReport):
    """Reads the table `amd-smi` prints without arguments from release 26 (ROCm 7) on."""

    name = "amd-smi-table"
    VENDOR = "amd"
    BANNER: ClassVar[re.Pattern[str]] = re.compile(
        r"AMD-SMI\s+(?P<amd_smi>\S+)\s+amdgpu version:\s*(?P<driver>\S+)(?:\s+ROCm version:\s*(?P<rocm>\S+))?"
    )
    LABELS: ClassVar[Mapping[str, str]] = {
        "bdf": r"(?P<bus>\S+)", "gpu-name": r"(?P<name>.+?)", "mem-uti": r"(?P<mem_util>\S+(?: %)?)",
        "temp": r"(?P<temp>\S+(?: °C)?)", "uec": r"(?P<uec>\S+)", "hip-id": r"\S+", "oam-id": r"\S+",
        "power-usage": r"(?P<power>N/A|[^/|]*?)\s*/\s*(?P<cap>N/A|[^/|]*?)", "partition-mode": r"(?P<partition>\S+)",
        "gfx-uti": r"(?P<util>\S+(?: %)?)", "fan": r"(?P<fan>\S+(?: %)?)",
        "mem-usage": r"(?P<mem_used>N/A|[^/|]*?)\s*/\s*(?P<mem_total>N/A|[^/|]*?)",
    }  # fmt: skip
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        **BoxReport.CARRIES,
        "device_samples": (*BOX_COLUMNS, "mem_util_pct"),
    }
    BARE: ClassVar[Mapping[str, str]] = {"power_w": "W", "ecc_uncorrected_total": "count"}
    CELLS: ClassVar[Mapping[str, str]] = {**BoxReport.CELLS, "mem_util_pct": "mem_util", "ecc_uncorrected_total": "uec"}
    NULL_NOTES: ClassVar[Mapping[str, str]] = {"ecc_corrected_total": "the table prints uncorrected errors only"}


def fill(fields: Mapping[str, str], carries: Mapping[str, tuple[str, ...]], context: CaptureContext) -> Device:
    """Build one device from paths and texts."""
    device = Device(carries, context, "amd", f"gpu {fields.get('gpu', '?')}")
    device.set("device", fields.get("gpu"))
    for column, paths in _CELLS.items():
        present = [fields[path] for path in paths if path in fields]
        readable = [text for text in present if reason_for(text) is None]
        # amd-smi prints MB without saying that it counts in 2^20.
        device.set(
            column, readable[0] if readable else (present[0] if present else None), "MB" if "bytes" in column else ""
        )
    for path, unit, name in _EXTRAS:
        device.extra(name, fields.get(path), unit)
    _throttle(device, fields)
    _generation(device, fields)
    mode = (fields.get("ras/ecc_state") or fields.get("ecc/state") or "").lower()
    if mode in ("enabled", "disabled"):
        device.put("ecc_mode", mode)
    for path, fact in (("driver/version", "driver"), ("driver/driver_version", "driver"), ("vbios/version", "vbios"),
                       ("power/power_management", "power_management")):  # fmt: skip
        device.config(fact, text_or_none(fields.get(path)))
    device.inventory({"pci_bus_id": text_or_none(fields.get("bus/bdf") or fields.get("bdf")) or ""})
    return device


def _throttle(device: Device, fields: Mapping[str, str]) -> None:
    status = (fields.get("power/throttle_status") or fields.get("throttle/status") or "").upper()
    if status == "UNTHROTTLED":
        device.put("throttle_reasons", 0)
        device.extra_value("amd_smi.throttled", 0)
    elif status == "THROTTLED":
        device.unknown("throttle_reasons", "the tool says that the device is throttled, not why")
        device.extra_value("amd_smi.throttled", 1)
    else:
        device.unknown("throttle_reasons", ABSENT)


def _generation(device: Device, fields: Mapping[str, str]) -> None:
    text = fields.get("pcie/speed") or fields.get("pcie/current_speed") or ""
    rate = re.match(r"([\d.]{1,8})\s*GT/s", text, re.ASCII)
    if rate is not None:
        device.put("pcie_gen", _GENERATIONS.get(to_float(rate[1]) or 0))


def _items(document: Any) -> list[dict[str, Any]]:
    """Return the GPU objects of a bare list, or of the list in a wrapping object."""
    if isinstance(document, dict):
        if "gpu" in document and not isinstance(document["gpu"], list):
            return [document]
        lists = [value for value in document.values() if isinstance(value, list)]
        document = [item for value in lists for item in value]
    if not isinstance(document, list):
        return []
    return [item for item in document if isinstance(item, dict) and "gpu" in item]


def _flatten(value: Any, path: str, fields: Fields, depth: int) -> None:
    if depth > _DEPTH or len(fields) >= _FIELDS_LIMIT:
        return
    if isinstance(value, dict):
        if "value" in value and set(value) <= {"value", "unit"}:
            unit = value.get("unit") or ""
            fields[path] = f"{_plain(value['value'])} {unit}".strip() if value["value"] != "N/A" else "N/A"
            return
        for key, member in value.items():
            word = str(key).strip().lower().replace(" ", "_")
            _flatten(member, f"{path}/{word}" if path else word, fields, depth + 1)
    elif not isinstance(value, list):
        fields[path] = _plain(value)


def _plain(value: Any) -> str:
    if value is None:
        return "N/A"
    return str(value) if isinstance(value, (str, int, float)) else ""


def _links(device: Device, item: Mapping[str, Any]) -> None:
    """Read the per-link traffic of `amd-smi xgmi --metric`."""
    metrics = item.get("link_metrics")
    links = metrics.get("links") if isinstance(metrics, dict) else None
    sums: dict[str, int] = {}
    for link in links if isinstance(links, list) else []:
        if not isinstance(link, dict):
            continue
        fields: Fields = {}
        _flatten(link, "", fields, 0)
        label = fields.get("gpu") or fields.get("bdf") or "?"
        status = text_or_none(fields.get("status") or fields.get("link_status"))
        if status:
            device.sensor("xgmi", label, "state", "", status=status[:40])
        for key, which in (("read", "rx_bytes"), ("write", "tx_bytes")):
            read = quantity(fields.get(key, ""), "bytes").value
            if read is not None and read >= 0:
                device.sensor("xgmi", label, which, "bytes", counter=int(read))
                sums[which] = sums.get(which, 0) + int(read)
    device.put("link_rx_bytes_total", sums.get("rx_bytes"))
    device.put("link_tx_bytes_total", sums.get("tx_bytes"))
    if isinstance(metrics, dict) and (rate := to_int(str(metrics.get("bit_rate", "")))) is not None:
        device.extra_value(extra_name("amd_smi", "xgmi_bit_rate_gbps"), rate)
