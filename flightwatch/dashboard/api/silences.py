"""Silences and maintenance windows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Query
from pydantic import BaseModel, Field

from flightwatch.core.errors import NotFound
from flightwatch.dashboard.access.denied import Denied
from flightwatch.dashboard.access.viewer import Viewer
from flightwatch.dashboard.api.documents import details_model, document_of, model_of
from flightwatch.dashboard.api.inputs import Id, Moment, Sentence, Word, moment_ms
from flightwatch.dashboard.api.parts import Parts
from flightwatch.dashboard.api.routes import Asker, Routes, check_tenant
from flightwatch.pipeline.control.incident_rows import Silence
from flightwatch.pipeline.control.roles import Role

SilenceModel = model_of(Silence)
SilenceList = details_model("SilenceList", "Silences, those that end first in front.", {}, {"items": SilenceModel})


class NewSilence(BaseModel):
    """What to keep quiet, why and until when. All matchers must match; `*` stands for any characters."""

    matchers: dict[Word, Sentence] = Field(min_length=1, max_length=16)
    reason: Sentence
    expires_at: Moment
    starts_at: Moment | None = None
    maintenance: bool = Field(False, description="nothing is done to matching nodes either")


def tenant_of(matchers: Mapping[str, str]) -> str | None:
    """Return the one tenant whose incidents matchers can match, None when they match others' too."""
    tenant = matchers.get("tenant")
    return None if tenant is None or "*" in tenant else tenant


def _seen(viewer: Viewer, silence: Silence) -> bool:
    return viewer.tenants is None or tenant_of(silence.matchers) in viewer.tenants


def routes(parts: Parts) -> Routes:
    """Build the routes below `/silences`."""
    api = Routes("silences")

    @api.get("/silences", Role.VIEWER, response_model=SilenceList)
    def list_silences(
        viewer: Asker, active: Annotated[bool, Query(description="only those that hold now")] = True
    ) -> dict[str, Any]:
        """List silences and maintenance windows."""
        found = parts.incidents.silences(active)
        return {"items": [document_of(one) for one in found if _seen(viewer, one)]}

    @api.post("/silences", Role.OPERATOR, status_code=201, response_model=SilenceModel)
    def create_silence(viewer: Asker, new: NewSilence) -> dict[str, Any]:
        """Keep matching incidents quiet for a time. For one tenant's incidents name the tenant in the matchers."""
        check_tenant(viewer, Role.OPERATOR, tenant_of(new.matchers))
        expires_at_ms = moment_ms(new.expires_at, "expires_at")
        if expires_at_ms is None:
            raise Denied(422, "invalid", "a silence needs an end", "expires_at")
        silence = parts.incidents.create_silence(
            new.matchers, viewer.subject, new.reason, expires_at_ms=expires_at_ms,
            starts_at_ms=moment_ms(new.starts_at, "starts_at"), maintenance=new.maintenance,
        )  # fmt: skip
        parts.done(viewer, "silence.create", silence.id, json.dumps([silence.matchers, new.reason], ensure_ascii=False))
        return document_of(silence)

    @api.delete("/silences/{id}", Role.OPERATOR, response_model=SilenceModel)
    def expire_silence(viewer: Asker, id: Id) -> dict[str, Any]:  # noqa: A002 - the name in the path
        """End a silence now."""
        found = next((one for one in parts.incidents.silences(False) if one.id == id), None)
        if found is None or not _seen(viewer, found):
            raise NotFound(f"there is no silence {id}")
        check_tenant(viewer, Role.OPERATOR, tenant_of(found.matchers))
        silence = parts.incidents.expire_silence(id, viewer.subject)
        parts.done(viewer, "silence.expire", id)
        return document_of(silence)

    return api
