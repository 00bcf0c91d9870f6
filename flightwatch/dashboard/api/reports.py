"""Reports of incidents for people who were not there."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import Query
from fastapi.responses import Response

from flightwatch.dashboard.api import incidents
from flightwatch.dashboard.api.inputs import Id
from flightwatch.dashboard.api.parts import Parts
from flightwatch.dashboard.api.routes import Asker, Routes
from flightwatch.incidents.post_mortem import Record, report
from flightwatch.pipeline.control.alerts import AlertRecords
from flightwatch.pipeline.control.roles import Role

_KINDS = {"md": "text/markdown; charset=utf-8", "html": "text/html; charset=utf-8", "json": "application/json"}
_MOST = 500


def routes(parts: Parts) -> Routes:
    """Build the routes of reports."""
    api = Routes("incidents")
    kinds: dict[str, Any] = {kind.partition(";")[0]: {} for kind in _KINDS.values()}

    @api.get("/incidents/{id}/post-mortem", Role.VIEWER, response_class=Response, responses={200: {"content": kinds}})
    def post_mortem(
        viewer: Asker,
        id: Id,  # noqa: A002 - the name in the path
        format: Annotated[Literal["md", "html", "json"], Query()] = "md",  # noqa: A002
    ) -> Response:
        """Return the report of an incident, with the queries that bring its rows back."""
        found = incidents.seen(parts, viewer, id)
        record = Record(
            found,
            parts.incidents.findings(found.id),
            parts.incidents.history(found.id),
            parts.incidents.notes(found.id),
            parts.actions.page(incident=found.id, limit=_MOST),
            AlertRecords(parts.control).deliveries(incident=found.id, limit=_MOST),
        )
        shown = "inline" if format == "html" else "attachment"
        name = f"incident-{quote(found.id, safe='')[:80]}.{format}"
        return Response(report(record, format), media_type=_KINDS[format],
                        headers={"Content-Disposition": f'{shown}; filename="{name}"'})  # fmt: skip

    return api
