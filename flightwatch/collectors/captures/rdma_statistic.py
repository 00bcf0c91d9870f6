"""`rdma statistic` and `rdma link` (iproute2), as JSON (-j) or text: RoCE and InfiniBand counters per port.

Counter names differ by driver: mlx5, ionic (AMD, with its misspelt `resp_rx_outouf_seq`), bnxt_re, irdma, hns, efa.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO, ClassVar

from flightwatch.collectors.captures.base import head_text, make_row, to_int
from flightwatch.collectors.captures.port_counters import IDENTITY, MAPS, CounterNames, Counts, shown
from flightwatch.collectors.captures.two_forms import read_json_or_text
from flightwatch.core.protocols import CaptureContext, Note, Row, Value

#: Names by driver: mlx5, ionic (AMD Pensando), bnxt_re (Broadcom), irdma (Intel), efa (AWS).
RDMA_NAMES = CounterNames(
    "rdma",
    {
        "out_of_sequence_total": (
            "out_of_sequence", "resp_rx_outouf_seq", "resp_rx_outof_seq", "resp_rx_out_of_seq", "oos_drop_count",
            "rx_out_of_sequence",
        ),
        "packet_seq_err_total": ("packet_seq_err", "req_rx_pkt_seq_err", "seq_err_naks_rcvd"),
        "ack_timeout_total": ("local_ack_timeout_err", "retrans_timeout_events"),
        "rnr_nak_total": ("rnr_nak_retry_err", "req_rx_rnr_retry_err", "rnr_naks_rcvd"),
        "retransmits_total": ("roce_adp_retrans", "to_retransmits", "RetransSegs", "retrans_pkts"),
        "ecn_marked_total": ("np_ecn_marked_roce_packets", "rx_rdma_ecn_pkts", "rx_ecn_marked_pkts", "RxECNMrkd"),
        "cnp_sent_total": ("np_cnp_sent", "tx_rdma_cnp_pkts", "tx_cnp_pkts", "cnpSent"),
        "cnp_handled_total": ("rp_cnp_handled", "rx_rdma_cnp_pkts", "rx_cnp_pkts", "cnpHandled"),
        "rx_bytes_total": ("rx_rdma_ucast_bytes", "rx_bytes"),
        "tx_bytes_total": ("tx_rdma_ucast_bytes", "tx_bytes"),
        "rx_packets_total": ("rx_rdma_ucast_pkts", "rx_pkts"),
        "tx_packets_total": ("tx_rdma_ucast_pkts", "tx_pkts"),
    },
)  # fmt: skip
_LINK = re.compile(r"\s*(?:\d+/\d+:\s*)?link\s+([^\s/]+)(?:/(\d+|-))?\s*(.*)")
_NOT_COUNTERS = frozenset(("ifname", "port", "ifindex", "netdev", "netdev_index", "state", "physical_state"))
_PAIR = re.compile(r"([A-Za-z][\w.]*)\s+(\S+)")


class RdmaStatisticParser:
    """Reads `rdma statistic [show] [-j] [-p]` and `rdma link [-j]`."""

    name: ClassVar[str] = "rdma-statistic"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {"port_samples": (*IDENTITY, *RDMA_NAMES.columns, *MAPS)}
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "port_samples.state": "`rdma statistic` prints no state; `rdma link` does",
        "port_samples.out_of_sequence_total": "the driver has no such counter",
    }

    def recognise(self, head: bytes) -> bool:
        """Say whether the head is a list of objects with `ifname` and `port`, or lines that begin with `link`."""
        text = head_text(head).lstrip()
        if text.startswith(("[", "{")):
            start = text[:4096]
            return '"ifname"' in start and '"port"' in start and ('_err"' in text or '"physical_state"' in text
                                                                 or "_pkts" in text or "_requests" in text)  # fmt: skip
        lines = [line for line in text.split("\n")[:20] if line.strip()]
        return bool(lines) and all(re.match(r"\s*(?:\d+/\d+:\s*)?link\s+[^\s/]+/\S", line) or line.startswith("    ")
                                   for line in lines)  # fmt: skip

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterable[Row | Note]:
        """Yield one port_samples row per link."""
        documents, text, notes = read_json_or_text(stream)
        yield from notes
        for document in documents:
            entries = document if isinstance(document, list) else [document]
            others = [index for index, entry in enumerate(entries) if not isinstance(entry, dict)]
            for index, entry in enumerate(entries):
                if isinstance(entry, dict):
                    yield from self._entry(entry, f"entry {index}", context)
            if others:
                yield Note("error", f"entry {others[0]}", f"{len(others)} entries are not objects")
        yield from self._parse_text(text, context)

    def _entry(self, entry: Mapping[str, object], where: str, context: CaptureContext) -> Iterator[Row | Note]:
        name, port = entry.get("ifname"), entry.get("port")
        if not isinstance(name, str):
            yield Note("error", where, "the entry has no ifname")
            return
        counts = Counts()
        for key, value in entry.items():
            if key not in _NOT_COUNTERS:
                counts.read(key, value, f"{name} {key}")
        yield self._row(counts, name, port, entry.get("state"), context)
        yield from counts.notes

    def _parse_text(self, text: str, context: CaptureContext) -> Iterator[Row | Note]:
        current: tuple[str, str | None] | None = None
        counts, state = Counts(), None
        for number, line in enumerate(text.split("\n"), 1):
            if not line.strip():
                continue
            match = _LINK.match(line)
            if match:
                if current:
                    yield self._row(counts, *current, state, context)
                    yield from counts.notes
                current, line = (match[1], match[2]), match[3]
                counts, state = Counts(), None
            elif current is None:
                yield Note("error", f"line {number}", f"expected 'link NAME/PORT', found {shown(line)}")
                continue
            for key, value in _PAIR.findall(line):
                if key == "state":
                    state = value
                elif key not in _NOT_COUNTERS:
                    counts.read(key, value, f"line {number}")
        if current:
            yield self._row(counts, *current, state, context)
            yield from counts.notes

    def _row(self, counts: Counts, name: str, port: object, state: object, context: CaptureContext) -> Row:
        number = port if isinstance(port, int) else to_int(port) if isinstance(port, str) else None
        identity: dict[str, Value] = {
            "hca": name,
            "port": number if number is not None and 0 <= number < 65536 else None,
            "state": state if isinstance(state, str) else None,
        }
        return make_row("port_samples", self.CARRIES, context, {**RDMA_NAMES.values(counts.numbers), **identity})
