"""`ethtool`: -S statistics (mlx5, ionic, bnxt, ice, hns3), -m optics, --show-fec, and the plain settings page.

Port-level counters win over the driver's software ones: a RoCE port moves data that the network stack
never sees (`rx_bytes_phy`, `octets_rx_ok` against `rx_bytes`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, ClassVar

from flightwatch.collectors.captures.base import head_text, make_row
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


def _pause(direction: str) -> re.Pattern[str]:
    """Names of one priority's pause frames: mlx5, bnxt, ice/i40e, mlx4, hns3, cxgb4."""
    d = direction
    return re.compile(
        rf"{d}_prio\d_pause|{d}_pfc_ena_frames_pri\d|{d}_priority_\d_xo(?:n|ff)(?:\.nic)?"
        rf"|{d}_pause_prio_\d|mac_{d}_pfc_pri\d_pkt_num|{d}_ppp\d"
    )


#: Names of `ethtool -S` and of nicctl, which prints the same hardware's counters.
PORT_NAMES = CounterNames(
    "ethtool",
    {
        "rx_bytes_total": ("rx_bytes_phy", "octets_rx_ok", "mac_rx_total_oct_num", "rx_bytes.nic", "rx_bytes"),
        "tx_bytes_total": ("tx_bytes_phy", "octets_tx_ok", "mac_tx_total_oct_num", "tx_bytes.nic", "tx_bytes"),
        "rx_packets_total": ("rx_packets_phy", "frames_rx_ok", "rx_good_frames", "mac_rx_total_pkt_num", "rx_packets"),
        "tx_packets_total": ("tx_packets_phy", "frames_tx_ok", "tx_good_frames", "mac_tx_total_pkt_num", "tx_packets"),
        "symbol_errors_total": ("rx_symbol_err_phy", "rsfec_ch_symbol_err_cnt", "rx_pcs_symbol_err"),
        "link_downed_total": ("link_down_events_phy", "number_of_link_down_events", "link_down_events"),
        "rcv_errors_total": (
            "rx_crc_errors_phy", "frames_rx_bad_all", "rx_fcs_err_frames", "rx_crc_errors.nic", "rx_errors",
        ),
        "xmit_discards_total": (
            "tx_discards_phy", "tx_discard_packets", "tx_dropped.nic", "hw_tx_dropped", "tx_dropped",
        ),
        "ecn_marked_total": ("np_ecn_marked_roce_packets", "rx_ecn_marked_pkts", "rx_roce_ecn_pkts"),
        "cnp_sent_total": ("np_cnp_sent", "tx_cnp_pkts", "tx_roce_cnp_pkts"),
        "cnp_handled_total": ("rp_cnp_handled", "rx_cnp_pkts", "rx_roce_cnp_pkts"),
        "out_of_sequence_total": ("out_of_sequence",),
        "pfc_rx_pause_total": ("rx_pfc_frames", "frames_rx_pripause"),
        "pfc_tx_pause_total": ("tx_pfc_frames", "frames_tx_pripause"),
        "fec_corrected_total": (
            "rsfec_correctable_word", "rx_fec_corrected_blocks", "fec_corrected_blocks", "corrected_blocks",
        ),
        "fec_uncorrected_total": (
            "rsfec_uncorrectable_word", "rx_fec_uncorrectable_blocks", "fec_uncorrectable_blocks",
            "uncorrectable_blocks",
        ),
    },
    sums={"pfc_rx_pause_total": _pause("rx"), "pfc_tx_pause_total": _pause("tx")},
)  # fmt: skip
_PER_QUEUE = re.compile(
    r"(?:rx|tx|ch|xdp|rxq|txq|queue|rx_queue|tx_queue|rx_xsk|tx_xsk|tx_xdp)[-_]?\d+\D?.*|.*\[\d+\].*"
)
_HEADINGS = ("NIC statistics:", "FEC parameters for ", "Standard stats for ", "Settings for ", "Pause parameters for ")
_LINE = re.compile(r"[ \t]+(\[\d+\]:\s*[^:]+|[A-Za-z][^:]*?)\s*:[ \t]*(.*)")
_MODULE = re.compile(
    r"^[ \t]{0,40}(Identifier|Module temperature|Laser (?:tx )?bias current[^:\n]{0,40}|Vendor SN)[ \t]{0,80}: ",
    re.MULTILINE,
)
_LANE = re.compile(r"\(\s*Channel\s*(\d{1,18})\s*\)", re.IGNORECASE)
_SPEED = re.compile(r"(\d{1,18})\s*Mb/s")
_LANE_NAMES = (
    ("bias", re.compile(r"laser (?:tx )?bias current", re.IGNORECASE), re.compile(r"(-?[\w.+]+)\s*mA")),
    ("tx_power", re.compile(r"(?:transmit avg optical power|laser output power)", re.IGNORECASE),
     re.compile(r"(-?[\w.+]+)\s*dBm")),
    ("rx_power", re.compile(r"(?:rcvr signal avg optical power|receiver signal (?:average|OMA) optical power|rx power)",
                            re.IGNORECASE), re.compile(r"(-?[\w.+]+)\s*dBm")),
)  # fmt: skip


@dataclass
class _Interface:
    """What one block of output says about one interface."""

    name: str | None
    counts: Counts = field(default_factory=Counts)
    optics: Optics = field(default_factory=Optics)
    values: dict[str, Value] = field(default_factory=dict)
    queues: int = 0
    seen: bool = False


class EthtoolParser:
    """Reads `ethtool -S`, `-m`, `--show-fec`, `-a` and plain `ethtool`, several blocks in one file too."""

    name: ClassVar[str] = "ethtool"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "port_samples": (*IDENTITY, *PORT_NAMES.columns, *OPTICS_COLUMNS, *MAPS),
        "sensor_samples": ("chip", "label", "quantity", "unit", "value", "status"),
    }
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "port_samples.hca": "-S and -m print no interface name; it is taken from the file name when that has one",
        "port_samples.pfc_rx_pause_total": "the output holds no pause counters: the count is unknown, not 0",
        "port_samples.optics_rx_power_dbm": "only `-m` prints it; NULL without light (-inf dBm) and on copper",
    }

    def recognise(self, head: bytes) -> bool:
        """Say whether the head has one of ethtool's headings or a module page."""
        text = head_text(head)
        if text.lstrip().startswith("["):
            return '"ifname"' in text[:400] and any(
                f'"{key}"' in text for key in ("rx_packets", "rx_bytes", "tx_bytes")
            )
        if any(line.startswith(_HEADINGS) for line in text.split("\n")[:60]):
            return True
        return len({match.split(" (")[0] for match in _MODULE.findall(text)}) >= 2

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterable[Row | Note]:
        """Yield one port_samples row per interface block and one sensor_samples row per optical lane."""
        documents, text, notes = read_json_or_text(stream)
        yield from notes
        for entry in (entry for document in documents for entry in objects(document)):
            yield from self._rows(_from_json(entry), context)
        block = _Interface(None)
        for number, line in enumerate(text.split("\n"), 1):
            heading = next((heading for heading in _HEADINGS if line.startswith(heading)), None)
            if heading:
                yield from self._rows(block, context)
                name = line[len(heading) :].strip().rstrip(":")
                block = _Interface(name or None, seen=True)
            elif match := _LINE.match(line) or _LINE.match(" " + line):
                _take(block, match[1].strip(), match[2].strip(), f"line {number}")
            elif line.strip() and not line.startswith((" ", "\t")):
                yield Note("info", f"line {number}", f"left out: {shown(line)}")
        yield from self._rows(block, context)

    def _rows(self, block: _Interface, context: CaptureContext) -> Iterator[Row | Note]:
        if not (block.counts.numbers or block.optics.lanes or block.optics.temp_c is not None or block.values):
            if block.seen:
                yield Note("error", "", "the heading is followed by no statistics")
            yield from block.counts.notes
            return
        hca = block.name or device_in_name(context)
        if hca is None:
            yield Note("info", "", "the output does not name its interface and the file name does not either")
        values = {**PORT_NAMES.values(block.counts.numbers), **block.optics.port_values(), **block.values}
        yield make_row("port_samples", self.CARRIES, context, {**values, "hca": hca, "port": 1})
        for sensor in block.optics.sensor_values(hca):
            yield make_row("sensor_samples", self.CARRIES, context, sensor)
        yield from block.counts.notes
        yield from block.optics.notes
        if block.queues:
            yield Note("info", "", f"{block.queues} counters of single queues are left out")


def _from_json(entry: Mapping[str, Any]) -> _Interface:
    name = entry.get("ifname")
    block = _Interface(name if isinstance(name, str) else None, seen=True)
    for key, value in entry.items():
        if key == "ifname":
            continue
        if isinstance(value, dict):  # --groups: {"eth-mac": {...}}
            for inner, count in value.items():
                _take_count(block, inner, count, f"{name} {inner}")
        elif isinstance(value, (int, str)):
            _take_count(block, key, value, f"{name} {key}")
    return block


def _take_count(block: _Interface, name: str, value: object, where: str) -> None:
    if _PER_QUEUE.fullmatch(name):
        block.queues += 1
    else:
        block.counts.read(name, value, where)


def _take(block: _Interface, name: str, text: str, where: str) -> None:
    """Take one `name: value` line of any ethtool page."""
    lower = name.lower()
    if "alarm" in lower or "warning" in lower or "threshold" in lower:
        return
    if lower == "module temperature":
        block.optics.temperature(text.split(" ")[0], where)
        return
    if lower == "module voltage":
        block.optics.voltage(text.split(" ")[0], 1000.0, where)
        return
    for quantity, names, number in _LANE_NAMES:
        if names.match(name):
            lane, found = _LANE.search(name), number.search(text)
            block.optics.lane(quantity, lane[1] if lane else "1", found[1] if found else text, where)
            return
    if lower == "speed" and (speed := _SPEED.match(text)):
        block.values["rate_gbps"] = int(speed[1]) / 1000 if int(speed[1]) < 10**8 else None
    elif lower == "link detected":
        block.values["state"] = {"yes": "ACTIVE", "no": "DOWN"}.get(text.lower())
    elif text.isascii() and text.isdigit():
        _take_count(block, name.replace(" ", "_"), text, where)
    elif block.seen and re.fullmatch(r"[a-z][\w.]*", name) and (not text or text.lower() in ("n/a", "foo")):
        block.counts.read(name, text, where)
