"""Findings: what detectors said."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import BaseModel

from flightwatch.core.errors import NotFound
from flightwatch.core.vocabulary import FindingKind, FindingState
from flightwatch.dashboard.api.documents import page_of
from flightwatch.dashboard.api.inputs import Cursor, Id, Limit, Moment, Word, cursor_of, moment_ms, parse_cursor
from flightwatch.dashboard.api.parts import Parts
from flightwatch.dashboard.api.routes import Asker, Routes
from flightwatch.dashboard.api.rows import documents
from flightwatch.pipeline.control.roles import Role
from flightwatch.pipeline.store import list_reads

_DEFAULT_DAYS = 7
_DAY_MS = 86_400_000


class Rows(BaseModel):
    """Rows of the store by column (see docs/tables.md). `next_cursor` asks for what follows; null at the end."""

    items: list[dict[str, Any]]
    next_cursor: str | None = None


def _finding(document: dict[str, Any]) -> dict[str, Any]:
    """Return a finding with its evidence parsed."""
    try:
        return document | {"evidence": json.loads(document["evidence"] or "{}")}
    except ValueError:
        return document


def routes(parts: Parts) -> Routes:
    """Build the routes below `/findings`."""
    api = Routes("findings")

    @api.get("/findings", Role.VIEWER, response_model=Rows)
    def list_findings(
        viewer: Asker,
        kind: Annotated[FindingKind | None, Query()] = None,
        severity: Annotated[Literal["P1", "P2", "P3", "P4", "info"] | None, Query()] = None,
        state: Annotated[FindingState | None, Query()] = None,
        detector: Annotated[Word | None, Query()] = None,
        node: Annotated[Word | None, Query()] = None,
        job: Annotated[Word | None, Query()] = None,
        cluster: Annotated[Word | None, Query()] = None,
        since: Moment | None = None,
        until: Moment | None = None,
        cursor: Cursor | None = None,
        limit: Limit = 50,
    ) -> dict[str, Any]:
        """List statements of findings, the newest first; of the last week unless `since` is given."""
        until_ms = moment_ms(until, "until") or parts.clock.now_ms() + _DAY_MS
        since_ms = moment_ms(since, "since")
        before = parse_cursor(cursor, int, str)
        found = list_reads.findings_page(
            parts.services.store,
            since_ms=max(0, until_ms - (_DEFAULT_DAYS + 1) * _DAY_MS) if since_ms is None else since_ms,
            until_ms=until_ms,
            equal={
                "kind": kind and kind.value, "severity": severity, "state": state and state.value,
                "detector": detector, "node": node, "job": job, "cluster": cluster,
            },
            tenants=viewer.tenants,
            before=None if before is None else (before[0], before[1]),
            limit=limit + 1,
        )  # fmt: skip
        last = found[limit - 1] if len(found) > limit else None
        following = None if last is None else cursor_of(last["ts"], last["id"])
        return page_of(map(_finding, documents(found[:limit])), following)

    @api.get("/findings/{id}", Role.VIEWER, response_model=Rows)
    def get_finding(viewer: Asker, id: Id) -> dict[str, Any]:  # noqa: A002 - the name in the path
        """Return all statements of one finding, the oldest first."""
        found = list_reads.finding_statements(parts.services.store, id, viewer.tenants)
        if not found:
            raise NotFound(f"there is no finding {id}")
        return page_of(map(_finding, documents(found)), None)

    return api
