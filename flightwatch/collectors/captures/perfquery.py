"""`perfquery` (infiniband-diags): counters of an adapter's or a switch's ports, extended and error details."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO, ClassVar

from flightwatch.collectors.captures.base import Lines, head_text, make_row
from flightwatch.collectors.captures.port_counters import IDENTITY, MAPS, CounterNames, Counts, shown
from flightwatch.core.protocols import CaptureContext, Note, Row

NAMES = CounterNames(
    "perfquery",
    {
        "rx_bytes_total": ("PortRcvData", "RcvData"),
        "tx_bytes_total": ("PortXmitData", "XmtData"),
        "rx_packets_total": ("PortRcvPkts", "RcvPkts"),
        "tx_packets_total": ("PortXmitPkts", "XmtPkts"),
        "symbol_errors_total": ("SymbolErrorCounter", "SymbolErrors"),
        "link_recovered_total": ("LinkErrorRecoveryCounter", "LinkRecovers"),
        "link_downed_total": ("LinkDownedCounter", "LinkDowned"),
        "rcv_errors_total": ("PortRcvErrors", "RcvErrors"),
        "xmit_discards_total": ("PortXmitDiscards", "XmtDiscards"),
        "xmit_wait_total": ("PortXmitWait", "XmtWait"),
    },
    words=frozenset({"PortRcvData", "PortXmitData", "RcvData", "XmtData"}),
)
_HEADING = re.compile(r"# .{0,80}(?:counters|PortRcvErrorDetails).{0,80}?Lid (\d{1,6}) port (\d{1,4})", re.IGNORECASE)
_LINE = re.compile(r"([A-Za-z]\w*):\.*\s*(.*)")
_SELECTORS = ("PortSelect", "CounterSelect", "CounterSelect2")


class PerfqueryParser:
    """Reads `perfquery`, `perfquery -x`, `-a` and the error-detail pages, several ports in one file."""

    name: ClassVar[str] = "perfquery"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {"port_samples": (*IDENTITY, *NAMES.columns, *MAPS)}
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "port_samples.hca": "perfquery names a LID, kept in extra as perfquery.lid, and no adapter",
        "port_samples.rx_bytes_total": "error-detail pages print no traffic; an empty file is a failed query, not 0",
    }

    def recognise(self, head: bytes) -> bool:
        """Say whether the head has perfquery's heading or its dotted lines."""
        text = head_text(head)
        return bool(_HEADING.search(text)) or bool(re.search(r"^PortSelect:\.{3,}", text, re.MULTILINE))

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterable[Row | Note]:
        """Yield one port_samples row per port."""
        lines = Lines(stream)
        counts, lid, port, found = Counts(), None, None, False  # type: Counts, int | None, int | None, bool
        for number, line in lines:
            where = f"line {number}"
            if heading := _HEADING.match(line):
                yield from self._row(counts, lid, port, context)
                counts, lid, port, found = Counts(), int(heading[1][:9]), int(heading[2][:9]), True
            elif match := _LINE.match(line):
                if match[1] == "PortSelect":
                    if counts.numbers:
                        yield from self._row(counts, lid, port, context)
                        counts = Counts()
                    port, found = (int(match[2]) if match[2].isdecimal() and len(match[2]) < 6 else port), True
                elif match[1] not in _SELECTORS:
                    counts.read(match[1], match[2], where)
            elif line.strip() and not line.startswith("#"):
                yield Note("error", where, f"perfquery did not print this as a counter: {shown(line)}")
        yield from self._row(counts, lid, port, context)
        if not found:
            yield Note("error", "offset 0", "no port was captured: the query failed, which is not a reading of 0")
        yield from lines.notes

    def _row(self, counts: Counts, lid: int | None, port: int | None, context: CaptureContext) -> Iterator[Row | Note]:
        if counts.numbers:
            extra = None if lid is None else {"perfquery.lid": float(lid)}
            number = port if port is not None and port < 65536 else None
            identity = {"port": number, "link_layer": "InfiniBand", "extra": extra}
            yield make_row("port_samples", self.CARRIES, context, {**NAMES.values(counts.numbers), **identity})
        yield from counts.notes
