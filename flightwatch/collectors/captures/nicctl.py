"""`nicctl show port -j` and `nicctl show port statistics -j` (AMD Pensando): everything is printed as strings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO, ClassVar

from flightwatch.collectors.captures.base import head_text, load_json, make_row, to_float
from flightwatch.collectors.captures.ethtool import PORT_NAMES
from flightwatch.collectors.captures.port_counters import IDENTITY, MAPS, CounterNames, Counts
from flightwatch.collectors.captures.two_forms import objects
from flightwatch.core.protocols import CaptureContext, Note, Row, Value

_NAMES = CounterNames("nicctl", PORT_NAMES.choices, sums=PORT_NAMES.sums)


#: `show port statistics rate`: "33.16 Gbps", "3.83 Mpps".
_RATE = re.compile(r"[\d.]{1,20} ?[KMGT]?[bp]ps")


class NicctlParser:
    """Reads the JSON of `nicctl show port [statistics]`; adapters are told apart by their id."""

    name: ClassVar[str] = "nicctl-port-statistics"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "port_samples": (*IDENTITY, *_NAMES.columns, "optics_temp_c", *MAPS)
    }
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "port_samples.cnp_sent_total": "nicctl's port page has no RDMA counters; `rdma statistic` has them",
        "port_samples.optics_temp_c": "copper cables print 0, which is no temperature",
        "port_samples.rate_gbps": "only `show port` prints the speed",
    }

    def recognise(self, head: bytes) -> bool:
        """Say whether the head is an object with a list `nic`, each with a list `port`."""
        text = head_text(head).lstrip()
        return (
            text.startswith("{")
            and '"nic"' in text[:400]
            and '"port"' in text
            and ('"statistics"' in text or '"port_speed"' in text)
        )

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
        counts, rates = Counts(), False
        for part in ("statistics", "status"):
            for name, value in (port.get(part) or {}).items() if isinstance(port.get(part), dict) else ():
                if isinstance(value, str) and _RATE.fullmatch(value):
                    rates = True
                elif part == "statistics" or name.endswith("_events"):
                    counts.read(name, value, f"{where} {name}")
        known = _state(port.get("status"))
        if counts.numbers or known:
            identity = {"hca": hca, "port": number, "link_layer": "Ethernet", **known}
            yield make_row("port_samples", self.CARRIES, context, {**_NAMES.values(counts.numbers), **identity})
        elif rates:
            yield Note("info", where, "rates, not counters: not kept")
        else:
            yield Note("error", where, "the port has no statistics")
        yield from counts.notes


def _state(status: object) -> dict[str, Value]:
    """Return what `show port` says of a port: state, speed, temperature of its transceiver."""
    if not isinstance(status, dict):
        return {}
    found: dict[str, Value] = {}
    if isinstance(state := status.get("operational_status"), str) and state:
        found["state"] = state
    speed = re.fullmatch(r"(\d{1,4})G", str(status.get("port_speed")))
    if speed and found.get("state") == "UP":
        found["rate_gbps"] = float(speed[1])
    if temperature := to_float(str(status.get("transceiver_temperature"))):
        found["optics_temp_c"] = temperature
    return found
