"""Refusals of the gate, and the one shape of an error that the API answers."""

from __future__ import annotations

from typing import Any


class Denied(Exception):
    """A request that goes no further.

    Parameters
    ----------
    status: HTTP status.
    code: word for programs: unauthenticated, forbidden, cross_origin, csrf, rate_limited, unavailable, ...
    message: one sentence for people.
    where: header, field or parameter that is wrong, None when it is none in particular.
    retry_after_seconds: sent as Retry-After.
    """

    def __init__(
        self, status: int, code: str, message: str, where: str | None = None, retry_after_seconds: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.where = where
        self.retry_after_seconds = retry_after_seconds
        #: Subject of who was refused, where the gate had recognised them.
        self.subject = ""


def error_body(code: str, message: str, where: str | None = None) -> dict[str, Any]:
    """Return the body of every error: {"error": {"code", "message", "where"}}."""
    return {"error": {"code": code, "message": message, "where": where}}
