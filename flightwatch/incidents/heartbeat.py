"""The dead-man's switch: an outside receiver is called while messages can be sent, and alarms when calls stop."""

from __future__ import annotations

import logging

from flightwatch.core.clock import Clock
from flightwatch.core.errors import FlightwatchError
from flightwatch.core.logs import Occasionally
from flightwatch.incidents.alert_settings import AlertSettings
from flightwatch.incidents.outgoing import Outgoing, checked_url, place_of

log = logging.getLogger(__name__)


class Heartbeat:
    """Calls `alerts.heartbeat_url` (healthchecks.io, Dead Man's Snitch, Cronitor or a receiver of one's own)."""

    def __init__(self, settings: AlertSettings, outgoing: Outgoing, clock: Clock) -> None:
        """Check the address. Raises ConfigError: it cannot be called."""
        self.url = settings.heartbeat_url
        if self.url:
            checked_url(self.url, "alerts.heartbeat_url")
        self._seconds, self._outgoing, self._clock = settings.heartbeat_seconds, outgoing, clock
        self._last_s = float("-inf")
        self._complain = Occasionally(600.0)

    @property
    def due(self) -> bool:
        """Say whether a call is due."""
        return bool(self.url) and self._clock.monotonic_s() - self._last_s >= self._seconds

    def beat(self) -> bool:
        """Call once; return whether it was heard. A failure is logged now and then, and tried again in time."""
        self._last_s = self._clock.monotonic_s()
        try:
            answer = self._outgoing.request("POST", self.url, content=b"", timeout_seconds=self._seconds)
        except FlightwatchError as error:
            if self._complain.due():
                log.warning("the heartbeat was not heard: %s", error)
            return False
        if not answer.ok and self._complain.due():
            log.warning("the heartbeat receiver at %s answered %d", place_of(self.url), answer.status)
        return answer.ok
