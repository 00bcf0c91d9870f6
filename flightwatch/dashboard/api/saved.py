"""Saved queries and views."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, Field

from flightwatch.dashboard.access.denied import Denied
from flightwatch.dashboard.api.documents import details_model, document_of, model_of
from flightwatch.dashboard.api.inputs import Id, Word
from flightwatch.dashboard.api.parts import Parts
from flightwatch.dashboard.api.routes import Asker, Routes
from flightwatch.pipeline.control.roles import Role
from flightwatch.pipeline.control.saved import Saved

SavedModel = model_of(Saved)
SavedList = details_model("SavedList", "Saved things by name.", {}, {"items": SavedModel})
Kind = Literal["query", "view"]
_LONGEST_BODY = 60_000


class NewSaved(BaseModel):
    """A query (body: {"sql": ...}) or a view (body: what the console needs to show it again)."""

    kind: Kind
    name: Word
    body: dict[str, Any]
    shared: bool = Field(False, description="everybody sees it; only you change it")


class ChangedSaved(BaseModel):
    """What replaces a saved thing. `revision`: what you saw; another present one refuses the change."""

    name: Word
    body: dict[str, Any]
    shared: bool = False
    revision: int | None = Field(None, ge=0, le=2**53)


def _checked(body: dict[str, Any]) -> dict[str, Any]:
    try:
        text = json.dumps(body, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise Denied(422, "invalid", "the body is not plain JSON", "body.body") from error
    if len(text) > _LONGEST_BODY:
        raise Denied(422, "invalid", f"the body is longer than {_LONGEST_BODY:,} characters", "body.body")
    return body


def routes(parts: Parts) -> Routes:
    """Build the routes below `/saved`."""
    api = Routes("saved")

    @api.get("/saved", Role.VIEWER, response_model=SavedList)
    def list_saved(viewer: Asker, kind: Kind) -> dict[str, Any]:
        """List what you saved and what others share."""
        return {"items": [document_of(one) for one in parts.saved.list(kind, viewer.subject)]}

    @api.get("/saved/{id}", Role.VIEWER, response_model=SavedModel)
    def get_saved(viewer: Asker, id: Id) -> dict[str, Any]:  # noqa: A002 - the name in the path
        """Return one saved thing."""
        return document_of(parts.saved.get(id, viewer.subject))

    @api.post("/saved", Role.VIEWER, status_code=201, response_model=SavedModel)
    def create_saved(viewer: Asker, new: NewSaved) -> dict[str, Any]:
        """Save a query or a view."""
        saved = parts.saved.create(new.kind, viewer.subject, new.name, _checked(new.body), new.shared)
        parts.done(viewer, f"saved_{new.kind}.create", saved.id, new.name)
        return document_of(saved)

    @api.put("/saved/{id}", Role.VIEWER, response_model=SavedModel)
    def replace_saved(viewer: Asker, id: Id, new: ChangedSaved) -> dict[str, Any]:  # noqa: A002
        """Change a saved thing of your own."""
        saved = parts.saved.replace(id, viewer.subject, new.name, _checked(new.body), new.shared, new.revision)
        parts.done(viewer, f"saved_{saved.kind}.change", id, new.name)
        return document_of(saved)

    @api.delete("/saved/{id}", Role.VIEWER, status_code=204)
    def delete_saved(viewer: Asker, id: Id) -> None:  # noqa: A002
        """Delete a saved thing of your own."""
        parts.saved.delete(id, viewer.subject)
        parts.done(viewer, "saved.delete", id)

    return api
