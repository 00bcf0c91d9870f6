"""RDMA ports (InfiniBand, RoCE, Omni-Path, EFA) from /sys/class/infiniband: `port_samples`.

Facts this file stands on: `port_rcv_data` and `port_xmit_data` count 4-byte words; a port without a
performance agent answers "N/A (no PMA)"; 32-bit registers stop at 4294967295; every driver names its
hardware counters differently and leaves some out. Unreadable is NULL. PFC pause counters are not in
sysfs (they come from `ethtool -S`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flightwatch.collectors.environment import Environment
from flightwatch.collectors.tree import Tree, text, whole_number
from flightwatch.core.errors import NoData
from flightwatch.core.protocols import Note, Row, Value
from flightwatch.core.vocabulary import SATURATED_COUNTERS

ROOT = "sys/class/infiniband"

#: File below ports/N/counters to column, multiplier.
COUNTERS = {
    "port_rcv_data": ("rx_bytes_total", 4),
    "port_xmit_data": ("tx_bytes_total", 4),
    "port_rcv_packets": ("rx_packets_total", 1),
    "port_xmit_packets": ("tx_packets_total", 1),
    "symbol_error": ("symbol_errors_total", 1),
    "link_downed": ("link_downed_total", 1),
    "link_error_recovery": ("link_recovered_total", 1),
    "port_rcv_errors": ("rcv_errors_total", 1),
    "port_xmit_discards": ("xmit_discards_total", 1),
    "port_xmit_wait": ("xmit_wait_total", 1),
}
#: File below ports/N/counters_ext (64-bit twins of old drivers) to the 32-bit file it replaces when that is full.
EXTENDED = {
    "port_rcv_data_64": "port_rcv_data",
    "port_xmit_data_64": "port_xmit_data",
    "port_rcv_packets_64": "port_rcv_packets",
    "port_xmit_packets_64": "port_xmit_packets",
}
#: Hardware counter of any driver to column; also the names that `rdma statistic` prints.
HW_COUNTERS = {
    # mlx5
    "out_of_sequence": "out_of_sequence_total",
    "packet_seq_err": "packet_seq_err_total",
    "local_ack_timeout_err": "ack_timeout_total",
    "rnr_nak_retry_err": "rnr_nak_total",
    "roce_adp_retrans": "retransmits_total",
    "np_ecn_marked_roce_packets": "ecn_marked_total",
    "np_cnp_sent": "cnp_sent_total",
    "rp_cnp_handled": "cnp_handled_total",
    # bnxt_re
    "seq_err_naks_rcvd": "packet_seq_err_total",
    "rnr_naks_rcvd": "rnr_nak_total",
    "to_retransmits": "retransmits_total",
    "res_oos_drop_count": "out_of_sequence_total",
    "rx_ecn_marked_pkts": "ecn_marked_total",
    "tx_cnp_pkts": "cnp_sent_total",
    "rx_cnp_pkts": "cnp_handled_total",
    # irdma
    "RetransSegs": "retransmits_total",
    "tcpRetransSegs": "retransmits_total",
    "RxECNMrkd": "ecn_marked_total",
    "cnpSent": "cnp_sent_total",
    "cnpHandled": "cnp_handled_total",
    # ionic
    "rx_rdma_ecn_pkts": "ecn_marked_total",
    "tx_rdma_cnp_pkts": "cnp_sent_total",
    "rx_rdma_cnp_pkts": "cnp_handled_total",
    "resp_rx_outouf_seq": "out_of_sequence_total",
    "req_rx_pkt_seq_err": "packet_seq_err_total",
    "req_rx_rnr_retry_err": "rnr_nak_total",
    # efa
    "rx_bytes": "rx_bytes_total",
    "tx_bytes": "tx_bytes_total",
    "rx_pkts": "rx_packets_total",
    "tx_pkts": "tx_packets_total",
    "retrans_pkts": "retransmits_total",
}
#: hw_counters files that are settings, not counters.
_NOT_COUNTERS = ("lifespan",)
_U64_MAX = 2**64 - 1
#: Reads between two searches for new or vanished files.
REFRESH_EVERY = 60


class Port:
    """Where one port's values are; made once, read many times.

    Parameters
    ----------
    hca, number: adapter name and port number.
    tree: used to see which files exist.
    """

    def __init__(self, tree: Tree, hca: str, number: int) -> None:
        self.hca = hca
        self.number = number
        self.folder = f"{ROOT}/{hca}/ports/{number}"
        self.counters: list[tuple[str, str, int]] = []
        self.extra: list[tuple[str, str]] = []
        self.extended: list[tuple[str, str, int]] = []
        for name in tree.listdir(f"{self.folder}/counters"):
            path = f"{self.folder}/counters/{name}"
            if name in COUNTERS:
                self.counters.append((path, *COUNTERS[name]))
            else:
                self.extra.append((path, f"infiniband.{name}"))
        for name in tree.listdir(f"{self.folder}/counters_ext"):
            if name in EXTENDED:
                self.extended.append((f"{self.folder}/counters_ext/{name}", *COUNTERS[EXTENDED[name]]))
        for name in tree.listdir(f"{self.folder}/hw_counters"):
            path = f"{self.folder}/hw_counters/{name}"
            if name in HW_COUNTERS:
                self.counters.append((path, HW_COUNTERS[name], 1))
            elif name not in _NOT_COUNTERS:
                self.extra.append((path, f"infiniband.{name}"))

    def read(self, tree: Tree, ts: int | None, notes: list[Note] | None = None) -> Row:
        """Return the port's row; say in `notes` why values are NULL or doubtful."""
        folder = self.folder
        values: dict[str, Value] = {
            "ts": ts,
            "hca": self.hca,
            "port": self.number,
            "link_layer": text(tree.read(folder + "/link_layer")),
            "state": _state(tree.read(folder + "/state")),
            "rate_gbps": _rate(tree.read(folder + "/rate")),
        }
        for path, column, factor in self.counters:
            content = tree.read(path)
            value = _counter(content, factor)
            if value is not None:
                values[column] = value
            elif values.setdefault(column, None) is None and notes is not None:
                notes.append(Note("info", path, f"{column} is unknown: {_reason(content)}"))
        for path, column, factor in self.extended:
            if values.get(column) == SATURATED_COUNTERS[0]:
                value = _counter(tree.read(path), factor)
                values[column] = value if value is not None else SATURATED_COUNTERS[0]
        extra: dict[str, int] = {}
        for path, name in self.extra:
            value = _counter(tree.read(path), 1)
            if value is not None:
                extra[name] = value
        if extra:
            values["extra_counters"] = extra
        if notes is not None:
            notes.extend(
                Note("warning", folder, f"{column} is saturated at {value}")
                for column, value in values.items()
                if value in SATURATED_COUNTERS
            )
        return Row("port_samples", values)


def find_ports(tree: Tree) -> list[Port]:
    """Return all ports of all adapters, in order of name and number."""
    ports = []
    for hca in tree.listdir(ROOT):
        for number in tree.listdir(f"{ROOT}/{hca}/ports"):
            if number.isascii() and number.isdigit() and int(number) < 65536:
                ports.append(Port(tree, hca, int(number)))
    return ports


def read_infiniband(tree: Tree, ts: int | None = None) -> Iterator[Row | Note]:
    """Yield one `port_samples` row a port, and notes on what is NULL and why."""
    for port in find_ports(tree):
        notes: list[Note] = []
        yield port.read(tree, ts, notes)
        yield from notes


class InfinibandCollector:
    """RDMA port counters of this machine."""

    name = "infiniband"

    def __init__(self, environment: Environment) -> None:
        self.interval_seconds = environment.settings.sysfs_interval_seconds
        self._tree = environment.tree
        self._board = environment.ports
        self._ports: list[Port] = []
        self._reads = 0

    def collect(self, now_ms: int) -> Iterable[Row]:
        """Read every port once. Raises NoData when the machine has no RDMA adapter."""
        if not self._ports or self._reads % REFRESH_EVERY == 0:
            self._ports = find_ports(self._tree)
        self._reads += 1
        if not self._ports:
            raise NoData(f"no RDMA adapter in /{ROOT}")
        tree = self._tree
        rows = [port.read(tree, now_ms) for port in self._ports]
        for row in rows:
            self._board.complete(row, now_ms)
        return rows


def _counter(content: bytes | None, factor: int) -> int | None:
    value = whole_number(content)
    if value is None or value < 0 or value > _U64_MAX:
        return None
    # A full register stays recognisable: multiplied it would look like an ordinary value.
    if factor == 1 or value in SATURATED_COUNTERS:
        return value
    return value * factor if value * factor <= _U64_MAX else None


def _state(content: bytes | None) -> str | None:
    """Return "ACTIVE" of "4: ACTIVE"."""
    words = text(content)
    return words.split(":")[-1].strip() or None if words else None


def _rate(content: bytes | None) -> float | None:
    """Return 100.0 of "100 Gb/sec (4X EDR)"."""
    words = (text(content) or "").split()
    if len(words) < 2 or words[1] != "Gb/sec":
        return None
    try:
        rate = float(words[0])
    except ValueError:
        return None
    return rate if 0 <= rate < 1e6 else None


def _reason(content: bytes | None) -> str:
    if content is None:
        return "the file is absent or unreadable"
    if not content.strip():
        return "the file is empty"
    return f"the driver answers {text(content[:64]) or 'no text'!r}"
