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
`@settings@`            deduplication window, durability, whole-part expiry
`@settings_rowwise@`    the same, for tables whose rows expire one by one
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from flightwatch.core.catalogue import TABLES
from flightwatch.core.vocabulary import DATABASE
from flightwatch.pipeline.store.layout import column_list, ttl_expression
from flightwatch.pipeline.store.settings import StoreSettings

#: Blocks whose tokens a table remembers. Ingest trusts a token inside half of it.
DEDUPLICATION_WINDOW = 10_000
_DEDUPLICATION_SECONDS = 7 * 86_400
_MACRO = re.compile(r"@(\w+)(?:\(([\w ,]*)\))?@")
_CREATED = re.compile(r"@table\((\w+)\)@")


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
            values.append("ttl_only_drop_parts = 1")
        return "SETTINGS " + ", ".join(values)
