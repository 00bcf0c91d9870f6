"""`ibnetdiscover`: the topology file (Switch and Ca blocks) and the port list (-p), whole or cut.

A host adapter's leaf switch is known from either side: from the switch's block, or from the adapter's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO, ClassVar

from flightwatch.collectors.captures.base import Lines, head_text, make_row
from flightwatch.collectors.captures.port_counters import shown
from flightwatch.core.protocols import CaptureContext, Note, Row

_BLOCK = re.compile(r'(Switch|Ca|Rt)\s+(\d{1,4})\s+"([^"]+)"\s*#\s*"([^"]*)"(.*)')
_PORT = re.compile(r'\[(\d{1,5})\](?:\(([0-9a-fA-F]+)\))?\s+"([^"]+)"\[(\d{1,5})\](?:\(([0-9a-fA-F]+)\))?\s*#\s*(.*)')
_LIST = re.compile(
    r"(CA|SW|RT)\s+(\d{1,9})\s+(\d{1,9})\s+(0x[0-9a-fA-F]+)\s+(\S+)\s+(\S+)(?:\s+-\s+(CA|SW|RT)\s+(\d{1,9})\s+(\d{1,9})\s+(0x[0-9a-fA-F]+))?"
    r"\s+(?:\(\s*)?'([^']*)'(?:\s*-\s*'([^']*)'\s*\))?"
)
_LARGEST_PORT = 65_535
_PORT_NUMBER = re.compile(r"(?<=\[)\d{5,9}(?=\])|(?<=\s)\d{5,9}(?=\s+0x)")
_RATE = re.compile(r"\b(\d{1,2}x\s?[A-Z]{2,4}\d*)\b")
_PREAMBLE = re.compile(r"(?:#.*|(?:vendid|devid|sysimgguid|switchguid|caguid|rtguid)=.*|\s*)$")
#: In-network computing units of switches answer as adapters and are no hosts.
_NOT_A_HOST = re.compile(r"Aggregation Node", re.IGNORECASE)


@dataclass(frozen=True)
class End:
    """One end of a link.

    Attributes
    ----------
    kind: "switch" or "host".
    name: switch name, or host name; hca: adapter of a host.
    """

    kind: str
    name: str
    hca: str
    port: int
    guid: str = ""

    @property
    def target(self) -> str:
        """Name of the end in `links`."""
        return f"{self.name}/{self.port}" if self.kind == "switch" else f"{self.name}/{self.hca}/{self.port}"


def describe(text: str, kind: str, guid: str, port: int) -> End:
    """Return an end from its node description ("MF0;leaf-01:MQM9700/U1", "host-3 mlx5_0", "o0001 HCA-1")."""
    if kind == "switch":
        match = re.match(r"(?:MF0;)?([^:]+)(?::[^/]*(?:/(.*))?)?$", text.strip())
        name = match[1].strip() if match else text.strip()
        # A director's lines and spines are switches of their own; a one-box switch is always U1.
        part = match[2] if match and match[2] and match[2] != "U1" else ""
        return End("switch", f"{name}/{part}" if part else name or guid, "", port, guid)
    words = text.split()
    return End("host", words[0] if words else guid, " ".join(words[1:]) or "unknown", port, guid)


class IbnetdiscoverParser:
    """Reads both forms of ibnetdiscover."""

    name: ClassVar[str] = "ibnetdiscover"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "inventory": ("hca", "port", "model", "leaf_switch", "attrs"),
        "links": ("from_target", "to_target", "kind"),
    }
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "inventory.leaf_switch": "the port has no peer, or its peer is not a switch",
        "inventory.rail": "the fabric does not know rails; a CSV or Kubernetes labels do",
    }

    def recognise(self, head: bytes) -> bool:
        """Say whether the head has a switch or adapter block, or a line of the port list."""
        text = head_text(head)
        return bool(re.search(r'^(?:Switch|Ca|Rt)\s+\d+\s+"', text, re.MULTILINE)) or any(
            _LIST.match(line) for line in text.split("\n")[:20]
        )

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterable[Row | Note]:
        """Yield one inventory row a host port (and a switch), one link a cable."""
        lines = Lines(stream)
        seen: set[frozenset[str]] = set()
        ports: dict[str, tuple[End, str | None, str]] = {}
        switches: dict[str, str] = {}
        block: tuple[str, str] | None = None
        notes: list[Note] = []
        links: list[Row] = []
        for number, line in lines:
            where = f"line {number}"
            if match := _BLOCK.match(line):
                block = ("switch" if match[1] == "Switch" else "host", match[4])
                if match[1] == "Switch":
                    switches[describe(match[4], "switch", match[3], 0).name] = _model(match[4])
            elif any(int(port) > _LARGEST_PORT for port in _PORT_NUMBER.findall(line)):
                yield Note("error", where, f"no port has this number: {shown(line)}")
            elif match := _LIST.match(line):
                ends, rate = _list_ends(match)
                switches.update((end.name, "") for end in ends if end.kind == "switch" and end.name not in switches)
                if len(ends) == 1:
                    notes.append(Note("info", where, f"port {ends[0].target} has no peer ({match[5]} {match[6]})"))
                links.extend(self._link(ends, rate, seen, ports, context))
            elif match := _PORT.match(line):
                if block is None:
                    yield Note("error", where, f"a port stands before any switch or adapter: {shown(line)}")
                    continue
                links.extend(self._link(_block_ends(match, block), _rate(match[6]), seen, ports, context))
            elif not _PREAMBLE.match(line):
                yield Note("error", where, f"not a line of ibnetdiscover: {shown(line)}")
        if ports and not switches:
            yield Note("warning", "", "adapters are listed and no switch is: the topology is empty")
            return
        yield from self._inventory(ports, switches, context)
        yield from links
        yield from notes[:20]
        if not ports and not switches:
            yield Note("error", "", "no switch and no adapter was found")
        yield from lines.notes

    def _link(
        self, ends: list[End], rate: str, seen: set[frozenset[str]],
        ports: dict[str, tuple[End, str | None, str]], context: CaptureContext,
    ) -> Iterator[Row]:  # fmt: skip
        ends = [end for end in ends if not (end.kind == "host" and _NOT_A_HOST.search(f"{end.name} {end.hca}"))]
        for end in ends:
            if end.kind == "host":
                peer = next((other.name for other in ends if other is not end and other.kind == "switch"), None)
                known = ports.get(end.target)
                if known is None or known[1] is None:
                    ports[end.target] = (end, peer, rate)
        if len(ends) == 2:
            key = frozenset(end.target for end in ends)
            if key not in seen:
                seen.add(key)
                low, high = sorted(ends, key=lambda end: end.kind)
                yield make_row("links", self.CARRIES, context,
                               {"from_target": low.target, "to_target": high.target, "kind": "infiniband"})  # fmt: skip

    def _inventory(
        self, ports: Mapping[str, tuple[End, str | None, str]], switches: Mapping[str, str], context: CaptureContext
    ) -> Iterator[Row]:
        for end, leaf, rate in ports.values():
            attrs = {key: value for key, value in (("guid", end.guid), ("rate", rate)) if value}
            yield make_row(
                "inventory",
                self.CARRIES,
                context,
                {"node": end.name, "hca": end.hca, "port": end.port, "leaf_switch": leaf, "attrs": attrs},
            )
        for name, model in switches.items():
            yield make_row("inventory", self.CARRIES, context,
                           {"node": name, "model": model or None, "attrs": {"part": "switch"}})  # fmt: skip


def _block_ends(match: re.Match[str], block: tuple[str, str]) -> list[End]:
    """Return both ends of a port line: the block's own port and the peer it names."""
    own_port, own_guid, peer_id, peer_port, peer_guid, comment = match.groups()
    own = describe(block[1], block[0], own_guid or "", int(own_port))
    texts = re.findall(r'"([^"]*)"', comment)
    peer_kind = "switch" if peer_id.startswith("S-") else "host"
    peer_text = texts[0] if texts else peer_id
    return [own, describe(peer_text, peer_kind, peer_guid or peer_id[2:], int(peer_port))]


def _list_ends(match: re.Match[str]) -> tuple[list[End], str]:
    kinds = {"CA": "host", "RT": "host", "SW": "switch"}
    ends = [describe(match[11], kinds[match[1]], match[4], int(match[3]))]
    if match[7]:
        ends.append(describe(match[12] or match[10], kinds[match[7]], match[10], int(match[9])))
    return ends, f"{match[5]}{match[6]}"


def _rate(comment: str) -> str:
    match = _RATE.search(comment)
    return match[1] if match else ""


def _model(text: str) -> str:
    match = re.search(r":([^/:]+)", text)
    return match[1] if match else ""
