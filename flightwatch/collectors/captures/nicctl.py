"""`nicctl show port statistics -j` (AMD Pensando): port counters, printed as strings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO, ClassVar

from flightwatch.collectors.captures.base import head_text, load_json, make_row
from flightwatch.collectors.captures.ethtool import PORT_NAMES
from flightwatch.collectors.captures.port_counters import IDENTITY, MAPS, CounterNames, Counts
from flightwatch.collectors.captures.two_forms import objects
from flightwatch.core.protocols import CaptureContext, Note, Row

_NAMES = CounterNames("nicctl", PORT_NAMES.choices, sums=PORT_NAMES.sums)


class NicctlParser:
    """Reads the JSON of `nicctl show port statistics`; adapters are told apart by their id."""

    name: ClassVar[str] = "nicctl-port-statistics"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {"port_samples": (*IDENTITY, *_NAMES.columns, *MAPS)}
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "port_samples.cnp_sent_total": "nicctl's port page has no RDMA counters; `rdma statistic` has them",
    }

    def recognise(self, head: bytes) -> bool:
        """Say whether the head is an object with a list `nic`, each with a list `port`."""
        text = head_text(head).lstrip()
        return text.startswith("{") and '"nic"' in text[:400] and '"port"' in text and '"statistics"' in text

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterable[Row | Note]:
        """Yield one port_samples row per port; `hca` is the adapter's id."""
        document, notes = load_json(stream)
        yield from notes
        nics = objects(document.get("nic")) if isinstance(document, dict) else []
        if document is not None and not nics:
            yield Note("error", "nic", "the document has no list of adapters")
        for index, nic in enumerate(nics):
            identifier = nic.get("id")
            hca = identifier if isinstance(identifier, str) else None
            for number, port in enumerate(objects(nic.get("port")), 1):
                yield from self._port(hca, number, port, f"nic {index} port {number}", context)

    def _port(
        self, hca: str | None, number: int, port: Mapping[str, Any], where: str, context: CaptureContext
    ) -> Iterator[Row | Note]:
        counts = Counts()
        for part in ("statistics", "status"):
            for name, value in (port.get(part) or {}).items() if isinstance(port.get(part), dict) else ():
                if part == "statistics" or "number_of" in name or name.endswith("_events"):
                    counts.read(name, value, f"{where} {name}")
        if not counts.numbers:
            yield Note("error", where, "the port has no statistics")
        else:
            identity = {"hca": hca, "port": number, "link_layer": "Ethernet"}
            yield make_row("port_samples", self.CARRIES, context, {**_NAMES.values(counts.numbers), **identity})
        yield from counts.notes
