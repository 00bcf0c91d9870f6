"""What the detection loop reads: windows of tables, how far data has arrived, findings that are open."""

from __future__ import annotations

from collections.abc import Iterable

from flightwatch.core.catalogue import TABLES
from flightwatch.core.vocabulary import DATABASE, Lane

#: Tables of jobs beside those of the lanes of training.
_OF_JOBS = ("placements", "runs")
#: Tables that every shard reads whole.
_OF_ALL = ("inventory", "links", "config_facts")
#: Tables of samples, and what names a target in each.
SAMPLED = {
    "device_samples": "node, device", "node_samples": "node", "port_samples": "node, hca, port",
    "storage_samples": "node, target", "sensor_samples": "node, device, chip, label",
}  # fmt: skip

#: Types of readings and counters; narrower numbers say who or what.
_READINGS = ("f32", "f64", "u32", "u64")
#: Where a row came from is no reading.
_ORIGIN = ("src_partition", "src_offset")


def columns_of(table: str, wanted: Iterable[str]) -> tuple[str, ...]:
    """Return the columns of `table` to select; "*" stands for all readings, unknown names are left out."""
    names = set(wanted)
    every = "*" in names
    chosen = [
        c.name
        for c in TABLES[table].columns
        if c.name in names or (every and c.type in _READINGS and c.name not in _ORIGIN)
    ]
    return tuple(dict.fromkeys(("ts", *chosen)))


def window_sql(table: str, columns: Iterable[str], shards: int = 1) -> str:
    """Rows of a table with ts in (since, until]; placeholders since and until, with several shards also shard.

    With several shards the rows of one shard's jobs: of tables of jobs those whose job falls into it, of samples and
    events those of nodes on which such a job was placed and of no node; what exists and is configured is read whole.
    """
    listed = ", ".join(f"`{name}`" for name in columns)
    return f"SELECT {listed} {_window(table, shards)}"


def _window(table: str, shards: int) -> str:
    text = (
        f"FROM {DATABASE}.`{TABLES[table].name}` "
        "WHERE ts > {since:DateTime64(3, 'UTC')} AND ts <= {until:DateTime64(3, 'UTC')}"
    )
    if shards == 1:
        return text
    mine = jobs_of_shard("{shard:UInt32}", shards)
    if TABLES[table].lane in (Lane.OPS, Lane.SCALARS) or table in _OF_JOBS:
        return f"{text} AND {mine}"
    if table in _OF_ALL:
        return text
    return f"{text} AND (node = '' OR node IN (SELECT node FROM {DATABASE}.placements WHERE {mine}))"


def pace_sql(table: str, shards: int = 1) -> str:
    """How many rows and targets of each node `window_sql` reads of a table of samples, ordered by node.

    Placeholders as there.
    """
    return (
        f"SELECT node, count() AS rows, uniq({SAMPLED[table]}) AS targets {_window(table, shards)} "
        "GROUP BY node ORDER BY node"
    )


def of_nodes(text: str, is_last: bool) -> str:
    """Return a query of `window_sql` for nodes from `first` on, before `end` unless it is the last; both placeholders.

    Tables of samples are ordered by node: each such query reads its own part of them.
    """
    return f"{text} AND node >= {{first:String}}" + ("" if is_last else " AND node < {end:String}")


def thinned(text: str, interval_ms: int, every: int) -> str:
    """Return a query of `window_sql` that keeps one sampling interval in `every`, the same ones at each call."""
    bucket = interval_ms * every
    return f"{text} AND toUnixTimestamp64Milli(ts) % {bucket} >= {bucket - interval_ms}"


def jobs_of_shard(shard: int | str, shards: int) -> str:
    """Return the condition that tells which rows' jobs fall into a shard; `shard` is a number or a placeholder."""
    return "true" if shards == 1 else f"cityHash64(assumeNotNull(job)) % {int(shards)} = {shard}"


def arrival_sql(table: str) -> str:
    """When the newest row of a table arrived and how new it is, and how old what came after `mark` is.

    Placeholders: since bounds the partitions read, mark is the newest arrival known before.
    """
    return (
        "SELECT max(received_at) AS last_arrival, max(ts) AS last_ts, "
        "countIf(received_at > {mark:DateTime64(3, 'UTC')}) AS new_rows, "
        "minIf(ts, received_at > {mark:DateTime64(3, 'UTC')}) AS first_new_ts "
        f"FROM {DATABASE}.`{TABLES[table].name}` "
        "WHERE ts > {since:DateTime64(3, 'UTC')} HAVING count() > 0"
    )


def open_findings_sql(of_jobs: str = "true") -> str:
    """The last statement of each finding that is not cleared, and its earliest onset; placeholder since.

    `of_jobs` tells whose: see `jobs_of_shard`.
    """
    return (
        "SELECT * FROM (SELECT *, min(first_seen_at) OVER (PARTITION BY id) AS onset "
        f"FROM {DATABASE}.findings WHERE ts > {{since:DateTime64(3, 'UTC')}} AND (isNull(job) OR {of_jobs}) "
        "ORDER BY ts DESC, received_at DESC, src_offset DESC LIMIT 1 BY id) WHERE state != 'cleared'"
    )
