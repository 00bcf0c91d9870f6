"""Alerts on an engine of their own: findings in, messages out, time in the test's hands."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from flightwatch.incidents.alert_settings import AlertSettings, ChannelSettings, RouteSettings
from flightwatch.incidents.channels import Channel
from flightwatch.incidents.contract import Alert, Delivery, Disclosure
from flightwatch.incidents.facts import FactReader
from flightwatch.incidents.messages import Messages
from flightwatch.incidents.planning import Planner
from flightwatch.incidents.routes import Routes
from flightwatch.incidents.sender import ChannelSender
from flightwatch.pipeline.control.actions import ActionRecords
from flightwatch.pipeline.control.alerts import AlertRecords
from tests.incidents.engine_kit import Rig


class Inbox:
    """A notifier that keeps what it is sent and answers as told."""

    service = "inbox"

    def __init__(
        self,
        name: str,
        *,
        idempotent: bool = False,
        updates: bool = False,
        pages: bool = False,
        per_minute: float = 600.0,
    ) -> None:
        self.name, self.idempotent, self.updates, self.pages = name, idempotent, updates, pages
        self.per_minute = per_minute
        self.takes_pictures = False
        self.answers: list[Delivery | Exception] = []
        self.got: list[tuple[Alert, Mapping[str, Any]]] = []

    def send(self, alert: Alert, reference: Mapping[str, Any] | None) -> Delivery:
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        if answer is not None and not answer.ok and not answer.unknown:
            return answer
        self.got.append((alert, dict(reference or {})))
        if answer is not None:
            return answer
        return Delivery(ok=True, http_status=200, reference=reference or {"id": f"m{len(self.got)}"}, latency_ms=3.0)

    @property
    def reasons(self) -> list[str]:
        return [alert.reason.value for alert, _ in self.got]

    @property
    def titles(self) -> list[str]:
        return [alert.title for alert, _ in self.got]


class Desk:
    """An engine, channels, and the machinery between them, stepped by hand."""

    def __init__(
        self, folder: Path, *inboxes: Inbox, routes: Mapping[str, RouteSettings] | None = None, **settings: Any
    ) -> None:
        self.rig = Rig(folder)
        self.clock = self.rig.clock
        self.inboxes = {inbox.name: inbox for inbox in inboxes}
        self.settings = AlertSettings(**settings)
        self.channels = {name: _channel(inbox) for name, inbox in self.inboxes.items()}
        self.routes = Routes(routes or {}, self.channels)
        self.records = AlertRecords(self.rig.control)
        self.build()

    def build(self) -> None:
        """Begin again as a new process does: nothing is remembered."""
        control = self.rig.control
        facts = FactReader(
            self.rig.records, ActionRecords(control, "lab"), None, self.settings, self.clock
        )  # fmt: skip
        messages = Messages(self.rig.records, facts, self.settings, self.clock, "lab")
        self.planner = Planner(
            self.records, self.rig.records, self.channels, self.routes, self.settings, self.clock
        )  # fmt: skip
        self.senders = {
            name: ChannelSender(channel, self.records, messages, self.settings, self.clock)
            for name, channel in self.channels.items()
        }

    def deliver(self, steps: int = 1000) -> None:
        """Plan, then send until every channel has nothing to do now."""
        self.planner.plan(self.rig.lease)
        for sender in self.senders.values():
            for _ in range(steps):
                if sender.step(self.rig.lease) > 0:
                    break

    def wait(self, seconds: float) -> None:
        """Let time pass, the engine look, and messages go."""
        self.rig.wait(seconds)
        self.planner.remind(self.rig.lease)
        self.planner.report(self.rig.lease)
        self.deliver()

    def run(self, seconds: float, step: float = 1.0) -> None:
        """Let time pass in steps."""
        for _ in range(round(seconds / step)):
            self.wait(step)


def _channel(inbox: Inbox) -> Channel:
    return Channel(
        inbox.name, ChannelSettings(service="inbox", buttons=True), inbox, ZoneInfo("UTC"), Disclosure.STANDARD
    )
