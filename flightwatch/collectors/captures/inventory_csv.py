"""Inventory and links as CSV with a header: racks, slots, zones, switches, rails; anything else goes to attrs."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import BinaryIO, ClassVar

from flightwatch.collectors.captures.base import Lines, head_text, make_row
from flightwatch.collectors.captures.port_counters import shown
from flightwatch.core.clock import parse_iso_utc
from flightwatch.core.protocols import CaptureContext, Note, Row, Value

COLUMNS = ("device", "hca", "port", "model", "serial", "rack", "slot", "cooling_zone", "power_zone", "scale_up_domain",
           "leaf_switch", "rail", "plane", "attrs")  # fmt: skip
#: A header with `node` and one of these is an inventory; measurements never have them.
_TELLING = frozenset(("rack", "slot", "cooling_zone", "power_zone", "scale_up_domain", "leaf_switch", "rail", "plane"))
_NUMBERS = ("device", "port")
_LINKS = frozenset(("from_target", "to_target"))
_ALIASES = {"host": "node", "hostname": "node", "node_name": "node", "switch": "leaf_switch", "leaf": "leaf_switch",
            "nvlink_domain": "scale_up_domain", "serial_number": "serial", "gpu": "device"}  # fmt: skip


class InventoryCsvParser:
    """Reads CSV, semicolon or tab separated; empty cells are unknown."""

    name: ClassVar[str] = "inventory-csv"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "inventory": COLUMNS,
        "links": ("from_target", "to_target", "kind"),
    }
    NULL_NOTES: ClassVar[Mapping[str, str]] = {"inventory.rack": "the cell is empty or the file has no such column"}

    def recognise(self, head: bytes) -> bool:
        """Say whether the first line is the header of an inventory or of links."""
        header = _header(head_text(head).lstrip("\n").split("\n")[0])
        return ("node" in header and bool(_TELLING & set(header)) and "value" not in header) or set(header) >= _LINKS

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterable[Row | Note]:
        """Yield one row a line."""
        lines = Lines(stream)
        header: list[str] = []
        delimiter = ","
        for number, line in lines:
            if not line.strip() or line.startswith("#"):
                continue
            if not header:
                header, delimiter = _header(line), _delimiter(line)
                continue
            try:
                cells = next(csv.reader([line], delimiter=delimiter, strict=True), [])
            except csv.Error as error:
                yield Note("error", f"line {number}", f"not a CSV line: {error}")
                continue
            if len(cells) != len(header):
                yield Note(
                    "error", f"line {number}", f"{len(header)} cells expected, {len(cells)} found: {shown(line)}"
                )
                continue
            yield from self._row(dict(zip(header, cells, strict=True)), f"line {number}", context)
        if not header:
            yield Note("error", "offset 0", "the file is empty")
        yield from lines.notes

    def _row(self, cells: Mapping[str, str], where: str, context: CaptureContext) -> Iterator[Row | Note]:
        known = {name: text.strip() for name, text in cells.items() if text.strip()}
        if set(cells) >= _LINKS:
            if not set(known) >= _LINKS:
                yield Note("error", where, "a link needs both ends")
                return
            yield make_row("links", self.CARRIES, context,
                           {**{name: known[name] for name in _LINKS}, "kind": known.get("kind", "link")})  # fmt: skip
            return
        if "node" not in known:
            yield Note("error", where, "the line names no node")
            return
        values: dict[str, Value] = {"node": known.pop("node")}
        if "ts" in known:
            try:
                values["ts"] = parse_iso_utc(known.pop("ts"))
            except (ValueError, OverflowError):
                yield Note("error", where, "ts is not a time")
                return
        for name in _NUMBERS:
            if name in known:
                text = known.pop(name)
                if text.isascii() and text.isdigit() and int(text[:9]) < 65536 and len(text) < 6:
                    values[name] = int(text)
                else:
                    yield Note("error", where, f"{name} is not a number below 65536: {shown(text)}")
                    return
        values.update({name: known.pop(name) for name in COLUMNS if name in known and name != "attrs"})
        values["attrs"] = known or None
        yield make_row("inventory", self.CARRIES, context, values)


def _delimiter(line: str) -> str:
    return max(",;\t", key=line.count)


def _header(line: str) -> list[str]:
    cells: Sequence[str]
    try:
        cells = next(csv.reader([line], delimiter=_delimiter(line)), [])
    except csv.Error:
        return []
    names = [cell.strip().strip("\ufeff").lower().replace(" ", "_") for cell in cells]
    return [_ALIASES.get(name, name) for name in names]
