"""Switch ports from SONiC and similar exporters: traffic, errors, PFC per priority, ECN, queue drops, optics, settings.

Rows are `port_samples` with the switch as node and an empty `hca`. A port's number is the number in
its name (Ethernet48, swp12s1 = 12); the name itself stands in links and messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from flightwatch.collectors.captures.base import make_row
from flightwatch.collectors.captures.exporter_map import clamp_ms
from flightwatch.collectors.captures.openmetrics_text import Family, Sample
from flightwatch.collectors.captures.optics import OPTICS_COLUMNS
from flightwatch.collectors.captures.port_counters import IDENTITY, MAPS
from flightwatch.core.protocols import CaptureContext, Note, Row, Value

PORTS_LIMIT = 20_000
_OWNED = re.compile(
    r"if(?:HC)?(?:In|Out)[A-Z]\w*|ifOperStatus|ifHighSpeed|(?:sonic|switch|cumulus|nvue|swss|onyx|arista)_.*|\w*SAI_(?:PORT|QUEUE|INGRESS)_\w+|(?:if|interface|port)_(?:in|out)_\w+"
    r"|\w*pfc\w*(?:rx|tx)\w*|\w*_transceiver_\w+|\w*transceiver_dom_\w+",
    re.IGNORECASE,
)
#: Interfaces of hosts are not switch ports: node_exporter's names keep their own map.
_NOT_OWNED = re.compile(r"(?:node|go|process|DCGM)_.*")
_PORT_LABELS = ("interface", "port", "ifname", "ifName", "name", "device", "port_name", "intf")
_SWITCH_LABELS = ("switch", "hostname", "host", "device_name", "node", "instance")
#: Words of a metric's name, all needed, to a counter column; the first that fits wins.
_COUNTERS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("in", "octets"), "rx_bytes_total"), (("out", "octets"), "tx_bytes_total"),
    (("rx", "bytes"), "rx_bytes_total"), (("tx", "bytes"), "tx_bytes_total"),
    (("received", "bytes"), "rx_bytes_total"), (("transmitted", "bytes"), "tx_bytes_total"),
    (("in", "errors"), "rcv_errors_total"), (("rx", "err"), "rcv_errors_total"),
    (("out", "discards"), "xmit_discards_total"), (("tx", "drop"), "xmit_discards_total"),
    (("symbol", "err"), "symbol_errors_total"), (("fec", "uncorrectable"), "fec_uncorrected_total"),
    (("fec", "not", "correctable"), "fec_uncorrected_total"), (("fec", "correctable"), "fec_corrected_total"),
    (("ecn", "marked"), "ecn_marked_total"), (("link", "down"), "link_downed_total"), (("flap",), "link_downed_total"),
)  # fmt: skip
_PACKETS = re.compile(r"(?:in|rx|received)_?(?:ucast|multicast|broadcast|unicast|non_ucast)?_?(?:pkts|packets)")
_PACKETS_OUT = re.compile(r"(?:out|tx|transmitted)_?(?:ucast|multicast|broadcast|unicast|non_ucast)?_?(?:pkts|packets)")
_SETTINGS = ("mtu", "pfc_enabled", "pfc_asym", "ecn_enabled", "fec_mode", "wred", "pfc_wd")
_SPEED = re.compile(r"(?:^|_)speed(?:_|$)")
_U64 = 2**64


@dataclass
class _SwitchPort:
    node: str | None
    name: str
    sums: dict[str, int] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    extra: dict[str, float] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    at_ms: int | None = None


class SonicMap:
    """Maps a switch exporter's metrics; one port a (switch, interface) pair."""

    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "port_samples": (
            *IDENTITY, "rx_bytes_total", "tx_bytes_total", "rx_packets_total", "tx_packets_total",
            "symbol_errors_total", "link_downed_total", "rcv_errors_total", "xmit_discards_total", "ecn_marked_total",
            "pfc_rx_pause_total", "pfc_tx_pause_total", "fec_corrected_total", "fec_uncorrected_total",
            *OPTICS_COLUMNS, "ber_ratio", *MAPS,
        ),
        "config_facts": ("name", "value"),
    }  # fmt: skip

    def __init__(self, context: CaptureContext, now_ms: int) -> None:
        self._context = context
        self._ports: dict[tuple[str | None, str], _SwitchPort] = {}
        self._without_port = 0

    @staticmethod
    def owns(name: str) -> bool:
        """Own names of switch exporters."""
        return _OWNED.fullmatch(name) is not None and _NOT_OWNED.fullmatch(name) is None

    def take(self, sample: Sample, family: Family) -> None:
        """Take one sample; samples without an interface label are counted and left out."""
        name = next((sample.labels[label] for label in _PORT_LABELS if sample.labels.get(label)), None)
        if name is None or port_number(name) is None or len(self._ports) >= PORTS_LIMIT or sample.value is None:
            self._without_port += 1
            return
        node = next((sample.labels[label] for label in _SWITCH_LABELS if sample.labels.get(label)
                     and sample.labels[label] != name), None)  # fmt: skip
        port = self._ports.setdefault((node, name), _SwitchPort(node.rsplit(":", 1)[0] if node else None, name))
        if sample.at_ms is not None:
            port.at_ms = clamp_ms(sample.at_ms)
        _take(port, sample, family)

    def finish(self) -> Iterator[Row | Note]:
        """Yield one port_samples row a port and the settings as config_facts."""
        for port in self._ports.values():
            node = port.node or self._context.node
            identity: dict[str, Value] = {"hca": "", "port": port_number(port.name), "link_layer": "Ethernet"}
            values = {**port.sums, **port.values, **identity, "ts": port.at_ms, "node": node}
            values |= {"extra": port.extra or None, "extra_counters": port.counters or None}
            yield make_row("port_samples", self.CARRIES, self._context, values)
            for name, value in port.facts.items():
                yield make_row(
                    "config_facts",
                    self.CARRIES,
                    self._context,
                    {"ts": port.at_ms, "node": node, "name": f"{port.name}.{name}", "value": value},
                )
        if self._without_port:
            yield Note("info", "", f"{self._without_port} switch samples name no port and were skipped")


def port_number(name: str) -> int | None:
    """Return the number of a switch port's name: Ethernet48 -> 48, swp12s1 -> 12, Eth1/5/1 -> 5, 0x1 -> None."""
    match = re.fullmatch(r"[A-Za-z-]*(\d{1,5})(?:s\d+)?", name) or re.fullmatch(
        r"[A-Za-z-]*\d{1,3}/(\d{1,5})(?:/\d+)?", name
    )
    return int(match[1]) if match and int(match[1]) < 65536 else None


def _take(port: _SwitchPort, sample: Sample, family: Family) -> None:
    name = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", sample.name.replace("HC", "")).lower()
    words = set(re.split(r"[_:]+", name))
    value = sample.value
    assert value is not None
    if any(setting in name for setting in _SETTINGS):
        port.facts[next(setting for setting in _SETTINGS if setting in name)] = f"{value:g}"
        return
    if any(word in words for word in ("temperature", "rxpower", "txpower", "rx", "tx", "power", "bias")) and _optics(
        port, name, words, float(value)
    ):
        return
    if ("oper" in words and "status" in words) or name.endswith("_up"):
        port.values["state"] = "ACTIVE" if value == 1 else "DOWN"
        return
    if _SPEED.search(name):
        port.values["rate_gbps"] = _gbps(name, float(value), family)
        return
    if not isinstance(value, int) or not 0 <= value < _U64:
        port.extra[f"switch.{name}"[:200]] = float(value)
        return
    column = _column(name, words)
    if column is None:
        suffix = "".join(f".{sample.labels[label]}" for label in ("queue", "priority", "pg") if label in sample.labels)
        port.counters[f"switch.{name}{suffix}"[:200]] = value
    else:
        port.sums[column] = min(port.sums.get(column, 0) + value, _U64 - 1)


def _column(name: str, words: set[str]) -> str | None:
    """Return the counter column a metric adds to; metrics of queues and durations have none."""
    if words & {"queue", "pg", "duration", "us", "watermark", "ratio", "utilization", "rate", "bps", "pps"}:
        return "ecn_marked_total" if "ecn" in words and "packets" in words else None
    if "pfc" in words:
        direction = "rx" if "rx" in words or "received" in words else "tx" if "tx" in words or "sent" in words else None
        return f"pfc_{direction}_pause_total" if direction else None
    for needed, column in _COUNTERS:
        if all(word in words or (len(word) > 3 and word in name) for word in needed):
            return column
    if _PACKETS.search(name):
        return "rx_packets_total"
    return "tx_packets_total" if _PACKETS_OUT.search(name) else None


def _optics(port: _SwitchPort, name: str, words: set[str], value: float) -> bool:
    """Take a transceiver reading; True when it was one. The weakest lane's power and the highest bias stay."""
    if "transceiver" not in words and "dom" not in words and "dbm" not in words and "optic" not in name:
        return False
    column, choose = None, min
    if "temperature" in words:
        column = "optics_temp_c"
    elif "bias" in name:
        column, choose = "optics_bias_ma", max
    elif "power" in name:
        column = "optics_rx_power_dbm" if re.search(r"rx|in", name) else "optics_tx_power_dbm"
    if column is None or not -60 <= value <= 2000:
        return False
    held = port.values.get(column)
    port.values[column] = choose(held, value) if isinstance(held, (int, float)) else value
    return True


def _gbps(name: str, value: float, family: Family) -> float | None:
    """Return Gbit/s of a speed in bit/s, byte/s, Mbit/s or Gbit/s, as the name says; None when it does not."""
    if "bytes" in name or family.unit == "bytes":
        return value * 8 / 1e9
    if "mbps" in name or "mbits" in name:
        return value / 1e3
    if "gbps" in name:
        return value
    if "bps" in name or "bits" in name or family.unit == "bits":
        return value / 1e9
    # Port speeds are at least 1 Gbit/s: a bare 100000 is Mbit/s (SONiC's database), a bare 1e11 is bit/s.
    return value / 1e9 if value >= 1e9 else value / 1e3 if value >= 1000 else None
