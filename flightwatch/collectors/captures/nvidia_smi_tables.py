"""The small reports of nvidia-smi: its default table, `dmon`, `nvlink`, `topo -m` and `-L`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import BinaryIO, ClassVar

from flightwatch.collectors.captures.base import Lines, head_text, make_row, to_float, to_int
from flightwatch.collectors.captures.box_tables import COMMON_LABELS, read_tables
from flightwatch.collectors.captures.device_rows import (
    CONFIG_COLUMNS,
    EVENT_COLUMNS,
    INVENTORY_COLUMNS,
    LINK_COLUMNS,
    SENSOR_COLUMNS,
    Device,
    stated_time,
    utc_note,
)
from flightwatch.collectors.captures.quantities import NOT_READABLE, quantity, reason_for, text_or_none
from flightwatch.core.protocols import CaptureContext, Note, Row

_LABELS = {
    **COMMON_LABELS,
    "persistence-m": r"(?P<persistence>\S+)",
    "disp.a": r"\S+",
    "volatile uncorr. ecc": r"(?P<ecc>\S+)",
    "mig m.": r"(?P<mig>\S+)",
    # The table of MIG devices below the main one.
    "gi": r"(?P<gi>\d+)",
    "ci": r"(?P<ci>\d+)",
    "mig": r"(?P<mig_id>\d+)",
    "shared memory-usage": r"(?P<mem_used>[^/|]*?)\s*/\s*(?P<mem_total>[^/|]*?)",
}
#: Driver 610 renamed the driver's version to KMD and CUDA's to CUDA UMD.
_DRIVER = re.compile(r"NVIDIA-SMI\s+\S+\s+(?:Driver|KMD) Version:\s*(\S+)(?:\s+CUDA(?: UMD)? Version:\s*(\S+))?")


class NvidiaSmiTable:
    """Reads the table `nvidia-smi` prints without arguments."""

    name = "nvidia-smi-table"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "device_samples": (
            "device", "parent_device", "mig_id", "vendor", "model", "temp_c", "power_w", "power_limit_w", "util_pct",
            "mem_used_bytes", "mem_total_bytes", "fan_pct", "ecc_mode", "ecc_uncorrected_total", "quality", "extra",
        ),
        "config_facts": CONFIG_COLUMNS,
        "events": EVENT_COLUMNS,
        "inventory": INVENTORY_COLUMNS,
    }  # fmt: skip
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "ecc_uncorrected_total": "the table shows Off or N/A without ECC, and On in MIG mode",
        "util_pct": "N/A in MIG mode",
        "fan_pct": "passively cooled boards have no fan",
    }

    def recognise(self, head: bytes) -> bool:
        """Recognise the banner of the table."""
        return _DRIVER.search(head_text(head)) is not None

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield a row per GPU and MIG device of every table in the capture."""
        lines = Lines(stream)
        ts: int | None = None
        driver: tuple[str, str | None] = ("", None)
        count = 0
        for found in read_tables(lines, _LABELS):
            if found.cells is None:
                stamp = stated_time(found.line)
                if stamp is not None:
                    ts = stamp
                    yield utc_note(f"line {found.number}")
                banner = _DRIVER.search(found.line)
                driver = (banner[1], banner[2]) if banner else driver
            elif "index" in found.cells and ("name" in found.cells or "mig_id" in found.cells):
                count += 1
                yield from self._device(found.cells, found.number, driver, context).rows(ts)
                if found.missing_lines:
                    yield Note("error", f"line {found.number}", "the table is cut off inside this device")
        if not count:
            yield Note("error", "", "the table shows no device")
        yield from lines.notes

    def _device(
        self, cells: Mapping[str, str], number: int, driver: tuple[str, str | None], context: CaptureContext
    ) -> Device:
        index = to_int(cells["index"])
        device = Device(self.CARRIES, context, "nvidia", f"line {number} gpu {index}")
        device.put("device", index)
        device.set("mem_used_bytes", cells.get("mem_used"), bare=False)
        device.set("mem_total_bytes", cells.get("mem_total"), bare=False)
        if "mig_id" in cells:
            device.put("parent_device", index)
            device.put("mig_id", to_int(cells["mig_id"]))
            return device
        name = text_or_none(cells.get("name"))
        device.put("model", name)
        if name and name.endswith("..."):
            device.note("info", "the tool cut the model name")
        for column, cell in (
            ("temp_c", "temp"), ("power_w", "power"), ("power_limit_w", "cap"), ("util_pct", "util"),
            ("fan_pct", "fan"),
        ):  # fmt: skip
            device.set(column, cells.get(cell), bare=False)
        self._ecc(device, cells)
        device.config("driver", driver[0])
        device.config("cuda", text_or_none(driver[1]))
        device.inventory({"pci_bus_id": cells.get("bus", "")})
        return device

    def _ecc(self, device: Device, cells: Mapping[str, str]) -> None:
        text = cells.get("ecc", "")
        if text.lower() == "off":
            device.put("ecc_mode", "disabled")
        elif text.lower() == "on":
            device.put("ecc_mode", "enabled")
        else:
            device.set("ecc_uncorrected_total", cells.get("ecc"))
            if device.value("ecc_uncorrected_total") is not None:
                device.put("ecc_mode", "enabled")
        unreadable = [
            name for name in ("fan", "temp", "power", "util") if reason_for(cells.get(name, "")) == NOT_READABLE
        ]
        if unreadable:
            message = f"the tool could not read {', '.join(unreadable)}: the device may be lost"
            device.note("warning", message)
            device.event("device:unreadable", "error", message, {"pci_bus_id": cells.get("bus", "")})


class NvidiaDmon:
    """Reads `nvidia-smi dmon`: one line a device and interval under a `# gpu` header and a unit line."""

    name = "nvidia-dmon"
    _COLUMNS: ClassVar[Mapping[str, str]] = {
        "pwr": "power_w", "gtemp": "temp_c", "mtemp": "mem_temp_c", "sm": "util_pct", "mem": "mem_util_pct",
        "mclk": "mem_clock_mhz", "pclk": "sm_clock_mhz", "fb": "mem_used_bytes", "temp": "temp_c",
    }  # fmt: skip
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "device_samples": (
            "device", "vendor", "temp_c", "mem_temp_c", "power_w", "sm_clock_mhz", "mem_clock_mhz", "util_pct",
            "mem_util_pct", "mem_used_bytes", "quality", "extra",
        ),
    }  # fmt: skip
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "mem_temp_c": "printed as - on boards without the sensor",
        "ts": "dmon prints a time only with -o DT",
    }

    def recognise(self, head: bytes) -> bool:
        """Recognise the header line."""
        header = re.search(r"^#\s*(?:Date\s+Time\s+|Time\s+)?gpu\s.*$", head_text(head), re.M | re.I)
        return header is not None and "pid" not in header[0].lower().split()

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield a row per line, by the header in force at that line."""
        lines = Lines(stream)
        names: list[str] = []
        units: list[str] = []
        for number, line in lines:
            words = line.lstrip("# ").split()
            if line.lstrip().startswith("#"):
                if words and words[0].lower() in ("gpu", "date", "time"):
                    names, units = [word.lower() for word in words], []
                else:
                    units = [word.lower() for word in words]
                continue
            if not words or not names:
                continue
            if len(words) != len(names):
                yield Note("error", f"line {number}", f"{len(words)} values under a header of {len(names)}: skipped")
                continue
            yield from self._line(dict(zip(names, words, strict=True)), dict(zip(names, units, strict=False)), number,
                                  context)  # fmt: skip
        yield from lines.notes

    def _line(
        self, cells: Mapping[str, str], units: Mapping[str, str], number: int, context: CaptureContext
    ) -> Iterator[Row | Note]:
        device = Device(self.CARRIES, context, "nvidia", f"line {number}")
        device.set("device", cells.get("gpu"))
        for name, text in cells.items():
            column = self._COLUMNS.get(name)
            unit = units.get(name, "")
            if column is not None:
                device.set(column, text, "MB" if unit == "mb" else "")
            elif name not in ("gpu", "date", "time") and (value := to_float(text)) is not None:
                suffix = unit.replace("%", "pct").replace("/", "_per_")
                device.extra_value(f"dmon.{name}_{suffix}" if suffix and suffix != "-" else f"dmon.{name}", value)
        date = cells.get("date", "")
        if len(date) == 8:
            date = f"{date[:4]}-{date[4:6]}-{date[6:]}"
        yield from device.rows(stated_time(f"{date} {cells.get('time', '')}"))


class NvidiaNvlink:
    """Reads `nvidia-smi nvlink` -s (state), -e (errors) and -gt (throughput counters)."""

    name = "nvidia-nvlink"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "device_samples": (
            "device", "vendor", "model", "uuid", "link_rx_bytes_total", "link_tx_bytes_total", "link_errors_total",
            "quality",
        ),
        "sensor_samples": SENSOR_COLUMNS,
    }  # fmt: skip
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "link_rx_bytes_total": "only -gt d prints counters",
        "link_errors_total": "only -e prints counters",
        "sensor_samples.value": "counters stand in the counter column",
    }
    _GPU: ClassVar[re.Pattern[str]] = re.compile(r"GPU (\d{1,4}): (.*?) \(UUID: ([^)]*)\)")
    _LINK: ClassVar[re.Pattern[str]] = re.compile(r"\s+Link (\d{1,3}):\s*(.*)")
    _ERRORS: ClassVar[Mapping[str, str]] = {
        "replay errors": "replays", "recovery errors": "recoveries", "crc errors": "crc_errors",
        "crc flit errors": "crc_errors", "crc data errors": "crc_data_errors",
    }  # fmt: skip

    def recognise(self, head: bytes) -> bool:
        """Recognise a GPU line followed by link lines."""
        text = head_text(head)
        return self._GPU.search(text) is not None and (
            re.search(r"^\s+Link \d+:", text, re.M) is not None or "Nvlink" in text or "NvLink" in text
        )

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield one row per device and one per link and quantity."""
        lines = Lines(stream)
        device: Device | None = None
        sums: dict[str, int] = {}
        for number, line in lines:
            head = self._GPU.match(line)
            if head is not None:
                yield from self._finish(device, sums)
                device = Device(self.CARRIES, context, "nvidia", f"gpu {head[1]}")
                sums = {}
                device.put("device", to_int(head[1]))
                device.put("model", head[2])
                device.put("uuid", head[3])
                continue
            link = self._LINK.match(line)
            if link is not None and device is not None:
                self._link(device, link[1], link[2], sums)
            elif line.strip() and device is not None:
                device.note("info", line.strip()[:200])
            elif line.strip():
                yield Note("info", f"line {number}", line.strip()[:200])
        yield from self._finish(device, sums)
        yield from lines.notes

    def _finish(self, device: Device | None, sums: Mapping[str, int]) -> Iterator[Row | Note]:
        if device is None:
            return
        for column in ("link_rx_bytes_total", "link_tx_bytes_total", "link_errors_total"):
            device.put(column, sums.get(column))
        yield from device.rows()

    def _link(self, device: Device, label: str, text: str, sums: dict[str, int]) -> None:
        name, colon, value = text.rpartition(":")
        if colon:
            self._counter(device, label, name.strip().lower(), value.strip(), sums)
            return
        rate = re.fullmatch(r"([\d.]+)\s*GB/s", text.strip(), re.ASCII)
        if rate is not None:
            speed = to_float(rate[1])
            active = bool(speed)
            device.sensor(
                "nvlink", label, "state", "", 1.0 if active else 0.0, status="active" if active else "inactive"
            )
            device.sensor("nvlink", label, "rate", "GB/s", speed)
        elif "inactive" in text.lower():
            device.sensor("nvlink", label, "state", "", 0.0, status="inactive")
        else:
            device.sensor("nvlink", label, "state", "", status=text_or_none(text[:40]))

    def _counter(self, device: Device, label: str, name: str, text: str, sums: dict[str, int]) -> None:
        if name in ("data tx", "data rx", "raw tx", "raw rx"):
            read = quantity(text, "bytes").value
            which = f"{name[-2:]}_bytes" if name.startswith("data") else f"raw_{name[-2:]}_bytes"
            if read is not None:
                device.sensor("nvlink", label, which, "bytes", counter=int(read))
                if name.startswith("data"):
                    column = f"link_{which}_total"
                    sums[column] = sums.get(column, 0) + int(read)
            return
        errors = to_int(text)
        if errors is None or errors < 0:
            return
        device.sensor("nvlink", label, self._ERRORS.get(name, name.replace(" ", "_")[:40]), "errors", counter=errors)
        sums["link_errors_total"] = sums.get("link_errors_total", 0) + errors


#: How the vendors' own links are written in the matrix.
_LINK_KINDS = {"NV": "nvlink", "MX": "metaxlink"}


class NvidiaTopology:
    """Reads the matrix of `nvidia-smi topo -m` (and of `mx-smi topo`) into `links`, with each device's NUMA node."""

    name = "nvidia-topo"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {"links": LINK_COLUMNS, "config_facts": CONFIG_COLUMNS}
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "links.kind": "never: nvlink for NV#, metaxlink for MX, pcie for the others"
    }
    _KIND: ClassVar[re.Pattern[str]] = re.compile(r"(?:NV\d{1,3}|MX\d{0,3}|SYS|NODE|PHB|PXB|PIX|PIX\*)")
    _GAP: ClassVar[re.Pattern[str]] = re.compile(r" {2,20}")
    _ESCAPE: ClassVar[re.Pattern[str]] = re.compile(r"\x1b\[[0-9;]{0,8}m")
    _NIC: ClassVar[re.Pattern[str]] = re.compile(r"\s*(NIC\d{1,3}):\s*(\S+)")

    def recognise(self, head: bytes) -> bool:
        """Recognise a header of GPU columns with the affinity columns, or the legend."""
        text = head_text(head)
        return re.search(r"GPU0\s.*(?:CPU Affinity|GPU\d)", text) is not None and " X " in text

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield one row per pair of devices (upper triangle) and the affinities."""
        lines = Lines(stream)
        header: list[str] = []
        pairs: list[tuple[str, str, str]] = []
        names: dict[str, str] = {}
        for number, raw in lines:
            line = self._ESCAPE.sub("", raw)
            nic = self._NIC.match(line)
            # Pasted text has spaces where the tool printed tabs.
            cells = [cell.strip() for cell in (line.split("\t") if "\t" in line else self._GAP.split(line.rstrip()))]
            if not header and "GPU0" in line and "X" not in cells:
                header = [cell for cell in cells if cell]
            elif nic is not None:
                names[nic[1]] = nic[2]
            elif header and cells[0] and re.fullmatch(r"(?:GPU|NIC|mlx)\S*", cells[0]):
                yield from self._row(cells, header, pairs, number, context)
        for left, right, kind in pairs:
            ends = {"from_target": names.get(left, left.lower()), "to_target": names.get(right, right.lower())}
            yield make_row("links", self.CARRIES, context, {**ends, "kind": kind})
        yield from lines.notes

    def _row(
        self, cells: list[str], header: list[str], pairs: list[tuple[str, str, str]], number: int,
        context: CaptureContext,
    ) -> Iterator[Row | Note]:  # fmt: skip
        values = dict(zip(header, cells[1:], strict=False))
        if len(cells) - 1 < sum(name.startswith(("GPU", "NIC")) and name[3:].isdigit() for name in header):
            yield Note("error", f"line {number}", "the matrix row is cut off")
        past_self = False
        for name, text in values.items():
            if text == "X":
                past_self = True
            elif past_self and self._KIND.fullmatch(text) and len(pairs) < 100_000:
                pairs.append((cells[0], name, _LINK_KINDS.get(text[:2], "pcie")))
        if cells[0].startswith("GPU") and (index := to_int(cells[0][3:])) is not None:
            for column, fact in (
                ("CPU Affinity", "cpu_affinity"),
                ("NUMA Affinity", "numa_node"),
                ("Node Affinity", "numa_node"),
            ):
                if (known := text_or_none(values.get(column))) is not None:
                    yield make_row(
                        "config_facts", self.CARRIES, context, {"device": index, "name": fact, "value": known}
                    )


class NvidiaList:
    """Reads `nvidia-smi -L`: which devices and MIG instances there are."""

    name = "nvidia-smi-list"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {"inventory": INVENTORY_COLUMNS}
    NULL_NOTES: ClassVar[Mapping[str, str]] = {"inventory.serial": "the list does not print it"}
    _MIG: ClassVar[re.Pattern[str]] = re.compile(r"\s+MIG (\S+)\s+Device\s+(\d{1,3}): \(UUID: ([^)]*)\)")

    def recognise(self, head: bytes) -> bool:
        """Recognise lines that are nothing but GPUs and MIG devices with their UUIDs."""
        text = [line for line in head_text(head).split("\n") if line.strip()][:50]
        gpus = [line for line in text if NvidiaNvlink._GPU.match(line)]
        return bool(gpus) and all(NvidiaNvlink._GPU.match(line) or self._MIG.match(line) for line in text[:-1] or text)

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield one inventory row per line."""
        lines = Lines(stream)
        index: int | None = None
        model = ""
        for number, line in lines:
            gpu = NvidiaNvlink._GPU.match(line)
            mig = self._MIG.match(line)
            attrs: dict[str, str] = {}
            if gpu is not None:
                index, model, attrs = to_int(gpu[1]), str(gpu[2]), {"uuid": gpu[3]}
            elif mig is not None:
                attrs = {"uuid": mig[3], "mig_id": mig[2], "mig_profile": mig[1]}
            else:
                if line.strip():
                    yield Note("info", f"line {number}", "not a device line")
                continue
            yield make_row("inventory", self.CARRIES, context, {"device": index, "model": model, "attrs": attrs})
        yield from lines.notes
