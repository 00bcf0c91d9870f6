"""The follower that tells people: plans messages in the engine's cycle, sends them from a thread a channel."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from flightwatch.core.clock import Clock
from flightwatch.core.errors import FlightwatchError, StaleGeneration
from flightwatch.core.logs import Occasionally
from flightwatch.incidents.alert_settings import AlertSettings
from flightwatch.incidents.channels import Channel
from flightwatch.incidents.heartbeat import Heartbeat
from flightwatch.incidents.messages import Messages
from flightwatch.incidents.planning import Planner
from flightwatch.incidents.routes import Routes
from flightwatch.incidents.sender import ChannelSender
from flightwatch.pipeline.control.alerts import AlertRecords
from flightwatch.pipeline.control.incidents import IncidentRecords
from flightwatch.pipeline.control.leases import Lease

log = logging.getLogger(__name__)
_REMIND_SECONDS, _REPORT_SECONDS, _FORGET_SECONDS = 10.0, 5.0, 3600.0
#: After a failure of the database a sender waits so long.
_TROUBLE_SECONDS = 1.0
_DAY_MS = 86_400_000


class Alerting:
    """See the module. One lives in the process that holds the engine's lease; `stop` ends its threads.

    A message is intended in the control database before it is sent and settled after it: who dies in between
    leaves at most one message a channel whose outcome is unknown, and the next holder sends that one again.
    """

    name = "alerts"
    urgent = True

    def __init__(
        self, records: AlertRecords, incidents: IncidentRecords, channels: Mapping[str, Channel], routes: Routes,
        messages: Messages, settings: AlertSettings, clock: Clock, heartbeat: Heartbeat | None = None,
    ) -> None:  # fmt: skip
        self._records, self._channels, self._messages = records, channels, messages
        self._settings, self._clock, self._heartbeat = settings, clock, heartbeat
        self._planner = Planner(records, incidents, channels, routes, settings, clock)
        self._loops = [
            _Loop(name, ChannelSender(channel, records, messages, settings, clock))
            for name, channel in channels.items()
        ]  # fmt: skip
        self._pulse = threading.Thread(target=self._beat, name="alerts-heartbeat", daemon=True)
        self._stopped = threading.Event()
        self._epoch: int | None = None
        self._due: dict[str, float] = {}
        self._cycle_s = float("-inf")

    def cycle(self, lease: Lease) -> None:
        """Plan what is due and wake the senders.

        Raises
        ------
        TransientError: the control database is away; nothing is lost. StaleGeneration: the lease is over.
        """
        if lease.epoch != self._epoch:
            left = self._records.recover(lease, self._channels)
            if left:
                log.warning("%d messages may repeat: an earlier process ended while it sent them", left)
            self._epoch = lease.epoch
            self._messages.prepare(self._channels.values())
        told = self._planner.plan(lease)
        if self._is_due("remind", _REMIND_SECONDS):
            told += self._planner.remind(lease)
        if self._is_due("report", _REPORT_SECONDS):
            self._planner.report(lease)
        if self._is_due("forget", _FORGET_SECONDS):
            self._records.forget(self._clock.now_ms() - round(self._settings.keep_days * _DAY_MS))
        self._cycle_s = self._clock.monotonic_s()
        for loop in self._loops:
            loop.run_under(lease, wake=told > 0)
        if self._heartbeat is not None and self._heartbeat.url and not self._pulse.ident:
            self._pulse.start()

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """End the threads; a message on its way is waited for."""
        self._stopped.set()
        for loop in self._loops:
            loop.stop(timeout_seconds)
        if self._pulse.ident:
            self._pulse.join(timeout_seconds)

    def _is_due(self, what: str, seconds: float) -> bool:
        now_s = self._clock.monotonic_s()
        if now_s < self._due.get(what, float("-inf")):
            return False
        self._due[what] = now_s + seconds
        return True

    def _beat(self) -> None:
        """Call the outside receiver while this process cycles and at least one channel takes messages."""
        heartbeat = self._heartbeat
        while heartbeat is not None and not self._stopped.wait(0.5):
            if not heartbeat.due:
                continue
            cycling = self._clock.monotonic_s() - self._cycle_s < self._settings.heartbeat_seconds
            try:
                if cycling and not self._planner.all_dead():
                    heartbeat.beat()
            except FlightwatchError as error:
                log.warning("no heartbeat: %s", error)


class _Loop:
    """A thread that steps one sender under the newest lease."""

    def __init__(self, name: str, sender: ChannelSender) -> None:
        self._name, self._sender = name, sender
        self._lease: Lease | None = None
        self._wake, self._stopped = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"alerts-{name}", daemon=True)
        self._complain = Occasionally(60.0)

    def run_under(self, lease: Lease, *, wake: bool) -> None:
        """Go on under this lease, at once when there is something new."""
        news = self._lease is None or self._lease.epoch != lease.epoch
        self._lease = lease
        if not self._thread.ident:
            self._thread.start()
        if wake or news:
            self._wake.set()

    def stop(self, timeout_seconds: float) -> None:
        """End after the message on its way."""
        self._stopped.set()
        self._wake.set()
        if self._thread.ident:
            self._thread.join(timeout_seconds)

    def _run(self) -> None:
        while not self._stopped.is_set():
            pause = self._step()
            if pause > 0:
                self._wake.wait(pause)
                self._wake.clear()

    def _step(self) -> float:
        lease = self._lease
        if lease is None:
            return _TROUBLE_SECONDS
        try:
            return self._sender.step(lease)
        except StaleGeneration:
            # Another process sends now; this one waits for a lease of its own.
            if self._lease is lease:
                self._lease = None
        except FlightwatchError as error:
            if self._complain.due():
                log.warning("channel %s: %s", self._name, error)
        except Exception:  # One bad message must not end the channel for good.
            log.exception("channel %s: a message could not be made or sent", self._name)
        return _TROUBLE_SECONDS
