"""Which rows a person of one tenant sees: filters the engine itself puts under every table.

`additional_table_filters` is set on a person's handle before `readonly`. The engine applies a filter wherever the
table is read: in subqueries, joins, after IN, and inside views. A table without an owner in its columns (sensors of
a node, inventory, links) is not open to a person of a tenant: one node serves several tenants over time.

A job belongs to the tenants named in `runs.attrs['tenant']`. On a ClickHouse cluster the filter is set for the
distributed and the local table; that was never run.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from flightwatch.core.catalogue import TABLES
from flightwatch.core.errors import ConfigError
from flightwatch.core.vocabulary import DATABASE
from flightwatch.pipeline.store.layout import LATEST

_LONGEST_TENANT = 200
#: Tables whose rows name a job, and `incidents`, whose rows name the tenant itself.
_BY_JOB = (
    frozenset(
        name for name, table in TABLES.items() if "job" in table.column_names and "tenant" not in table.column_names
    )
    | frozenset(name for name in LATEST if name in ("device_latest", "rank_latest"))
    | {"op_1m"}
) - {"runs"}
#: Views over those tables alone.
_VIEWS = frozenset(
    {"v_step_times", "v_placements", "v_goodput", "v_incidents", "v_open_incidents", "v_lost_gpu_hours",
     "v_device_rates", "v_device_latest", "v_rank_latest"}
)  # fmt: skip
#: What a person of a tenant may name in a query.
TENANT_TABLES = _BY_JOB | _VIEWS | {"runs", "incidents"}


@dataclass(frozen=True, slots=True)
class RowScope:
    """The tenants whose rows a person sees; at least one.

    Raises
    ------
    ConfigError: no tenant, or a name that is none.
    """

    tenants: frozenset[str]

    def __post_init__(self) -> None:
        """Refuse an empty scope: it must not read as "everything"."""
        if not self.tenants or any(not name or len(name) > _LONGEST_TENANT for name in self.tenants):
            raise ConfigError("a scope names at least one tenant")

    def setting(self, *, cluster: bool = False) -> str:
        """Return the value of `additional_table_filters`."""
        names = ", ".join(_text(name) for name in sorted(self.tenants))
        mine = f"attrs['tenant'] IN ({names})"
        by_job = f"(cluster, job) IN (SELECT cluster, assumeNotNull(job) FROM {DATABASE}.runs WHERE {mine})"
        filters = dict.fromkeys(sorted(_BY_JOB), by_job) | {"runs": mine, "incidents": f"tenant IN ({names})"}
        if cluster:
            filters |= {f"{name}_local": condition for name, condition in filters.items()}
        pairs = ", ".join(f"{_text(f'{DATABASE}.{name}')}: {_text(condition)}" for name, condition in filters.items())
        return f"{{{pairs}}}"


def scope_of(tenants: Collection[str] | None) -> RowScope | None:
    """Return the scope of a person's tenants, None for a person with a global role.

    Raises
    ------
    ConfigError: an empty collection.
    """
    return None if tenants is None else RowScope(frozenset(tenants))


def _text(value: str) -> str:
    """Write a value as a string of the engine."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
