"""The message of a delivery, as the incident is at the moment of sending."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from flightwatch.core.clock import Clock
from flightwatch.core.errors import NotFound
from flightwatch.core.incident import AlertReason, Incident, IncidentState
from flightwatch.core.vocabulary import Severity
from flightwatch.incidents.alert_settings import AlertSettings
from flightwatch.incidents.buttons import button_value
from flightwatch.incidents.channels import Channel
from flightwatch.incidents.chart import load_drawing
from flightwatch.incidents.contract import Alert, Disclosure
from flightwatch.incidents.facts import FactReader, Facts
from flightwatch.incidents.text import (
    incident_alert,
    incident_link,
    merged_alert,
    platform_alert,
    prepare,
    together_alert,
)
from flightwatch.pipeline.control.alert_rows import StoredDelivery, Thread
from flightwatch.pipeline.control.incidents import IncidentRecords

Picture = Callable[[Incident, Facts, Disclosure], bytes | None]
_URGENT = (Severity.P1, Severity.P2)
_BUTTONS = {
    "en": {"ack": "Acknowledge", "approve": "Approve drain", "reject": "Reject"},
    "zh": {"ack": "确认", "approve": "批准隔离", "reject": "拒绝"},
}


class Messages:
    """Renders deliveries. Thread-safe.

    Parameters
    ----------
    picture: draws the evidence of an incident; None where there is nothing to draw.
    """

    def __init__(
        self, incidents: IncidentRecords, facts: FactReader, settings: AlertSettings, clock: Clock, cluster: str,
        picture: Picture | None = None,
    ) -> None:  # fmt: skip
        self._incidents, self._facts, self._settings = incidents, facts, settings
        self._clock, self._cluster, self._picture = clock, cluster, picture

    def prepare(self, channels: Iterable[Channel]) -> None:
        """Load what the first message to these channels would wait for."""
        for channel in channels:
            prepare(channel.settings.language)
            if self._picture is not None and _shows_pictures(channel):
                load_drawing()

    def alert(
        self, delivery: StoredDelivery, channel: Channel, thread: Thread | None, members: Sequence[StoredDelivery]
    ) -> Alert | str:
        """Return the message, or in one phrase why there is nothing to tell any more.

        Parameters
        ----------
        thread: what the channel was told before. members: what goes together in this message.
        """
        edited = bool(thread and thread.reference and channel.notifier.updates)
        repeat = delivery.may_repeat and not channel.notifier.idempotent and not edited
        if delivery.reason in (AlertReason.PLATFORM, AlertReason.TEST):
            return self._platform(delivery, channel)
        if members:
            return self._together(delivery, channel, members, repeat)
        try:
            incident = self._incidents.get(delivery.incident)
        except NotFound:
            return "the incident is gone"
        reason = delivery.reason
        link = incident_link(self._settings.console_url, incident.id)
        if (
            reason is AlertReason.RESOLVED
            and not incident.closed
            and delivery.thread != (incident.thread or incident.id)
        ):
            return merged_alert(
                incident, key=delivery.thread, now_ms=self._clock.now_ms(), language=channel.settings.language,
                disclosure=channel.disclosure, link=link, idempotency_key=delivery.id,
            )  # fmt: skip
        told = thread is not None and thread.open
        if incident.closed and reason is not AlertReason.RESOLVED:
            reason = AlertReason.RESOLVED
        if incident.closed and not told and incident.severity not in _URGENT:
            return "over before it was told"
        if reason is AlertReason.RESOLVED and not incident.closed:
            reason = AlertReason.REOPENED if not told else AlertReason.CHANGED
        if not incident.closed and (incident.silenced_by or incident.inhibited_by):
            return "silenced or inhibited before it was told"
        facts = self._facts.read(incident)
        picture = None
        if self._picture is not None and reason is AlertReason.OPENED and _shows_pictures(channel):
            picture = self._picture(incident, facts, channel.disclosure)
        alert = incident_alert(
            incident, facts, reason, now_ms=self._clock.now_ms(), zone=channel.zone,
            language=channel.settings.language, disclosure=channel.disclosure,
            link=link, idempotency_key=delivery.id, may_repeat=repeat,
            picture=picture,
        )  # fmt: skip
        return replace(alert, key=delivery.thread, buttons=self._buttons(incident, facts, channel))

    def _buttons(self, incident: Incident, facts: Facts, channel: Channel) -> list[tuple[str, str]]:
        """Return what may be pressed now; a press is checked against the incident as the message showed it."""
        if not channel.settings.buttons or incident.closed:
            return []
        words = _BUTTONS[channel.settings.language]
        now_ms = self._clock.now_ms()
        found: list[tuple[str, str]] = []
        if incident.state is IncidentState.OPEN:
            found.append((words["ack"], button_value("ack", incident.id, incident.revision, now_ms)))
        waiting = next((one for one in facts.actions if one.state == "proposed" and one.mode == "approve"), None)
        if waiting is not None and channel.disclosure is not Disclosure.MINIMAL:
            for do in ("approve", "reject"):
                value = button_value("approve" if do == "approve" else "reject", waiting.id, incident.revision, now_ms)
                found.append((words[do], value))
        return found

    def is_over(self, delivery: StoredDelivery) -> bool:
        """Say whether the incident of a delivery is over by now."""
        try:
            return self._incidents.get(delivery.incident).closed
        except NotFound:
            return True

    def _together(
        self, delivery: StoredDelivery, channel: Channel, members: Sequence[StoredDelivery], repeat: bool
    ) -> Alert | str:
        told: list[tuple[Incident, AlertReason]] = []
        for member in members:
            try:
                incident = self._incidents.get(member.incident)
            except NotFound:
                continue
            told.append((incident, AlertReason.RESOLVED if incident.closed else member.reason))
        if not told:
            return "the incidents are gone"
        over = delivery.reason is AlertReason.RESOLVED or all(one.closed for one, _ in told)
        base = self._settings.console_url.rstrip("/")
        return together_alert(
            told, key=delivery.thread, over=over, now_ms=self._clock.now_ms(), cluster=self._cluster,
            language=channel.settings.language, disclosure=channel.disclosure,
            link=f"{base}/incidents" if base else "", idempotency_key=delivery.id, may_repeat=repeat,
        )  # fmt: skip

    def _platform(self, delivery: StoredDelivery, channel: Channel) -> Alert:
        return platform_alert(
            str(delivery.detail.get("what", "test")), delivery.detail, delivery.reason, delivery.severity,
            key=delivery.thread, now_ms=self._clock.now_ms(), zone=channel.zone, cluster=self._cluster,
            language=channel.settings.language, idempotency_key=delivery.id,
            link=self._settings.console_url,
        )  # fmt: skip


def _shows_pictures(channel: Channel) -> bool:
    wanted = channel.settings.pictures and channel.disclosure is not Disclosure.MINIMAL
    return wanted and channel.notifier.takes_pictures
