"""Flame graphs to take away: `/flames/<profile>/<rank>.speedscope.json` and `.folded.txt`, behind the same gate."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from flightwatch.collectors.captures.kineto import flame
from flightwatch.core.errors import FlightwatchError, NotFound
from flightwatch.dashboard.access.current import viewer_of
from flightwatch.dashboard.components.traces import Trace, read_trace
from flightwatch.dashboard.services import Services
from flightwatch.pipeline.profiles.records import Profiles
from flightwatch.pipeline.store import list_reads

Weights = Counter[tuple[str, ...]]


def path_of(profile: str, rank: int, ending: str) -> str:
    """Return the path of a file; `ending` is `speedscope.json` or `folded.txt`."""
    return f"/flames/{profile}/{rank}.{ending}"


def router(services: Services) -> APIRouter:
    """Build the routes."""
    routes = APIRouter()

    @routes.get("/flames/{profile}/{rank}.speedscope.json")
    def speedscope(request: Request, profile: str, rank: int) -> Response:
        """Return a rank's stacks as a file that speedscope opens; self times in microseconds."""

        def render(weights: Weights) -> str:
            return json.dumps(flame.speedscope(weights, f"{profile} rank {rank}"), ensure_ascii=False)

        return _answer(services, request, profile, rank, render, "application/json", "speedscope.json")

    @routes.get("/flames/{profile}/{rank}.folded.txt")
    def folded(request: Request, profile: str, rank: int) -> Response:
        """Return a rank's stacks as folded lines, as flamegraph.pl reads them; self times in microseconds."""

        def render(weights: Weights) -> str:
            return "".join(f"{line}\n" for line in flame.folded_lines(weights))

        return _answer(services, request, profile, rank, render, "text/plain", "folded.txt")

    return routes


def _answer(
    services: Services, request: Request, profile: str, rank: int, render: Callable[[Weights], str], kind: str,
    ending: str,
) -> Response:  # fmt: skip
    try:
        text = render(_weights(_trace(services, profile, rank, viewer_of(request.scope).tenants)))
    except NotFound as error:
        return _error(404, "not_found", str(error))
    except FlightwatchError as error:
        return _error(503, "unavailable", str(error))
    name = f"{profile}-rank{rank}.{ending}"
    return Response(text, media_type=kind, headers={"Content-Disposition": f'attachment; filename="{name}"'})


def _trace(services: Services, profile: str, rank: int, tenants: frozenset[str] | None) -> Trace:
    """Return a stored trace, read. Raises NotFound: no such profile, rank or file here."""
    if services.control is None:
        raise NotFound("this process has no control database")
    found = Profiles(services.control).get(profile)
    if tenants is not None and list_reads.job_tenant(services.store, found["job"]) not in tenants:
        raise NotFound(f"there is no profile {profile}")
    row = next((one for one in found["ranks"] if one["rank"] == rank and one["artifact"]), None)
    if row is None:
        raise NotFound(f"profile {profile} has no trace of rank {rank} here")
    return read_trace(row["artifact"], row["sha256"] or "", rank)


def _weights(trace: Trace) -> Weights:
    """Return whole microseconds by stack, as the files of both kinds have them."""
    return Counter({(f"rank {trace.rank}", *stack): round(us) for stack, us in trace.stacks.items()})


def _error(status: int, code: str, message: str) -> JSONResponse:
    return JSONResponse({"error": {"code": code, "message": message, "where": None}}, status)
