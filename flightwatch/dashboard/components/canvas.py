"""The console's own components, drawn on canvas by plain scripts in `assets/`.

Each is a Dash component whose browser half is `window.flightwatch_console.<Name>` (a React function component, no
build step). Arrays travel as base64 of their little-endian bytes. docs/console.md describes the properties.
"""

from __future__ import annotations

import base64
from typing import Any, ClassVar

import numpy as np
from dash.development.base_component import Component

NAMESPACE = "flightwatch_console"


def packed(values: Any, kind: str) -> str:
    """Return an array as base64; `kind` is a numpy type such as "<f4", "u1", "<u4". NaN is "unknown"."""
    return base64.b64encode(np.ascontiguousarray(values, dtype=np.dtype(kind)).tobytes()).decode("ascii")


class _Canvas(Component):  # type: ignore[misc]
    """A component whose properties are those of its class."""

    _children_props: ClassVar[list[str]] = []
    _base_nodes: ClassVar[list[str]] = ["children"]
    _namespace = NAMESPACE
    _properties: ClassVar[tuple[str, ...]] = ()

    def __init__(self, **properties: Any) -> None:
        self._prop_names = list(self._properties)
        self._valid_wildcard_attributes: list[str] = []
        self.available_properties = list(self._properties)
        self.available_wildcard_properties: list[str] = []
        super().__init__(**properties)


class FleetMap(_Canvas):
    """Up to 100,000 devices as coloured cells, in blocks.

    Properties: `layout` (blocks, nodes, devices: changes when the fleet changes), `values` (one number a device with
    its scale, flags and unit: changes with each refresh), `search` (nodes whose name holds it stay bright),
    `height` in pixels, `hovered` (written: node and device under the pointer or the keyboard's cell).
    """

    _type = "FleetMap"
    _properties = ("id", "layout", "values", "search", "height", "hovered")


class RankHeat(_Canvas):
    """Rows (ranks or groups of ranks) over columns (steps or groups of steps), binned by the server.

    Properties: `data` (rows, columns, values as base64 float32, labels, scale), `height`, `href` (a click on row r
    opens `href` with `{}` replaced by the row's first rank), `selected` (written: row and column).
    """

    _type = "RankHeat"
    _properties = ("id", "data", "height", "href", "selected")


class FlameGraph(_Canvas):
    """A flame graph of nested frames, optionally coloured by a difference.

    Properties: `frames` (names, parents, self and total weights as base64, optional `delta` in -1..1), `search`,
    `unit`, `height` (at least), `focus` (written: index of the frame zoomed to).
    """

    _type = "FlameGraph"
    _properties = ("id", "frames", "search", "unit", "height", "focus")


class SqlEditor(_Canvas):
    """An editor for one SELECT.

    Properties: `value` (written when it is run), `schema` (table to column names, for completion), `run` (written:
    counts up with Ctrl+Enter), `insert` (text to put in at the cursor, with a number that makes it new), `label`.
    """

    _type = "SqlEditor"
    _properties = ("id", "value", "schema", "run", "insert", "label", "height")
