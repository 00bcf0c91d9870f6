"""What is to be told, where: needs of the engine become messages to channels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from flightwatch.core.clock import Clock
from flightwatch.core.errors import NotFound
from flightwatch.core.incident import AlertReason, Incident, IncidentState
from flightwatch.core.vocabulary import Severity
from flightwatch.incidents.alert_settings import AlertSettings
from flightwatch.incidents.channels import Channel
from flightwatch.incidents.routes import PLATFORM_SEVERITY, Routes
from flightwatch.pipeline.control.alert_rows import ChannelState, NewDelivery, Thread
from flightwatch.pipeline.control.alerts import AlertRecords
from flightwatch.pipeline.control.incident_rows import AlertNeed
from flightwatch.pipeline.control.incidents import IncidentRecords
from flightwatch.pipeline.control.leases import Lease

_URGENT = (Severity.P1, Severity.P2)
_NEEDS = 500
#: Longest wait between two reminders.
_LONGEST_REMINDER_MS = 4 * 3_600_000
#: Failures in a row that make a channel dead before the minutes are over.
_DEAD_FAILURES = 3


class Planner:
    """Makes messages of needs, reminders, and reports about dead channels. Used by one thread."""

    def __init__(
        self, records: AlertRecords, incidents: IncidentRecords, channels: Mapping[str, Channel], routes: Routes,
        settings: AlertSettings, clock: Clock,
    ) -> None:  # fmt: skip
        self._records, self._incidents, self._channels = records, incidents, channels
        self._routes, self._settings, self._clock = routes, settings, clock

    def plan(self, lease: Lease) -> int:
        """Turn all waiting needs into messages; return how many needs there were.

        Raises TransientError: the database is away; StaleGeneration: the lease is over. Nothing is lost.
        """
        handled = 0
        while needs := self._records.needs.waiting(_NEEDS):
            keys = {_key(need.incident) for need in needs}
            threads, pending = self._records.threads(keys), self._records.pending(keys)
            wanted: list[NewDelivery] = []
            for need in needs:
                for channel in self._channels.values():
                    pair = (channel.name, _key(need.incident))
                    one = self._message(need, channel, threads.get(pair), pair in pending)
                    if one is not None:
                        wanted.append(one)
                        pending.add(pair)
            over = list(self._over_together(lease, needs, threads))
            self._records.plan(lease, wanted + over, [need.sequence for need in needs])
            handled += len(needs)
            if len(needs) < _NEEDS:
                break
        return handled

    def _message(self, need: AlertNeed, channel: Channel, thread: Thread | None, waits: bool) -> NewDelivery | None:
        """Return what one channel is told of one need, None when nothing."""
        incident, reason = need.incident, need.reason
        if not self._hears(need, channel, thread, waits):
            return None
        wanted = _reason(reason, channel, thread, incident)
        if wanted is None:
            return None
        # Where the old message is changed in place, nobody's telephone rings.
        edits = thread is not None and thread.digest is None and channel.notifier.updates
        calm = wanted in (AlertReason.CHANGED, AlertReason.ACKNOWLEDGED, AlertReason.RESOLVED)
        return NewDelivery(
            id=f"{need.sequence}.{channel.name}", channel=channel.name, thread=_key(incident), incident=incident.id,
            reason=wanted, severity=incident.severity, loud=not (edits and calm),
        )  # fmt: skip

    def _hears(self, need: AlertNeed, channel: Channel, thread: Thread | None, waits: bool) -> bool:
        """Say whether a channel hears of a need at all: by its routes, or because it heard of the incident before."""
        incident = need.incident
        told = thread is not None and thread.open
        if need.reason is AlertReason.RESOLVED:
            return (told or waits) and not (thread is not None and thread.digest)
        if incident.merged_into or incident.closed or _is_quiet(incident):
            return False
        return told or channel.name in self._routes.channels(incident, self._clock.now_ms())

    def _over_together(
        self, lease: Lease, needs: Sequence[AlertNeed], threads: Mapping[tuple[str, str], Thread]
    ) -> Iterator[NewDelivery]:
        """Close the ends of what was told together; when the last one is over, tell that once."""
        ended = {_key(need.incident) for need in needs if need.reason is AlertReason.RESOLVED}
        digests: set[tuple[str, str]] = set()
        for (channel, key), thread in threads.items():
            if key in ended and thread.digest and thread.open:
                self._records.close_thread(lease, channel, key)
                digests.add((channel, thread.digest))
        for channel, digest in sorted(digests):
            members = self._records.told_together(channel, digest)
            if channel in self._channels and members and not any(member.open for member in members):
                severity = min((member.severity for member in members), key=list(Severity).index)
                yield NewDelivery(f"{digest}.over", channel, digest, "", AlertReason.RESOLVED, severity)

    def remind(self, lease: Lease) -> int:
        """Tell unacknowledged P1 and P2 incidents again where nothing was heard for a while; return how many."""
        now_ms = self._clock.now_ms()
        first = {
            Severity.P1: self._settings.remind_p1_minutes * 60_000,
            Severity.P2: self._settings.remind_p2_minutes * 60_000,
        }
        shortest = min((ms for ms in first.values() if ms > 0), default=None)
        if shortest is None:
            return 0
        wanted = []
        for thread in self._records.open_threads(round(now_ms - shortest)):
            channel, after_ms = self._channels.get(thread.channel), first.get(thread.severity, 0)
            # A pager reminds by rules of its own.
            if channel is None or channel.notifier.pages or not after_ms or not thread.incident:
                continue
            if now_ms - thread.last_at_ms < min(after_ms * 2**thread.reminders, _LONGEST_REMINDER_MS):
                continue
            incident = self._unacknowledged(thread.incident)
            if incident is not None:
                wanted.append(
                    NewDelivery(
                        f"{thread.thread}.remind.{thread.reminders}.{thread.last_at_ms}.{channel.name}", channel.name,
                        thread.thread, incident.id, AlertReason.REMINDER, incident.severity,
                    )
                )  # fmt: skip
        if wanted:
            self._records.plan(lease, wanted)
        return len(wanted)

    def _unacknowledged(self, id_: str) -> Incident | None:
        try:
            incident = self._incidents.get(id_)
        except NotFound:
            return None
        open_ = incident.state is IncidentState.OPEN and incident.severity in _URGENT
        return incident if open_ and not _is_quiet(incident) else None

    def report(self, lease: Lease) -> None:
        """Tell the other channels when one takes no messages, and when it does again."""
        now_ms = self._clock.now_ms()
        states = self._records.channel_states()
        waiting = self._records.waiting_by_channel()
        dead = {name for name, state in states.items() if self._is_dead(state, now_ms)}
        for name, state in states.items():
            channel = self._channels.get(name)
            if channel is None or (name in dead) == (state.reported_at_ms is not None):
                continue
            if name not in dead and state.failures:
                continue
            what = "dead" if name in dead else "alive"
            detail = {
                "what": what, "channel": name, "service": channel.notifier.service, "error": state.last_error or "",
                "since_ms": state.last_ok_at_ms or state.failing_since_ms or now_ms, "waiting": waiting.get(name, 0),
            }  # fmt: skip
            tells = [other for other in self._others(name) if other not in dead]
            wanted = [
                NewDelivery(
                    f"{what}.{name}.{state.failing_since_ms or state.reported_at_ms}.{other}", other,
                    f"channel:{name}", "", AlertReason.PLATFORM, PLATFORM_SEVERITY, detail=detail,
                )
                for other in tells
            ]  # fmt: skip
            self._records.report_channel(lease, name, wanted, dead=name in dead)

    def _is_dead(self, state: ChannelState, now_ms: int) -> bool:
        if not state.failures or state.failing_since_ms is None:
            return False
        lasted = now_ms - state.failing_since_ms
        return state.failures >= _DEAD_FAILURES and lasted >= self._settings.dead_after_minutes * 60_000

    def _others(self, name: str) -> Sequence[str]:
        chats = [other for other in self._routes.default(PLATFORM_SEVERITY) if other != name]
        return chats or [other for other in self._channels if other != name]

    def all_dead(self) -> bool:
        """Say whether there are channels and none takes messages."""
        states, now_ms = self._records.channel_states(), self._clock.now_ms()
        return bool(self._channels) and all(
            name in states and self._is_dead(states[name], now_ms) for name in self._channels
        )  # fmt: skip


def _key(incident: Incident) -> str:
    return incident.thread or incident.id


def _is_quiet(incident: Incident) -> bool:
    return bool(incident.silenced_by or incident.inhibited_by or incident.stale)


def _reason(reason: AlertReason, channel: Channel, thread: Thread | None, incident: Incident) -> AlertReason | None:
    """Return the reason as a channel knows it: what is news for one is a change for another; None: not told."""
    told = thread is not None and thread.open
    together = thread is not None and thread.digest is not None
    if reason in (AlertReason.OPENED, AlertReason.WORSENED, AlertReason.REOPENED, AlertReason.REMINDER) and not told:
        return AlertReason.REOPENED if reason is AlertReason.REOPENED else AlertReason.OPENED
    if reason is AlertReason.OPENED:
        reason = AlertReason.CHANGED
    if reason is AlertReason.CHANGED:
        return reason if told and channel.notifier.updates and not together else None
    if reason is AlertReason.ACKNOWLEDGED:
        useful = channel.notifier.updates or incident.severity in _URGENT
        return reason if told and useful and not together else None
    # Who was told is reminded by `remind`, each channel in its own time.
    return None if reason is AlertReason.REMINDER else reason
