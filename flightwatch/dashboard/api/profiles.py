"""Profiler requests: start, watch, stop, fetch traces."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from fastapi import Path as PathParameter
from fastapi.responses import FileResponse
from pydantic import BaseModel, Field

from flightwatch.core.clock import iso_utc
from flightwatch.core.errors import NotFound
from flightwatch.dashboard.access.viewer import Viewer
from flightwatch.dashboard.api.documents import page_of
from flightwatch.dashboard.api.findings import Rows
from flightwatch.dashboard.api.inputs import Id, Limit, Sentence, Word
from flightwatch.dashboard.api.parts import Parts
from flightwatch.dashboard.api.routes import Asker, Routes, check_tenant
from flightwatch.pipeline.control.roles import Role
from flightwatch.pipeline.profiles.limits import LONGEST_SECONDS, MOST_STEPS, check_size
from flightwatch.pipeline.profiles.records import Wanted
from flightwatch.pipeline.store import list_reads

Rank = Annotated[int, Field(ge=0, le=2**31 - 1)]


class NewProfile(BaseModel):
    """The same steps of chosen ranks of a running job."""

    job: Word
    run: str = Field("", max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$", description="attempt; empty: the running one")
    ranks: list[Rank] = Field(min_length=1, max_length=10_000)
    steps: int = Field(5, ge=1, le=MOST_STEPS)
    stacks: bool = False
    shapes: bool = False
    memory: bool = False
    reason: Sentence | None = None
    max_bytes: int | None = Field(None, ge=1, le=2**50)
    timeout_seconds: int = Field(120, ge=1, le=LONGEST_SECONDS)


class ProfileRank(BaseModel):
    """How far one rank is. `has_trace`: it can be fetched."""

    rank: int
    node: str | None
    state: str
    reason: str | None
    first_step: int | None
    bytes: int | None
    sha256: str | None
    has_trace: bool


class ProfileModel(BaseModel):
    """One request and its ranks."""

    id: str
    job: str
    run: str | None
    state: str
    steps: int
    options: dict[str, bool]
    requested_by: str
    reason: str
    created_at: str
    updated_at: str
    ranks: list[ProfileRank]


def _document(found: dict[str, Any]) -> dict[str, Any]:
    ranks = [
        {key: row[key] or None for key in ("node", "reason", "sha256")}
        | {key: row[key] for key in ("rank", "state", "first_step", "bytes")}
        | {"has_trace": row["artifact"] is not None}
        for row in found["ranks"]
    ]
    plain = {key: found[key] for key in ("id", "job", "state", "steps", "options", "requested_by", "reason")}
    times = {"created_at": iso_utc(found["created_at_ms"]), "updated_at": iso_utc(found["updated_at_ms"])}
    return plain | times | {"run": found["run"] or None, "ranks": ranks}


def routes(parts: Parts) -> Routes:
    """Build the routes below `/profiles`."""
    api = Routes("profiles")
    _reads(api, parts)

    @api.post("/profiles", Role.OPERATOR, status_code=201, response_model=ProfileModel)
    def start_profile(viewer: Asker, new: NewProfile) -> dict[str, Any]:
        """Start a profile; the job goes on meanwhile."""
        check_tenant(viewer, Role.OPERATOR, list_reads.job_tenant(parts.services.store, new.job))
        limits = parts.services.profile_limits
        max_bytes = new.max_bytes or limits.most_bytes
        check_size(
            limits, ranks=len(set(new.ranks)), steps=new.steps, max_bytes=max_bytes, seconds=new.timeout_seconds,
            override=False,
        )  # fmt: skip
        options = {"stacks": new.stacks, "shapes": new.shapes, "memory": new.memory}
        wanted = Wanted(
            new.job, new.run, new.ranks, new.steps, options, max_bytes, new.timeout_seconds, viewer.subject,
            new.reason or "",
        )  # fmt: skip
        id_ = parts.profiles.create(wanted)
        parts.done(viewer, "profile.start", id_, f"{new.job}: {new.steps} steps of {len(new.ranks)} ranks")
        return _document(parts.profiles.get(id_))

    @api.post("/profiles/{id}/stop", Role.OPERATOR, response_model=ProfileModel)
    def stop_profile(viewer: Asker, id: Id) -> dict[str, Any]:  # noqa: A002 - the name in the path
        """End a profile before its time."""
        found = _seen(parts, viewer, id)
        check_tenant(viewer, Role.OPERATOR, list_reads.job_tenant(parts.services.store, found["job"]))
        parts.profiles.stop(id)
        parts.done(viewer, "profile.stop", id)
        return _document(parts.profiles.get(id))

    return api


def _reads(api: Routes, parts: Parts) -> None:
    @api.get("/profiles", Role.VIEWER, response_model=Rows)
    def list_profiles(viewer: Asker, limit: Limit = 50) -> dict[str, Any]:
        """List requests, the newest first."""
        found = parts.profiles.newest(limit)
        if viewer.tenants is not None:
            mine = list_reads.jobs_of(parts.services.store, viewer.tenants)
            found = [one for one in found if one["job"] in mine]
        return page_of(map(_document, found), None)

    @api.get("/profiles/{id}", Role.VIEWER, response_model=ProfileModel)
    def get_profile(viewer: Asker, id: Id) -> dict[str, Any]:  # noqa: A002
        """Return one request and how far its ranks are."""
        return _document(_seen(parts, viewer, id))

    @api.get(
        "/profiles/{id}/ranks/{rank}/trace",
        Role.VIEWER,
        response_class=FileResponse,
        responses={200: {"description": "Chrome trace, gzip", "content": {"application/gzip": {}}}},
    )
    def get_trace(viewer: Asker, id: Id, rank: Annotated[int, PathParameter(ge=0, le=2**31 - 1)]) -> FileResponse:  # noqa: A002
        """Return the trace of one rank."""
        found = _seen(parts, viewer, id)
        artifact = next((row["artifact"] for row in found["ranks"] if row["rank"] == rank), None)
        # The path was written by the control server; what lies there now must still be a plain file.
        if artifact is None or Path(artifact).is_symlink() or not Path(artifact).is_file():
            raise NotFound(f"profile {id} has no trace of rank {rank} here")
        return FileResponse(artifact, media_type="application/gzip", filename=f"{found['id']}-rank{rank}.json.gz")


def _seen(parts: Parts, viewer: Viewer, id_: str) -> dict[str, Any]:
    found = parts.profiles.get(id_)
    if viewer.tenants is not None:
        tenant = list_reads.job_tenant(parts.services.store, found["job"])
        if not viewer.sees_tenant(tenant):
            raise NotFound(f"there is no profile {id_}")
    return found
