"""Devices, nodes and jobs as they are now, and the history of a node."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from pydantic import BaseModel

from flightwatch.core.errors import NotFound
from flightwatch.dashboard.access.viewer import Viewer
from flightwatch.dashboard.api.documents import page_of
from flightwatch.dashboard.api.findings import Rows
from flightwatch.dashboard.api.inputs import Cursor, Id, Limit, Moment, Word, cursor_of, moment_ms, parse_cursor
from flightwatch.dashboard.api.parts import Parts
from flightwatch.dashboard.api.routes import Asker, Routes, check_tenant
from flightwatch.dashboard.api.rows import documents
from flightwatch.pipeline.control.roles import Role
from flightwatch.pipeline.store import list_reads

_HISTORY_DAYS = 90
_DAY_MS = 86_400_000
Name = Annotated[Word | None, Query()]
Part = Annotated[Word | None, Query(description="part of the name")]


class NodeDetail(BaseModel):
    """Newest rows of one node, by column (see docs/tables.md)."""

    node: str
    host: list[dict[str, Any]]
    devices: list[dict[str, Any]]
    ports: list[dict[str, Any]]
    sensors: list[dict[str, Any]]
    storage: list[dict[str, Any]]
    inventory: list[dict[str, Any]]


class JobDetail(BaseModel):
    """One job: phases of its attempts, placements in use, coverage, goodput, newest steps."""

    job: str
    tenant: str | None
    phases: list[dict[str, Any]]
    placements: list[dict[str, Any]]
    coverage: list[dict[str, Any]]
    goodput: list[dict[str, Any]]
    steps: list[dict[str, Any]]


def routes(parts: Parts) -> Routes:
    """Build the routes `/devices`, `/nodes`, `/jobs`."""
    api = Routes("fleet")
    _devices(api, parts)
    _nodes(api, parts)
    _jobs(api, parts)
    return api


def _devices(api: Routes, parts: Parts) -> None:
    @api.get("/devices", Role.VIEWER, response_model=Rows)
    def list_devices(
        viewer: Asker,
        cluster: Name = None,
        node: Name = None,
        job: Name = None,
        vendor: Name = None,
        model: Name = None,
        cursor: Cursor | None = None,
        limit: Limit = 50,
    ) -> dict[str, Any]:
        """List accelerators with their newest readings and their age."""
        after = parse_cursor(cursor, str, str, int)
        found = list_reads.devices_page(
            parts.services.store,
            equal={"cluster": cluster, "node": node, "job": job, "vendor": vendor, "model": model},
            tenants=viewer.tenants,
            after=None if after is None else (after[0], after[1], after[2]),
            limit=limit + 1,
        )
        last = found[limit - 1] if len(found) > limit else None
        following = None if last is None else cursor_of(last["cluster"], last["node"], last["device"])
        return page_of(documents(found[:limit]), following)


def _nodes(api: Routes, parts: Parts) -> None:
    store = parts.services.store

    def check_seen(viewer: Viewer, node: str) -> None:
        if viewer.tenants is not None and not list_reads.node_is_of(store, node, viewer.tenants):
            raise NotFound(f"there is no node {node}")

    @api.get("/nodes", Role.VIEWER, response_model=Rows)
    def list_nodes(
        viewer: Asker, cluster: Name = None, text: Part = None, cursor: Cursor | None = None, limit: Limit = 50
    ) -> dict[str, Any]:
        """List nodes: when they were heard, how many devices they have, where they stand."""
        after = parse_cursor(cursor, str, str)
        found = list_reads.nodes_page(
            store, text=text, cluster=cluster, tenants=viewer.tenants,
            after=None if after is None else (after[0], after[1]), limit=limit + 1,
        )  # fmt: skip
        last = found[limit - 1] if len(found) > limit else None
        following = None if last is None else cursor_of(last["cluster"], last["node"])
        return page_of(documents(found[:limit]), following)

    @api.get("/nodes/{id}", Role.VIEWER, response_model=NodeDetail)
    def get_node(viewer: Asker, id: Id) -> dict[str, Any]:  # noqa: A002 - the name in the path
        """Return the newest readings of one node."""
        check_seen(viewer, id)
        found = {part: documents(rows) for part, rows in list_reads.node_latest(store, id).items()}
        if not any(found.values()):
            raise NotFound(f"there is no node {id}")
        return {"node": id, **found}

    @api.get("/nodes/{id}/history", Role.VIEWER, response_model=Rows)
    def get_node_history(
        viewer: Asker,
        id: Id,  # noqa: A002
        since: Moment | None = None,
        limit: Limit = 200,
    ) -> dict[str, Any]:
        """Return what happened to a node, the newest first; of the last 90 days unless `since` is given."""
        # Events and findings of a node are about everybody's jobs.
        check_tenant(viewer, Role.VIEWER, None)
        since_ms = moment_ms(since, "since")
        if since_ms is None:
            since_ms = parts.clock.now_ms() - _HISTORY_DAYS * _DAY_MS
        return page_of(documents(list_reads.node_history(store, id, since_ms, limit)), None)


def _jobs(api: Routes, parts: Parts) -> None:
    store = parts.services.store

    @api.get("/jobs", Role.VIEWER, response_model=Rows)
    def list_jobs(
        viewer: Asker, cluster: Name = None, text: Part = None, cursor: Cursor | None = None, limit: Limit = 50
    ) -> dict[str, Any]:
        """List jobs: newest attempt and phase, tenant, owner, ranks, newest step."""
        after = parse_cursor(cursor, str, str)
        found = list_reads.jobs_page(
            store, text=text, cluster=cluster, tenants=viewer.tenants,
            after=None if after is None else (after[0], after[1]), limit=limit + 1,
        )  # fmt: skip
        last = found[limit - 1] if len(found) > limit else None
        following = None if last is None else cursor_of(last["cluster"], last["job"])
        return page_of(documents(found[:limit]), following)

    @api.get("/jobs/{id}", Role.VIEWER, response_model=JobDetail)
    def get_job(viewer: Asker, id: Id) -> dict[str, Any]:  # noqa: A002
        """Return one job with its attempts, placements, coverage, goodput and newest steps."""
        tenant = list_reads.job_tenant(store, id)
        if not viewer.sees_tenant(tenant):
            raise NotFound(f"there is no job {id}")
        found = {part: documents(rows) for part, rows in list_reads.job_details(store, id).items()}
        if not any(found.values()):
            raise NotFound(f"there is no job {id}")
        return {"job": id, "tenant": tenant, **found}
