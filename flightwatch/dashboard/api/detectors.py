"""Detectors: which run, which run in shadow, what was changed about them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from flightwatch.core.errors import NotFound
from flightwatch.dashboard.api.documents import details_model, document_of, model_of
from flightwatch.dashboard.api.inputs import Id
from flightwatch.dashboard.api.parts import Parts
from flightwatch.dashboard.api.routes import Asker, Routes, check_tenant
from flightwatch.detectors.registry import all_detectors
from flightwatch.pipeline.control.detection import DetectorSetting, DetectorSettings
from flightwatch.pipeline.control.roles import Role

SettingModel = model_of(DetectorSetting)
DetectorList = details_model(
    "DetectorList", "Every detector; `mode` null: as the configuration file says.", {}, {"items": SettingModel}
)


class Mode(BaseModel):
    """What a detector may do: run, run and only log, not run; null: as the configuration file says."""

    mode: Literal["on", "shadow", "off"] | None


def routes(parts: Parts) -> Routes:
    """Build the routes below `/detectors`."""
    api = Routes("detectors")

    @api.get("/detectors", Role.VIEWER, response_model=DetectorList)
    def list_detectors(viewer: Asker) -> dict[str, Any]:
        """List the detectors with what was changed about them."""
        changed = DetectorSettings(parts.control).all()
        return {"items": [document_of(changed.get(name) or DetectorSetting(name)) for name in names()]}

    @api.put("/detectors/{id}", Role.ADMIN, "admin", response_model=SettingModel)
    def set_mode(viewer: Asker, id: Id, new: Mode) -> dict[str, Any]:  # noqa: A002 - the name in the path
        """Let a detector run, run in shadow, or stop; running loops follow within a cycle."""
        check_tenant(viewer, Role.ADMIN, None)
        if id not in names():
            raise NotFound(f"there is no detector {id}")
        records = DetectorSettings(parts.control)
        records.set_mode(id, new.mode, viewer.subject)
        parts.done(viewer, "detector.mode", id, new.mode or "as configured")
        return document_of(records.all()[id])

    return api


def names() -> list[str]:
    """Return the names of all detectors, in their order."""
    return [one.name for one in all_detectors()]
