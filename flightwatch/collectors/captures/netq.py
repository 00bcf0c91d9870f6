"""NetQ's topology graph (JSON): hosts, switches and their interfaces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, BinaryIO, ClassVar

from flightwatch.collectors.captures.base import head_text, load_json, make_row
from flightwatch.collectors.captures.two_forms import objects
from flightwatch.core.protocols import CaptureContext, Note, Row

_SWITCH = "switch"


class NetqParser:
    """Reads the answer of NetQ's topology-graph call."""

    name: ClassVar[str] = "netq-topology"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "inventory": ("hca", "leaf_switch", "attrs"),
        "links": ("from_target", "to_target", "kind"),
    }
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "inventory.leaf_switch": "the interface's peer is not a switch",
        "inventory.port": "NetQ names interfaces, not adapter ports",
    }

    def recognise(self, head: bytes) -> bool:
        """Say whether the head has NetQ's words for compounded links or tiers."""
        text = head_text(head).lstrip()
        return text[:1] in ("[", "{") and '"links"' in text[:2000] and (
            '"compounded_links"' in text or '"compounded_nodes"' in text)  # fmt: skip

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterable[Row | Note]:
        """Yield one inventory row a host interface and a switch, one link a cable."""
        document, notes = load_json(stream)
        yield from notes
        for graph in objects(document):
            nodes: dict[str, tuple[str, str]] = {}
            for entry in objects(graph.get("nodes")):
                _collect(entry, nodes)
            yield from self._links(graph, nodes, context)
            for name, kind in dict.fromkeys(nodes.values()):
                if kind == _SWITCH:
                    yield make_row("inventory", self.CARRIES, context, {"node": name, "attrs": {"part": "switch"}})
        if document is not None and not objects(document):
            yield Note("error", "", "the document holds no topology graph")

    def _links(
        self, graph: Mapping[str, Any], nodes: Mapping[str, tuple[str, str]], context: CaptureContext
    ) -> Iterator[Row | Note]:
        for index, link in enumerate(objects(graph.get("links"))):
            cables = objects(link.get("compounded_links")) or [link]
            for cable in cables:
                ends = [
                    (*nodes.get(str(end.get("node")), (str(end.get("node")), "")), str(end.get("interface") or ""))
                    for end in objects(cable.get("interfaces"))
                    if end.get("node")
                ]
                if len(ends) != 2:
                    yield Note("warning", f"links[{index}]", "the link does not have two ends and is left out")
                    continue
                yield from self._cable(ends, context)

    def _cable(self, ends: list[tuple[str, str, str]], context: CaptureContext) -> Iterator[Row]:
        ends.sort(key=lambda end: end[1] == _SWITCH)
        (low, low_kind, low_port), (high, high_kind, high_port) = ends
        if low_kind != _SWITCH:
            leaf = high if high_kind == _SWITCH else None
            yield make_row("inventory", self.CARRIES, context, {
                "node": low, "hca": low_port or None, "leaf_switch": leaf,
                "attrs": {"leaf_port": high_port} if high_port else None})  # fmt: skip
        targets = {"from_target": f"{low}/{low_port}".rstrip("/"), "to_target": f"{high}/{high_port}".rstrip("/")}
        yield make_row("links", self.CARRIES, context, {**targets, "kind": "ethernet"})


def _collect(entry: Mapping[str, Any], nodes: dict[str, tuple[str, str]], depth: int = 0) -> None:
    """Remember name and kind of each device; tiers hold devices."""
    inner = objects(entry.get("compounded_nodes"))
    if inner and depth < 8:
        for child in inner:
            _collect(child, nodes, depth + 1)
    elif isinstance(entry.get("id"), str):
        name = entry.get("name")
        kind = _SWITCH if entry.get("device_type") == _SWITCH else "host"
        nodes[entry["id"]] = (name if isinstance(name, str) and name else entry["id"], kind)
