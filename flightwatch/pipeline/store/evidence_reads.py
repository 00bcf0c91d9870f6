"""Rows around an incident: of its targets, of peers in the same role, of the rack or zone around them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from flightwatch.core.catalogue import TABLES
from flightwatch.core.vocabulary import DATABASE
from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.schema import arrow_schema

#: Columns that say where a row came from, not what was measured.
_ORIGIN = ("received_at", "src_partition", "src_offset", "cluster", "node")
_MOST_ROWS = 600
_AXES = ("tp", "pp", "cp", "vpp", "ep")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Rows of one table to pin.

    Attributes
    ----------
    role: target, peer or domain. devices: only these (with rows that name none); empty: all.
    ranks: for tables of jobs. every_seconds: one row of each target in so many seconds.
    """

    table: str
    role: str
    nodes: Sequence[str]
    every_seconds: int
    devices: Sequence[int] = ()
    job: str | None = None
    ranks: Sequence[int] = ()


def rows_around(store: Store, wanted: Wanted, since_ms: int, until_ms: int) -> list[dict[str, Any]]:
    """Return at most 600 rows in (since, until], thinned out evenly."""
    names = TABLES[wanted.table].column_names
    conditions = ["ts > {since:DateTime64(3, 'UTC')}", "ts <= {until:DateTime64(3, 'UTC')}"]
    parameters: dict[str, Any] = {"since": f"{since_ms / 1000:.3f}", "until": f"{until_ms / 1000:.3f}"}
    if wanted.ranks:
        conditions += ["job = {job:String}", "rank IN {ranks:Array(Int64)}"]
        parameters |= {"job": wanted.job or "", "ranks": list(wanted.ranks)}
    else:
        conditions.append("node IN {nodes:Array(String)}")
        parameters["nodes"] = list(wanted.nodes)
    if wanted.devices and "device" in names:
        conditions.append("(device IN {devices:Array(UInt16)} OR isNull(device))")
        parameters["devices"] = list(wanted.devices)
    keys = [name for name in ("node", "device", "hca", "port", "rank", "code") if name in names]
    listed = ", ".join(keys)
    return store.rows(
        f"SELECT * FROM {DATABASE}.{wanted.table} WHERE {' AND '.join(conditions)} ORDER BY {listed}, ts "
        f"LIMIT 1 BY {listed}, intDiv(toUnixTimestamp(ts), {int(wanted.every_seconds)}) LIMIT {_MOST_ROWS}",
        parameters,
    )


def role_peers(store: Store, job: str, node: str, rank: int | None, count: int = 2) -> list[tuple[str, int]]:
    """Return (node, rank) of ranks of a job in the same role as a rank (or as any rank of the node), elsewhere."""
    alike = " AND ".join(f"ifNull(p.{axis}, -1) = ifNull(t.{axis}, -1)" for axis in _AXES)
    own = "rank = {rank:Int64}" if rank is not None else "node = {node:String}"
    rows = store.rows(
        f"WITH (SELECT argMax(run, ts) FROM {DATABASE}.placements WHERE job = {{job:String}}) AS newest "
        "SELECT DISTINCT toString(p.node) AS node, toInt64(p.rank) AS rank "
        f"FROM {DATABASE}.placements AS p INNER JOIN (SELECT * FROM {DATABASE}.placements "
        f"WHERE job = {{job:String}} AND run = newest AND {own} ORDER BY ts DESC LIMIT 1) AS t ON p.job = t.job "
        f"WHERE p.job = {{job:String}} AND p.run = newest AND p.node != {{node:String}} AND {alike} "
        "ORDER BY rank LIMIT {count:UInt32}",
        {"job": job, "node": node, "count": count} | ({"rank": rank} if rank is not None else {}),
    )
    return [(str(row["node"]), int(row["rank"])) for row in rows]


def insert_evidence(
    store: Store,
    found: Sequence[tuple[str, str, Mapping[str, Any]]],
    incident: str,
    cluster: str,
    moment: str,
    version: int,
    token: str,
) -> None:
    """Store evidence of one moment as one block.

    Parameters
    ----------
    found: (role, source table, row). token: names this block; a repeat changes nothing.
    """
    rows = [
        {
            "ts": row["ts"], "cluster": cluster, "incident": incident, "moment": moment, "role": role,
            "node": row.get("node"), "source_table": table, "version": version,
            "row": json.dumps({name: value for name, value in row.items()
                               if name not in _ORIGIN and value is not None and value != {} and value != []},
                              default=str),
        }
        for role, table, row in found
    ]  # fmt: skip
    if rows:
        schema = arrow_schema("incident_evidence")
        store.insert_block("incident_evidence", pa.Table.from_pylist(rows, schema=schema), token)
