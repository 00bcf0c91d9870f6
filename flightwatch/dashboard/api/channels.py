"""Channels to people: how each does, and a test message."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from flightwatch.core.clock import iso_utc
from flightwatch.core.errors import NotFound, Refused
from flightwatch.core.vocabulary import Severity
from flightwatch.dashboard.api.inputs import Id
from flightwatch.dashboard.api.parts import Parts
from flightwatch.dashboard.api.routes import Asker, Routes, check_tenant
from flightwatch.incidents.channel_test import send_test
from flightwatch.incidents.routes import Routes as ChannelRoutes
from flightwatch.pipeline.control.alerts import AlertRecords
from flightwatch.pipeline.control.roles import Role


class ChannelModel(BaseModel):
    """A channel. `default`: severities it hears where no route fits; `failures`: in a row, up to now.

    `failing_since` null: its last message was taken, or it was never used.
    """

    name: str
    service: str
    language: str
    disclosure: str
    default: list[str]
    waiting: int
    failures: int
    failing_since: str | None
    last_error: str | None
    last_ok_at: str | None


class ChannelList(BaseModel):
    """The channels that are set and enabled."""

    items: list[ChannelModel]


class Tested(BaseModel):
    """How the service answered."""

    channel: str
    http_status: int | None
    latency_ms: float | None


def routes(parts: Parts) -> Routes:
    """Build the routes below `/channels`."""
    api = Routes("channels")

    @api.get("/channels", Role.ADMIN, "admin", response_model=ChannelList)
    def list_channels(viewer: Asker) -> dict[str, Any]:
        """List the channels with how they do; addresses and secrets are nobody's business."""
        check_tenant(viewer, Role.ADMIN, None)
        records = AlertRecords(parts.control)
        states, waiting = records.channel_states(), records.waiting_by_channel()
        routes, items = ChannelRoutes({}, parts.services.channels), []
        for name, channel in sorted(parts.services.channels.items()):
            state = states.get(name)
            items.append(
                {
                    "name": name, "service": channel.notifier.service, "language": channel.settings.language,
                    "disclosure": channel.disclosure.value, "waiting": waiting.get(name, 0),
                    "default": [one.value for one in Severity if name in routes.default(one)],
                    "failures": state.failures if state else 0,
                    "failing_since": iso_utc(state.failing_since_ms) if state else None,
                    "last_error": state.last_error if state else None,
                    "last_ok_at": iso_utc(state.last_ok_at_ms) if state else None,
                }
            )  # fmt: skip
        return {"items": items}

    @api.post("/channels/{id}/test", Role.ADMIN, "admin", response_model=Tested)
    def test_channel(viewer: Asker, id: Id) -> dict[str, Any]:  # noqa: A002 - the name in the path
        """Send a test message and wait for the answer."""
        check_tenant(viewer, Role.ADMIN, None)
        channel = parts.services.channels.get(id)
        if channel is None:
            raise NotFound(f"there is no enabled channel {id}")
        answer = send_test(channel, parts.clock, parts.cluster, viewer.name)
        parts.audit.record(
            None, viewer.subject, "channel.test", id, answer.ok, answer.error or "", address=viewer.address
        )
        if not answer.ok:
            raise Refused(f"the channel did not take the test message: {answer.error}")
        return {"channel": id, "http_status": answer.http_status, "latency_ms": answer.latency_ms}

    return api
