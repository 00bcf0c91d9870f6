"""Every error of the API in one shape: {"error": {"code", "message", "where"}}."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from flightwatch.core.errors import ConfigError, FlightwatchError, NotFound, Refused
from flightwatch.dashboard.access.control import AccessControl
from flightwatch.dashboard.access.current import STATE_KEY
from flightwatch.dashboard.access.denied import Denied, error_body

#: Retry-After of an answer that the control database or the store could not give.
AGAIN_SECONDS = 5
_CODES = {400: "malformed", 404: "not_found", 405: "method_not_allowed", 413: "too_large", 415: "unsupported"}


class ErrorDetail(BaseModel):
    """What went wrong: a word for programs, a sentence for people, the field or parameter at fault."""

    code: str
    message: str
    where: str | None = None


class ErrorDocument(BaseModel):
    """Body of every error."""

    error: ErrorDetail


#: Documented answers of every route.
RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorDocument, "description": text}
    for status, text in (
        (400, "malformed request"), (401, "no valid login or token"), (403, "not allowed"), (404, "not found"),
        (409, "refused in the present state"), (413, "body too large"), (422, "invalid value"),
        (429, "too many requests"), (503, "the store or the control database does not answer"),
    )
}  # fmt: skip


def status_of(error: FlightwatchError) -> tuple[int, str]:
    """Return HTTP status and code of an error."""
    if isinstance(error, NotFound):
        return 404, "not_found"
    if isinstance(error, Refused):
        return 409, "refused"
    if isinstance(error, ConfigError):
        return 422, "invalid"
    return 503, "unavailable"


def add_handlers(app: FastAPI, access: AccessControl) -> None:
    """Give every error of an application the one shape; refusals by role go to the audit log."""

    @app.exception_handler(Denied)
    async def denied(request: Request, error: Denied) -> JSONResponse:
        if error.status in (401, 403):
            viewer = (request.scope.get("state") or {}).get(STATE_KEY)
            await run_in_threadpool(access.record_denied, request, error, viewer)
        headers = {} if error.retry_after_seconds is None else {"Retry-After": str(error.retry_after_seconds)}
        return JSONResponse(error_body(error.code, str(error), error.where), error.status, headers)

    @app.exception_handler(FlightwatchError)
    async def ours(request: Request, error: FlightwatchError) -> JSONResponse:
        status, code = status_of(error)
        headers = {"Retry-After": str(AGAIN_SECONDS)} if status == 503 else {}
        return JSONResponse(error_body(code, str(error)), status, headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])[:200]
        status = 400 if first["type"] == "json_invalid" else 422
        code = "malformed" if status == 400 else "invalid"
        return JSONResponse(error_body(code, f"{where}: {first['msg']}"[:500], where), status)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        code = _CODES.get(error.status_code, "refused")
        message = str(error.detail)
        if error.status_code == 404:
            message = f"there is no {request.scope['path'][:200]}"
        return JSONResponse(error_body(code, message), error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        # The server logs it; the caller learns nothing about our inside.
        return JSONResponse(error_body("internal", "this failed on our side; the log says why"), 500)
