"""People's SQL over HTTP: one SELECT through the guard, its result in pieces, every query in the audit log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, StringConstraints

from flightwatch.core.errors import FlightwatchError, Refused, TransientError
from flightwatch.dashboard.access.denied import Denied
from flightwatch.dashboard.access.viewer import Viewer
from flightwatch.dashboard.api.parts import Parts
from flightwatch.dashboard.api.routes import Asker, Routes
from flightwatch.pipeline.control.audit import AuditLog
from flightwatch.pipeline.control.roles import Role
from flightwatch.pipeline.store.guard import ADMIN_TABLES, MAXIMUM_LENGTH, VIEWER_TABLES
from flightwatch.pipeline.store.people import CONTENT_TYPES, People, Ran, Result
from flightwatch.pipeline.store.row_scope import scope_of

T = TypeVar("T")
log = logging.getLogger(__name__)

#: How often a query whose caller hung up is told to stop, until it has.
AGAIN_SECONDS = 0.5
#: Results up to this size are complete before the answer begins, so that an error is still an error.
WHOLE_BYTES = 4_000_000
_ADDRESS: ContextVar[str | None] = ContextVar("address", default=None)


class Query(BaseModel):
    """One SELECT (see docs/sql.md) and the format of its result; json: one object a line."""

    query: Annotated[str, StringConstraints(min_length=1, max_length=MAXIMUM_LENGTH)]
    format: Literal["json", "csv", "parquet", "arrow", "table"] = "json"


def audited(parts: Parts, owner: str = "") -> People:
    """Return a runner that writes every query to the audit log; `owner` asks where nobody else is named."""
    audit = AuditLog(parts.control) if parts.services.control is not None else None

    def note(ran: Ran) -> None:
        if audit is None:
            return
        try:
            audit.record(
                None, ran.who or owner, "sql", "store", ran.ok, ran.reason, sql=ran.text, rows=ran.rows,
                elapsed_ms=ran.elapsed_ms, address=_ADDRESS.get(),
            )  # fmt: skip
        except TransientError as error:
            log.error("A query of %s is missing in the audit log: %s", ran.who, error)

    return People(parts.services.store, note=note)


def routes(parts: Parts) -> Routes:
    """Build the route `/sql`."""
    api = Routes("sql")
    runner = audited(parts)
    kinds: dict[str, Any] = {kind: {} for kind in sorted(set(CONTENT_TYPES.values()))}

    @api.post("/sql", Role.VIEWER, "sql", response_class=Response, responses={200: {"content": kinds}})
    async def run_sql(request: Request, viewer: Asker, query: Query) -> Response:
        """Run one SELECT. 422 when the guard or a limit refuses it; the connection breaks when it fails on the way."""
        _ADDRESS.set(viewer.address)
        query_id = uuid.uuid4().hex
        kind = CONTENT_TYPES[query.format]
        if query.format == "table":
            whole = partial(_table, runner, viewer, query, query_id)
            return Response(await _waited(request, runner, query_id, whole), media_type=kind)
        result = await _waited(request, runner, query_id, partial(_open, runner, viewer, query, query_id))
        pieces = iter(result)
        try:
            first, complete = await _waited(request, runner, query_id, partial(_first, pieces))
        except BaseException:
            await run_in_threadpool(result.close)
            raise
        if complete:
            return Response(b"".join(first), media_type=kind)
        return StreamingResponse(_rest(first, pieces, result), media_type=kind)

    return api


def _open(runner: People, viewer: Viewer, query: Query, query_id: str) -> Result:
    tables = ADMIN_TABLES if viewer.may(Role.ADMIN) else VIEWER_TABLES
    scope = scope_of(viewer.tenants)
    return runner.open(query.query, query.format, tables, query_id, who=viewer.subject, scope=scope)


def _table(runner: People, viewer: Viewer, query: Query, query_id: str) -> bytes:
    tables = ADMIN_TABLES if viewer.may(Role.ADMIN) else VIEWER_TABLES
    scope = scope_of(viewer.tenants)
    return runner.run(query.query, "table", tables, query_id, who=viewer.subject, scope=scope)


def _first(pieces: Iterator[bytes]) -> tuple[list[bytes], bool]:
    """Return the first pieces of a result, and whether they are all."""
    found: list[bytes] = []
    size = 0
    for piece in pieces:
        found.append(piece)
        size += len(piece)
        if size > WHOLE_BYTES:
            return found, False
    return found, True


async def _rest(first: list[bytes], pieces: Iterator[bytes], result: Result) -> AsyncIterator[bytes]:
    def following() -> bytes | None:
        return next(pieces, None)

    try:
        for piece in first:
            yield piece
        while (later := await run_in_threadpool(following)) is not None:
            yield later
    except FlightwatchError as error:
        log.warning("A query failed after a part of its result was sent: %s", error)
        raise
    finally:
        await run_in_threadpool(result.close)


async def _waited(request: Request, runner: People, query_id: str, step: Callable[[], T]) -> T:
    """Run a step in a thread; stop the query when nobody waits for it any more."""
    work = asyncio.create_task(run_in_threadpool(step))
    gone = asyncio.create_task(_until_gone(request))
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        while not work.done():
            # A query that has not begun yet cannot be stopped yet.
            with contextlib.suppress(FlightwatchError):
                await run_in_threadpool(runner.cancel, query_id)
            await asyncio.wait({work}, timeout=AGAIN_SECONDS)
        return work.result()
    except Refused as error:
        raise Denied(422, "refused", str(error), "body.query") from error
    finally:
        gone.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await gone


async def _until_gone(request: Request) -> None:
    """Return when the caller hung up; `Request.is_disconnected` does not see it behind other middleware."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
