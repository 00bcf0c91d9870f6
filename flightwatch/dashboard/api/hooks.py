"""Where chat services send button presses. The signature of the service is the key; the person's role decides."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from flightwatch.core.errors import NotFound, Refused
from flightwatch.dashboard.access.chat import FRESH_SECONDS, READERS, Pressed, answer_of
from flightwatch.dashboard.access.denied import Denied
from flightwatch.dashboard.access.viewer import Viewer
from flightwatch.dashboard.api import actions, incidents
from flightwatch.dashboard.api.parts import Parts
from flightwatch.dashboard.api.routes import check_tenant
from flightwatch.incidents.buttons import Press
from flightwatch.pipeline.control.action_model import APPROVAL_MS
from flightwatch.pipeline.control.roles import Role
from flightwatch.pipeline.control.sessions import Sessions

SILENCE_HOURS = 4
#: A repeat of Telegram's update, which carries no time, is noticed for so long.
_ONCE_SECONDS = 7 * 86_400


def router(parts: Parts) -> APIRouter:
    """Build the routes below `/hooks`; a service whose secret is not set has none."""
    routes = APIRouter(prefix="/hooks", include_in_schema=False)

    @routes.post("/{service}")
    async def press(service: str, request: Request) -> JSONResponse:
        headers, body = dict(request.headers), await request.body()
        document = await run_in_threadpool(_answer, parts, service, headers, body, request)
        return JSONResponse(document)

    return routes


def _answer(parts: Parts, service: str, headers: dict[str, str], body: bytes, request: Request) -> dict[str, Any]:
    reader, setting = READERS.get(service, (None, ""))
    if reader is None or not getattr(parts.access.settings, setting, ""):
        raise Denied(404, "not_found", "there is no such hook here")
    pressed = reader(parts.access.settings, headers, body, parts.clock.now_ms() // 1000)
    if pressed.answered is not None:
        return pressed.answered
    if not Sessions(parts.control).use_once(f"chat:{service}", pressed.once, _ONCE_SECONDS):
        raise Denied(401, "unauthenticated", "this press was received before")
    try:
        text = _act(parts, service, pressed, request)
    except Denied as denied:
        parts.access.record_denied(request, denied)
        text = str(denied)
    except (NotFound, Refused) as error:
        text = str(error)
    return answer_of(service, text, pressed.extra)


def _act(parts: Parts, service: str, pressed: Pressed, request: Request) -> str:
    """Do what a button says, for the person behind the account; return a sentence for them."""
    if pressed.press is None:
        raise Denied(403, "forbidden", "this is not a button of Flightwatch")
    person = parts.people.by_account(service, pressed.account) if pressed.account else None
    if person is None:
        raise Denied(403, "forbidden", f"this {service} account belongs to nobody here: an administrator links it")
    viewer = parts.access.person_viewer(person, "chat", "", parts.access.address(request))
    if pressed.press.do in ("approve", "reject"):
        return _decide(parts, viewer, service, pressed.press)
    return _incident(parts, viewer, service, pressed.press)


def _incident(parts: Parts, viewer: Viewer, service: str, press: Press) -> str:
    found = incidents.seen(parts, viewer, press.target)
    check_tenant(viewer, Role.OPERATOR, found.tenant)
    if press.do == "ack":
        parts.incidents.acknowledge(found.id, viewer.subject, None, None)
        parts.done(viewer, "incident.acknowledge", found.id, service)
        return f"{viewer.name} acknowledged it"
    matchers = {"id": found.id} | ({"tenant": found.tenant} if found.tenant is not None else {})
    expires_at_ms = parts.clock.now_ms() + SILENCE_HOURS * 3_600_000
    silence = parts.incidents.create_silence(
        matchers, viewer.subject, f"silenced in {service}", expires_at_ms=expires_at_ms
    )
    parts.done(viewer, "silence.create", silence.id, f"{found.id} {service}")
    return f"{viewer.name} silenced it for {SILENCE_HOURS} h"


def _decide(parts: Parts, viewer: Viewer, service: str, press: Press) -> str:
    """Approve or reject an action; an approval holds for the incident as the message showed it, for 15 minutes."""
    action = actions.seen(parts, viewer, press.target)
    check_tenant(viewer, Role.OPERATOR, action.tenant)
    if press.do == "reject":
        parts.actions.reject(action.id, viewer.subject, f"in {service}", viewer.address)
        return f"{viewer.name} rejected it"
    age_ms = parts.clock.now_ms() - press.sent_at_s * 1000
    if not -FRESH_SECONDS * 1000 <= age_ms <= APPROVAL_MS:
        raise Denied(403, "forbidden", "this button is older than 15 minutes: open the incident")
    revision = parts.incidents.get(action.incident).revision if action.incident else None
    secret = parts.actions.new_approval(action.id, viewer.subject, press.revision if action.incident else None)
    parts.actions.approve(action.id, secret, viewer.subject, revision, viewer.address)
    return f"{viewer.name} approved it"
