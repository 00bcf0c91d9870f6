"""Who is whose peer: ranks, their place in the cluster and their role in the job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from flightwatch.detectors.contract import Frames
from flightwatch.detectors.grouped import Groups

#: Axes along which ranks of one stage do equal work (tensor, then data parallel).
ROLE_AXES = ("pp", "module")
AXES = ("tp", "cp", "pp", "vpp", "dp", "dp_replicate", "dp_shard", "ep", "etp")
#: Fewer members than this are no peer group: own history only.
MINIMUM_PEERS = 4


@dataclass(frozen=True)
class Layout:
    """Placement and role of the ranks of one run.

    Attributes
    ----------
    ranks_R: global ranks, ascending.
    node_R, device_R, model_R: where each runs (None unknown; device -1 unknown).
    axis_R: coordinate per axis, -1 where the axis is absent.
    module_R: module of a multi-module model, None without.
    known: True when placements say the roles; False when ranks are only a list.
    domain: domain type ("rack", "leaf_switch", ...) to the name per rank, None unknown.
    """

    ranks_R: np.ndarray[Any, np.dtype[np.int64]]
    node_R: tuple[str | None, ...]
    device_R: np.ndarray[Any, np.dtype[np.int64]]
    model_R: tuple[str | None, ...]
    axis_R: dict[str, np.ndarray[Any, np.dtype[np.int64]]]
    module_R: tuple[str | None, ...]
    known: bool
    domain: dict[str, tuple[str | None, ...]]
    _known_groups: dict[object, Groups] = field(default_factory=dict, repr=False, compare=False)

    def role_groups(self, *extra: str) -> Groups:
        """Group ranks that do equal work: same stage, module and model, plus the axes in `extra`.

        Context-parallel ranks share a causal mask unequally: they are kept apart where that leaves
        at least `MINIMUM_PEERS` in every group.
        """
        return self._once(("role", extra), lambda: self._role_groups(extra))

    def _role_groups(self, extra: tuple[str, ...]) -> Groups:
        base = self._labels(ROLE_AXES + extra)
        finer = Groups.from_labels([*zip(base, self.axis_R["cp"].tolist(), strict=True)])
        if len(finer.size_G) and finer.size_G.min() >= MINIMUM_PEERS:
            return finer
        return Groups.from_labels(base)

    def groups_by(self, *axes: str) -> Groups:
        """Group ranks by equal coordinates on `axes`."""
        return self._once(("by", axes), lambda: Groups.from_labels(self._labels(axes)))

    def everyone(self) -> Groups:
        """Put all ranks into one group."""
        return self._once("everyone", lambda: Groups.from_labels([0] * len(self.ranks_R)))

    def communication_groups(self, axis: str) -> Groups:
        """Group ranks that talk to each other along `axis`: equal in all other coordinates."""
        others = tuple(name for name in AXES if name != axis and (self.axis_R[name] >= 0).any())
        if axis == "dp":
            others = tuple(name for name in others if name not in ("dp_replicate", "dp_shard", "ep", "etp"))
        return self._once(("talk", axis), lambda: Groups.from_labels(self._labels((*others, "module"))))

    def _once(self, key: object, make: Callable[[], Groups]) -> Groups:
        """Group once: a layout is kept between cycles, and labels of 100,000 ranks take a while."""
        if key not in self._known_groups:
            self._known_groups[key] = make()
        return self._known_groups[key]

    def _labels(self, axes: tuple[str, ...]) -> list[object]:
        columns: list[list[Any]] = [list(self.model_R)]
        for axis in axes:
            columns.append(list(self.module_R) if axis == "module" else self.axis_R[axis].tolist())
        return [*zip(*columns, strict=True)]

    def positions_by(self, names_R: tuple[str | None, ...]) -> dict[str, list[int]]:
        """Return rank positions per name, leaving unknown names out."""
        found: dict[str, list[int]] = {}
        for position, name in enumerate(names_R):
            if name is not None:
                found.setdefault(name, []).append(position)
        return found


def build_layout(
    frames: Frames, job: str | None, run: str | None, ranks_R: np.ndarray[Any, np.dtype[np.int64]], rows: pd.DataFrame
) -> Layout:
    """Join placements, inventory and device samples for the ranks of one run.

    Parameters
    ----------
    rows: one row per rank of `rank_steps` (columns rank, and node and device where known), which
        says where a rank runs when placements do not.
    """
    place = _placement_of(frames.get("placements"), job, run)
    known = place is not None and bool(place.index.isin(ranks_R).any())
    table = (place if place is not None else pd.DataFrame()).reindex(ranks_R)
    own = rows.drop_duplicates("rank", keep="last").set_index("rank").reindex(ranks_R)
    node_R = tuple(_first(a, b) for a, b in zip(_words(table, "node"), _words(own, "node"), strict=True))
    device = _numbers(table, "device")
    device = np.where(device >= 0, device, _numbers(own, "device"))
    axis_R = {axis: _numbers(table, axis) for axis in AXES}
    if (axis_R["dp"] < 0).all() and (axis_R["dp_shard"] >= 0).any():
        axis_R["dp"] = np.maximum(axis_R["dp_replicate"], 0) * 100_000 + axis_R["dp_shard"]
    model_R = _models(frames, node_R, device)
    return Layout(
        ranks_R, node_R, device, model_R, axis_R, tuple(_words(table, "module")), known, _domains(frames, node_R)
    )


def _placement_of(placements: pd.DataFrame | None, job: str | None, run: str | None) -> pd.DataFrame | None:
    if placements is None or placements.empty or "rank" not in placements:
        return None
    rows = placements
    for column, wanted in (("job", job), ("run", run)):
        if column in rows and wanted is not None and rows[column].notna().any():
            rows = rows[(rows[column] == wanted) | rows[column].isna()]
    if rows.empty:
        return None
    if "ts" in rows:
        rows = rows.sort_values("ts", kind="stable", na_position="first")
    return rows.dropna(subset=["rank"]).drop_duplicates("rank", keep="last").set_index("rank")


def _words(table: pd.DataFrame, column: str) -> list[str | None]:
    if column not in table:
        return [None] * len(table)
    return [None if value is None or value != value else str(value) for value in table[column].tolist()]


def _numbers(table: pd.DataFrame, column: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    if column not in table:
        return np.full(len(table), -1, dtype=np.int64)
    values = pd.to_numeric(table[column], errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    return np.where(np.isfinite(values), values, -1).astype(np.int64)


def _first(a: str | None, b: str | None) -> str | None:
    return a if a is not None else b


def _models(
    frames: Frames, node_R: tuple[str | None, ...], device_R: np.ndarray[Any, np.dtype[np.int64]]
) -> tuple[str | None, ...]:
    """Model of each rank's device, from the inventory or else from device samples."""
    # Where models are not told, vendors are: devices of two of them are no peers either.
    for table, column in (("inventory", "model"), ("device_samples", "model"), ("device_samples", "vendor")):
        rows = frames.get(table)
        if rows is None or rows.empty or not {"node", "device", column} <= set(rows.columns):
            continue
        rows = rows[["node", "device", column]].dropna().drop_duplicates(["node", "device"], keep="last")
        if rows.empty:
            continue
        keys = zip(rows["node"].astype(object), rows["device"].astype(float), rows[column].astype(object), strict=True)
        named = {(str(node), int(device)): str(model) for node, device, model in keys}
        models = [named.get((str(node), int(dev))) for node, dev in zip(node_R, device_R.tolist(), strict=True)]
        if all(model is not None for model in models):
            return tuple(models)
    return (None,) * len(node_R)


def _domains(frames: Frames, node_R: tuple[str | None, ...]) -> dict[str, tuple[str | None, ...]]:
    """Rack, zones and switch of each rank's node, from the inventory."""
    found: dict[str, tuple[str | None, ...]] = {}
    for kind in ("rack", "cooling_zone", "power_zone", "leaf_switch"):
        of_node = domain_of_nodes(frames, kind)
        if of_node:
            found[kind] = tuple(None if node is None else of_node.get(node) for node in node_R)
    return found


def domain_of_nodes(frames: Frames, kind: str) -> dict[str, str]:
    """Return node to the name of its domain of type `kind`; the newest inventory row wins."""
    rows = frames.get("inventory")
    if rows is None or rows.empty or "node" not in rows or kind not in rows:
        return {}
    rows = rows.dropna(subset=["node", kind])
    if "ts" in rows:
        rows = rows.sort_values("ts", kind="stable", na_position="first")
    last = rows.drop_duplicates("node", keep="last")
    return {str(node): str(name) for node, name in zip(last["node"], last[kind], strict=True)}
