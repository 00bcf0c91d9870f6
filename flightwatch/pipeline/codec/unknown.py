"""Columns unknown to this program: numbers go to the extra maps, the rest is counted and dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from flightwatch.core.catalogue import Table
from flightwatch.pipeline.codec import wire
from flightwatch.pipeline.codec.cells import MAX_EXACT_INT

if TYPE_CHECKING:
    from flightwatch.pipeline.codec.columns import Group, _Texts

_MAX_U64 = 2**64 - 1


def extra_name(column: str) -> str:
    """Return the name an unknown column gets in the extra maps, `<source>.<name>_<unit>`."""
    return column if "." in column else f"agent.{column}"


class Extras:
    """Entries to add to the extra maps: map name to row to entries."""

    def __init__(self) -> None:
        self.maps: dict[str, dict[int, dict[str, Any]]] = {"extra": {}, "extra_counters": {}}

    def add(self, row: int, name: str, value: float) -> None:
        """Put one number into the map that keeps it exact."""
        if type(value) is int and MAX_EXACT_INT < value <= _MAX_U64:
            self.maps["extra_counters"].setdefault(row, {})[name] = value
        else:
            self.maps["extra"].setdefault(row, {})[name] = float(value)

    def merged_into(self, name: str, array: pa.Array) -> pa.Array:
        """Return a map column with the entries added; what the row says itself under the same name stays."""
        added = self.maps[name]
        cells = [None if cell is None else dict(cell) for cell in array.to_pylist()]
        joined = [None if cell is None else list((added.get(row, {}) | cell).items()) for row, cell in enumerate(cells)]
        return pa.array(joined, array.type)


def absorb(
    extras: Extras, group: Group, table: Table, name: str, code: str, numbers: tuple[Any, Any] | None, texts: _Texts
) -> None:
    """Take one unknown column of a group: into the extra maps, or count it as dropped."""
    if "extra" not in table.column_names or code in ("?", "?n"):
        group.dropped[name] += group.rows
        return
    if numbers is not None:
        values, null = numbers
        cells = (
            values.tolist() if null is None else [None if n else v for v, n in zip(values.tolist(), null, strict=True)]
        )
    else:
        cells = texts.cells(name) if code == wire.CODE_JSON else [""] * group.rows
    for row, cell in enumerate(cells):
        if type(cell) in (int, float):
            extras.add(row, extra_name(name), cell)
        elif cell is not None:
            group.dropped[name] += 1
