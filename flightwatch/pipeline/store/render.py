"""One migration template, two renderings: a single engine, or a cluster of replicated shards.

Macros of a template:

`@database@`            the database, with ON CLUSTER in a cluster
`@table(NAME)@`         name of a table in CREATE, `NAME_local` ON CLUSTER in a cluster, where a Distributed
                        table NAME over it follows by itself
`@view(NAME)@`          name of a view in CREATE
`@local(NAME)@`         name of the table that holds rows, to read from and write to inside materialized views
`@read(NAME)@`          name of the table that sees all shards
`@columns(NAME)@`       column definitions from the catalogue with their codecs
`@merge@ @replacing(VERSION)@ @aggregating@`  table engines
`@ttl(NAME)@`           TTL clause from the settings, empty when rows are kept
`@gauges(TABLE, A, B)@ @gauge_states(TABLE, A, B)@`      count, sum, min, max of gauges in a rollup; what fills them
`@counters(TABLE, A, B)@ @counter_states(TABLE, A, B)@`  first and last value of counters; what fills them
`@latest_columns(NAME)@ @latest_keys(NAME)@ @latest_select(NAME)@`  a table of newest rows (layout.LATEST), its
                        sorting key, and the SELECT that fills it
`@rate_inputs(TABLE, A, B)@ @rates(TABLE, A, B)@`  earlier readings of counters; deltas and rates from them
`@settings@`            deduplication window, durability, whole-part expiry
`@settings_rowwise@`    the same, for tables whose rows expire one by one
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flightwatch.core.catalogue import TABLES
from flightwatch.core.vocabulary import DATABASE, SATURATED_COUNTERS
from flightwatch.pipeline.store.layout import LATEST, column_list, ttl_expression
from flightwatch.pipeline.store.settings import StoreSettings

#: Blocks whose tokens a table remembers. Ingest trusts a token inside half of it.
DEDUPLICATION_WINDOW = 10_000
_DEDUPLICATION_SECONDS = 7 * 86_400
_MACRO = re.compile(r"@(\w+)(?:\(([\w ,]*)\))?@")
_CREATED = re.compile(r"@table\((\w+)\)@")


def _gauges(table: str, names: list[str]) -> str:
    return ",\n  ".join(
        f"{name}_n SimpleAggregateFunction(sum, UInt64), {name}_sum SimpleAggregateFunction(sum, Float64),"
        f" {name}_min SimpleAggregateFunction(min, {kind}), {name}_max SimpleAggregateFunction(max, {kind})"
        for name in names
        for kind in [TABLES[table].column(name).clickhouse_type]
    )


def _gauge_states(_: str, names: list[str]) -> str:
    return ",\n  ".join(
        f"count({name}) AS {name}_n, toFloat64(ifNull(sum({name}), 0)) AS {name}_sum,"
        f" min({name}) AS {name}_min, max({name}) AS {name}_max"
        for name in names
    )


def _counters(table: str, names: list[str]) -> str:
    return ",\n  ".join(
        f"{name}_first AggregateFunction(argMin, {kind}, DateTime64(3, 'UTC')),"
        f" {name}_last AggregateFunction(argMax, {kind}, DateTime64(3, 'UTC'))"
        for name in names
        for kind in [TABLES[table].column(name).clickhouse_type]
    )


def _counter_states(_: str, names: list[str]) -> str:
    return ",\n  ".join(
        f"argMinState({name}, ts) AS {name}_first, argMaxState({name}, ts) AS {name}_last" for name in names
    )


def _latest_columns(latest: str, _: list[str]) -> str:
    source, _keys = LATEST[latest]
    listed = ",\n  ".join(f"`{column.name}` {column.clickhouse_type}" for column in TABLES[source].columns)
    return f"(\n  {listed},\n  version UInt128\n)"


def _rate_inputs(_: str, names: list[str]) -> str:
    # The newest earlier reading, however many rows without one lie between.
    return ",\n    ".join(
        f"anyLast({name}) OVER earlier AS {name}_before, anyLastIf(toNullable(ts), isNotNull({name})) OVER earlier"
        f" AS {name}_at"
        for name in names
    )


def _rates(_: str, names: list[str]) -> str:
    """Write delta and rate of each counter, and which of them are only lower bounds.

    A decrease is a reset: what was counted since is at least the new value. A register at its maximum
    counts no further: the step up to it is a lower bound, and nothing is known after it.
    """
    full = "({})".format(", ".join(str(value) for value in SATURATED_COUNTERS))
    parts, bounds = [], []
    for name in names:
        base = name.removesuffix("_total")
        now, before = name, f"{name}_before"
        stuck = f"{before} IN {full} AND {now} >= {before}"
        delta = (
            f"multiIf(isNull({now}) OR isNull({before}) OR ({stuck}), NULL, {now} < {before}, {now}, {now} - {before})"
        )
        kind = "Float64" if name == "energy_j_total" else "UInt64"
        parts.append(f"CAST({delta}, 'Nullable({kind})') AS {base}_delta")
        parts.append(f"{base}_delta * 1000 / nullIf(dateDiff('millisecond', {name}_at, ts), 0) AS {base}_per_s")
        bounds.append(f"if(isNotNull({base}_delta) AND ({now} < {before} OR {now} IN {full}), '{base}', '')")
    listed = ", ".join(bounds)
    return ",\n  ".join(parts) + f",\n  arrayFilter(name -> name != '', [{listed}]) AS at_least"


def _versionless(latest: str, _: list[str]) -> str:
    return ", ".join(f"`{column.name}`" for column in TABLES[LATEST[latest][0]].columns)


def latest_select(latest: str, suffix: str) -> str:
    """Return the SELECT of the materialized view that feeds a table of newest rows.

    The version orders rows of one target: measurement time, then bus offset. A clock that is ahead would
    win for as long as it is ahead, so the broker's time is the upper limit.
    """
    source, _ = LATEST[latest]
    columns = ", ".join(f"`{column.name}`" for column in TABLES[source].columns)
    clamped = "greatest(least(toUnixTimestamp64Milli(ts), toUnixTimestamp64Milli(received_at)), 0)"
    return (
        f"SELECT {columns},\n  bitShiftLeft(toUInt128({clamped}), 64) + src_offset AS version\n"
        f"FROM {DATABASE}.{source}{suffix}"
    )


_LISTS = {
    "gauges": _gauges,
    "gauge_states": _gauge_states,
    "counters": _counters,
    "counter_states": _counter_states,
    "latest_columns": _latest_columns,
    "latest_names": _versionless,
    "rate_inputs": _rate_inputs,
    "rates": _rates,
}


class Renderer:
    """Turns a template into statements.

    Parameters
    ----------
    settings: retention.
    cluster: name of the ClickHouse cluster; empty for a single engine.
    """

    def __init__(self, settings: StoreSettings, cluster: str = "") -> None:
        self._settings = settings
        self._cluster = cluster
        self._suffix = "_local" if cluster else ""
        self._on_cluster = f" ON CLUSTER '{cluster}'" if cluster else ""

    def statements(self, template: str) -> Iterator[str]:
        """Yield the statements of a template, one at a time: servers refuse several in one request."""
        text = "\n".join(line for line in template.splitlines() if not line.startswith("--"))
        for part in re.split(r"^;\s*$", text, flags=re.MULTILINE):
            statement = part.strip()
            if not statement:
                continue
            yield _MACRO.sub(self._expand, statement)
            created = _CREATED.search(statement)
            if created and self._cluster:
                yield self._distributed(created[1])

    def _distributed(self, name: str) -> str:
        return (
            f"CREATE TABLE IF NOT EXISTS {DATABASE}.{name}{self._on_cluster} AS {DATABASE}.{name}_local"
            f" ENGINE = Distributed('{self._cluster}', '{DATABASE}', '{name}_local')"
        )

    def _expand(self, match: re.Match[str]) -> str:
        macro, argument = match[1], match[2] or ""
        if macro == "database":
            return f"{DATABASE}{self._on_cluster}"
        if macro == "people":
            return f"{DATABASE}_people{self._on_cluster}"
        if macro == "table":
            return f"{DATABASE}.{argument}{self._suffix}{self._on_cluster}"
        if macro == "view":
            return f"{DATABASE}.{argument}{self._on_cluster}"
        if macro == "local":
            return f"{DATABASE}.{argument}{self._suffix}"
        if macro == "read":
            return f"{DATABASE}.{argument}"
        if macro == "columns":
            return f"(\n  {column_list(TABLES[argument])}\n)"
        if macro == "ttl":
            expression = ttl_expression(argument, self._settings)
            return "" if expression is None else f"TTL {expression}"
        if macro in ("settings", "settings_rowwise"):
            return self._table_settings(whole_parts=macro == "settings")
        if macro == "latest_select":
            return latest_select(argument, self._suffix)
        if macro == "latest_keys":
            return LATEST[argument][1]
        if macro in _LISTS:
            first, *rest = argument.replace(" ", "").split(",")
            return _LISTS[macro](first, rest)
        return self._engine(macro, argument)

    def _engine(self, macro: str, version: str) -> str:
        name = {"merge": "MergeTree", "replacing": "ReplacingMergeTree", "aggregating": "AggregatingMergeTree"}[macro]
        arguments = [version] if version else []
        if self._cluster:
            name = f"Replicated{name}"
            arguments = ["'/clickhouse/tables/{shard}/{database}/{table}'", "'{replica}'", *arguments]
        return f"{name}({', '.join(arguments)})" if arguments else name

    def _table_settings(self, *, whole_parts: bool) -> str:
        if self._cluster:
            values = [
                f"replicated_deduplication_window = {DEDUPLICATION_WINDOW}",
                f"replicated_deduplication_window_seconds = {_DEDUPLICATION_SECONDS}",
            ]
        else:
            # The bus forgets a batch only after the insert returned, so the insert must be on disk by then.
            values = [
                f"non_replicated_deduplication_window = {DEDUPLICATION_WINDOW}",
                "fsync_after_insert = 1",
                "fsync_part_directory = 1",
            ]
        if whole_parts:
            # 256 KiB blocks: the compressor sees a whole hour of many devices (3 % smaller, ZSTD(3) suffices).
            values += ["ttl_only_drop_parts = 1", "min_compress_block_size = 262144"]
        return "SETTINGS " + ", ".join(values)
