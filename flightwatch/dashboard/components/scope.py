"""What a person of one tenant sees on pages: its jobs, and the nodes they run on. Everybody else sees everything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from flightwatch.core.errors import Refused
from flightwatch.dashboard.components.remembered import Remembered
from flightwatch.dashboard.components.request import viewer
from flightwatch.pipeline.store import fleet_reads, list_reads
from flightwatch.pipeline.store.client import Store

R = TypeVar("R", bound=Mapping[str, Any])
_REMEMBERED = Remembered(10.0)


def own_jobs(store: Store) -> set[str] | None:
    """Return the jobs that whoever asks may see; None: all."""
    tenants = viewer().tenants
    if tenants is None:
        return None
    return _REMEMBERED.get(("jobs", id(store), tenants), lambda: list_reads.jobs_of(store, tenants))


def own_nodes(store: Store) -> set[str] | None:
    """Return the nodes that whoever asks may see; None: all."""
    tenants = viewer().tenants
    if tenants is None:
        return None
    return _REMEMBERED.get(("nodes", id(store), tenants), lambda: fleet_reads.nodes_of(store, tenants))


def check_job(store: Store, job: str) -> None:
    """Raise Refused when whoever asks may not see a job; it is said as if there were none."""
    allowed = own_jobs(store)
    if allowed is not None and job not in allowed:
        raise Refused(f"there is no job {job}")


def check_node(store: Store, node: str) -> None:
    """Raise Refused when whoever asks may not see a node; it is said as if there were none."""
    allowed = own_nodes(store)
    if allowed is not None and node not in allowed:
        raise Refused(f"there is no node {node}")


def visible(store: Store, rows: Iterable[R]) -> list[R]:
    """Return the rows about jobs, or where they name none about nodes, that whoever asks may see."""
    jobs, nodes = own_jobs(store), own_nodes(store)
    if jobs is None or nodes is None:
        return list(rows)
    return [row for row in rows if (row["job"] in jobs if row.get("job") else row.get("node") in nodes)]
