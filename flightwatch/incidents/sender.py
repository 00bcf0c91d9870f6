"""One channel's queue: what goes next, how fast, and what a failure means."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Sequence
from dataclasses import replace

from flightwatch.core.clock import Clock
from flightwatch.core.errors import FlightwatchError
from flightwatch.core.incident import AlertReason
from flightwatch.core.vocabulary import Severity
from flightwatch.incidents.alert_settings import AlertSettings
from flightwatch.incidents.channels import Channel
from flightwatch.incidents.contract import Alert, Delivery
from flightwatch.incidents.messages import Messages
from flightwatch.pipeline.control.alert_rows import DROPPED, FAILED, SENT, WAITING, Settled, StoredDelivery, Thread
from flightwatch.pipeline.control.alerts import AlertRecords
from flightwatch.pipeline.control.leases import Lease

log = logging.getLogger(__name__)
#: Window of `alerts.burst`.
BURST_MS = 60_000
#: Time until an empty queue is looked at again without a call.
IDLE_SECONDS = 5.0
_FIRST_RETRY_MS, _LONGEST_RETRY_MS = 2_000, 300_000
#: A refusal that another try cannot help is tried again all the same for P1 and P2: somebody may repair the channel.
_REPAIR_MS = 60_000
_LONGEST_PAUSE_MS = 60_000
#: What is later than this is of a clock that was set back; PostgreSQL's may be a little ahead of ours.
_SKEW_MS = 60_000
#: Failures in a row that are an outage of the channel, not the fault of one message.
_OUTAGE_FAILURES = 3
_URGENT = (Severity.P1, Severity.P2)
_OWN = (AlertReason.PLATFORM, AlertReason.TEST)
_SEVERITIES = list(Severity)


class ChannelSender:
    """Sends what waits for one channel, one message at a time. Used by one thread."""

    def __init__(
        self, channel: Channel, records: AlertRecords, messages: Messages, settings: AlertSettings, clock: Clock
    ) -> None:
        self._channel, self._records, self._messages = channel, records, messages
        self._settings, self._clock = settings, clock
        self._bucket = _Bucket(channel.per_minute, clock)
        self._paused_until_s = float("-inf")
        self._failures = 0
        #: When messages were taken again after an outage: what failed before waits no longer.
        self._back_at_ms = 0
        self._unsettled: tuple[StoredDelivery, Settled, list[StoredDelivery]] | None = None

    def step(self, lease: Lease) -> float:
        """Send at most one message; return in how many seconds the next step makes sense.

        Raises TransientError: the database is away; StaleGeneration: the lease is over.
        """
        self._settle(lease)
        waiting = self._records.due(self._channel.name)
        now_ms = self._clock.now_ms()
        ready = [one for one in waiting if self._is_ready(one, now_ms)]
        if not ready:
            return min((max(0, one.due_at_ms - now_ms) / 1000 for one in waiting), default=IDLE_SECONDS)
        paused = self._paused_until_s - self._clock.monotonic_s()
        if paused > 0:
            return paused
        pause = self._bucket.wait_seconds()
        if pause > 0:
            return pause
        chosen, pause = self._choose(lease, ready, now_ms)
        if chosen is None:
            return pause
        self._send(lease, chosen)
        return 0.0

    def _is_ready(self, one: StoredDelivery, now_ms: int) -> bool:
        """Say whether a message may go: its time came, the channel is back, or the clock was set back since."""
        return one.due_at_ms <= now_ms or one.updated_at_ms < self._back_at_ms or one.updated_at_ms > now_ms + _SKEW_MS

    def _choose(
        self, lease: Lease, ready: Sequence[StoredDelivery], now_ms: int
    ) -> tuple[StoredDelivery | None, float]:
        """Return what goes next; or how long to wait, so that what follows can go together."""
        ordered = sorted(ready, key=lambda one: (_SEVERITIES.index(one.severity), one.sequence))
        loud = [one for one in ordered if one.loud]
        calm = [one for one in ordered if not one.loud]
        if not loud:
            return calm[0], 0.0
        recent = self._records.loud_since(self._channel.name, now_ms - BURST_MS)
        recent = [one for one in recent if one[0] <= now_ms + _SKEW_MS]
        # Once several were told together, that goes on until a minute was calm.
        if len(recent) < self._settings.burst and not any(together for _, together in recent):
            return ordered[0], 0.0
        urgent = loud[0].severity is Severity.P1
        gap = self._settings.together_p1_seconds if urgent else self._settings.together_seconds
        next_ms = recent[-1][0] + round(gap * 1000)
        if now_ms < next_ms:
            return (calm[0] if calm else None), (next_ms - now_ms) / 1000
        members = [one for one in loud if one.reason not in _OWN and one.incident]
        if len(members) < 2:
            return loud[0], 0.0
        return self._records.gather(lease, members, members[0].severity), 0.0

    def _send(self, lease: Lease, delivery: StoredDelivery) -> None:
        members = [] if delivery.incident or delivery.reason in _OWN else self._records.carried_by(delivery.thread)
        thread = self._records.threads([delivery.thread]).get((self._channel.name, delivery.thread))
        alert = self._made(delivery, thread, members)
        if isinstance(alert, Settled):
            self._records.settle(lease, delivery, alert)
            return
        begun = self._records.intend(lease, delivery)
        self._bucket.take()
        answer = self._answer(alert, thread)
        settled = self._settled(begun, answer, closes=alert.reason is AlertReason.RESOLVED)
        # The message that told several together, not the one that tells their end.
        told = members if delivery.id == delivery.thread else []
        over = [replace(one, reason=AlertReason.RESOLVED) if self._messages.is_over(one) else one for one in told]
        self._unsettled = (begun, settled, over)
        self._settle(lease)

    def _settle(self, lease: Lease) -> None:
        """Note how the last send ended, again after a failure of the database: it must not be sent twice."""
        if self._unsettled is not None:
            begun, settled, told = self._unsettled
            if begun.epoch == lease.epoch:
                self._records.settle(lease, begun, settled, told)
            self._unsettled = None

    def _made(
        self, delivery: StoredDelivery, thread: Thread | None, members: Sequence[StoredDelivery]
    ) -> Alert | Settled:
        try:
            alert = self._messages.alert(delivery, self._channel, thread, members)
        except FlightwatchError:
            raise
        except Exception as error:  # One message that cannot be made must not keep the others back.
            log.exception("channel %s: a message cannot be made", self._channel.name)
            due_at_ms = self._clock.now_ms() + _REPAIR_MS
            return Settled(WAITING, error=f"cannot be made: {type(error).__name__}", due_at_ms=due_at_ms)
        return Settled(DROPPED, error=alert) if isinstance(alert, str) else alert

    def _answer(self, alert: Alert, thread: Thread | None) -> Delivery:
        try:
            return self._channel.notifier.send(alert, thread.reference if thread is not None else None)
        except Exception as error:  # A notifier of a third party: whatever it does, the intent must be settled.
            log.exception("channel %s: its notifier failed", self._channel.name)
            return Delivery(ok=False, error=f"the notifier failed: {type(error).__name__}", unknown=True)

    def _settled(self, delivery: StoredDelivery, answer: Delivery, *, closes: bool) -> Settled:
        if answer.ok:
            if self._failures >= _OUTAGE_FAILURES:
                self._back_at_ms = self._clock.now_ms()
            self._failures = 0
            return Settled(
                SENT, answer.http_status, None, answer.latency_ms, dict(answer.reference), closes=closes
            )  # fmt: skip
        now_ms = self._clock.now_ms()
        error = answer.error or "failed"
        self._failures += 1
        urgent = delivery.severity in _URGENT
        hours = self._settings.give_up_hours if urgent else self._settings.give_up_p3_hours
        given_up = now_ms - delivery.created_at_ms > hours * 3_600_000
        if given_up or not (answer.retry or urgent):
            log.error("channel %s: a message is given up: %s", self._channel.name, error)
            return Settled(FAILED, answer.http_status, error, answer.latency_ms, unknown=answer.unknown)
        wait_ms = self._wait_ms(delivery, answer)
        pause_ms = (
            wait_ms
            if answer.retry_after_seconds is not None
            else min(2_000 * 2 ** min(self._failures, 6), _LONGEST_PAUSE_MS)
        )
        until_s = self._clock.monotonic_s() + min(wait_ms, pause_ms) / 1000
        self._paused_until_s = max(self._paused_until_s, until_s)
        log.warning("channel %s: attempt %d failed: %s", self._channel.name, delivery.attempts, error)
        return Settled(
            WAITING, answer.http_status, error, answer.latency_ms, due_at_ms=now_ms + wait_ms, unknown=answer.unknown
        )  # fmt: skip

    def _wait_ms(self, delivery: StoredDelivery, answer: Delivery) -> int:
        if answer.retry_after_seconds is not None:
            return round(answer.retry_after_seconds * 1000)
        if not answer.retry:
            return _REPAIR_MS
        plain = min(_FIRST_RETRY_MS << min(delivery.attempts - 1, 12), _LONGEST_RETRY_MS)
        # Up to a fifth more or less, the same for the same attempt: many channels of one service do not come at once.
        share = zlib.crc32(f"{delivery.id}|{delivery.attempts}".encode()) / 2**32
        return round(plain * (0.8 + 0.4 * share))


class _Bucket:
    """Lets a number of messages pass a minute, up to five of them at once."""

    def __init__(self, per_minute: float, clock: Clock) -> None:
        self._rate = per_minute / 60
        self._most = max(1.0, min(5.0, per_minute))
        self._clock = clock
        self._level, self._at_s = self._most, clock.monotonic_s()

    def wait_seconds(self) -> float:
        """Return how long the next message has to wait."""
        now_s = self._clock.monotonic_s()
        self._level = min(self._most, self._level + (now_s - self._at_s) * self._rate)
        self._at_s = now_s
        return 0.0 if self._level >= 1 else (1 - self._level) / self._rate

    def take(self) -> None:
        """Count one message."""
        self._level -= 1
