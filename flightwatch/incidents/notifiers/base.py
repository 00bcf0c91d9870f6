"""What notifiers of HTTP services share: one call, and what its answer means."""

from __future__ import annotations

import logging
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar

from flightwatch.core.errors import ConfigError, FlightwatchError, Refused
from flightwatch.core.vocabulary import Severity
from flightwatch.incidents.alert_settings import ChannelSettings
from flightwatch.incidents.contract import Alert, AlertReason, Delivery
from flightwatch.incidents.outgoing import Answer, Outgoing, OutgoingError, checked_url, tls_context

log = logging.getLogger(__name__)
#: Answers after which the same message may be taken later.
_RETRY = frozenset({408, 425, 429})
#: Longest wait that a service may ask for.
LONGEST_RETRY_AFTER_SECONDS = 3600.0
#: Colours of severities where a service shows one: red, orange, yellow, blue; green for what is over.
COLOURS = {Severity.P1: 0xD92D20, Severity.P2: 0xF79009, Severity.P3: 0xFDB022, Severity.P4: 0x2E90FA}
GREEN = 0x12B76A
GREY = 0x98A2B3
#: Reasons for which people must look again: a change of the old message would pass unseen.
LOOK_AGAIN = frozenset({AlertReason.WORSENED, AlertReason.REOPENED, AlertReason.REMINDER})


class HttpNotifier(ABC):
    """A channel whose service speaks HTTP.

    A subclass names its defaults and writes `deliver`. `send` turns every failure into a `Delivery`.
    """

    service: str = ""
    idempotent: bool = False
    updates: bool = False
    pages: bool = False
    per_minute: float = 60.0
    takes_pictures: bool = False
    default_url: ClassVar[str] = ""

    def __init__(self, name: str, settings: ChannelSettings, outgoing: Outgoing) -> None:
        """Check the settings. Raises ConfigError: one is wrong or missing."""
        self.name, self.settings, self._outgoing = name, settings, outgoing
        self._tls: ssl.SSLContext | None = (
            tls_context(settings.ca_file, f"channels.{name}.ca_file") if settings.ca_file else None
        )
        self.url = self.settings.secret_url or self.settings.url or self.default_url
        self.check()
        checked_url(self.url, f"channels.{name}.{'secret_url' if settings.secret_url else 'url'}")

    def check(self) -> None:
        """Check what this service needs besides a URL. Raises ConfigError."""
        if not self.url:
            raise ConfigError(f"channels.{self.name}: {self.service} needs its webhook address: {self.variable()}")

    def variable(self, key: str = "secret_url") -> str:
        """Name the environment variable of a secret."""
        name = self.name.upper().replace("-", "_")
        return f"FLIGHTWATCH_CHANNELS_{name}_{key.upper()} (or ..._FILE)"

    def need(self, *keys: str) -> None:
        """Refuse a channel without one of these settings. Raises ConfigError."""
        for key in keys:
            if not getattr(self.settings, key):
                how = self.variable(key) if key in ("token", "signing_secret") else f"channels.{self.name}.{key}"
                raise ConfigError(f"channels.{self.name}: {self.service} needs {how}")

    def send(self, alert: Alert, reference: Mapping[str, Any] | None) -> Delivery:
        """Send a message, or update the one of `reference`."""
        try:
            return self.deliver(alert, dict(reference or {}))
        except OutgoingError as error:
            return Delivery(ok=False, error=str(error), retry=True, unknown=error.sent)
        except (Refused, ConfigError) as error:
            return Delivery(ok=False, error=str(error), retry=False)

    @abstractmethod
    def deliver(self, alert: Alert, reference: dict[str, Any]) -> Delivery:
        """Make the calls of one message; `reference` is empty for a new one."""

    def call(self, method: str = "POST", url: str = "", **options: Any) -> Answer:
        """Call the service."""
        return self._outgoing.request(method, url or self.url, tls=self._tls, **options)

    def extra(self, call: Callable[[], object]) -> None:
        """Make calls that go with a message which is sent already: their failure must not repeat it."""
        try:
            call()
        except FlightwatchError as error:
            log.warning("channel %s: details or picture of a message were not taken: %s", self.name, error)

    def refusal(self, answer: Answer) -> Delivery | None:
        """Read a refusal from the body of an answer with status 2xx; None when the message was taken."""
        del answer
        return None

    def result(self, answer: Answer, reference: Mapping[str, Any] | None = None) -> Delivery:
        """Say what an answer means."""
        refused = self.refusal(answer) if answer.ok else _refusal_by_status(answer)
        if refused is not None:
            return refused
        return Delivery(
            ok=True, http_status=answer.status, reference=dict(reference or {}), latency_ms=answer.elapsed_ms
        )


def refused(answer: Answer, error: str, *, retry: bool, retry_after_seconds: float | None = None) -> Delivery:
    """Return a failed delivery with the service's own words."""
    return Delivery(
        ok=False, http_status=answer.status, error=error[:300], retry=retry, latency_ms=answer.elapsed_ms,
        retry_after_seconds=retry_after_seconds if retry_after_seconds is not None else retry_after(answer),
    )  # fmt: skip


def _refusal_by_status(answer: Answer) -> Delivery:
    text = answer.text()
    detail = f": {text}" if text else ""
    if 300 <= answer.status < 400:
        return refused(answer, f"answered {answer.status}: redirects are not followed", retry=False)
    return refused(
        answer, f"answered {answer.status}{detail}", retry=answer.status in _RETRY or answer.status >= 500
    )  # fmt: skip


def retry_after(answer: Answer) -> float | None:
    """Return the seconds that Retry-After asks for (a number or a date), None when it is absent or unreadable."""
    text = answer.headers.get("retry-after", "").strip()
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            moment = parsedate_to_datetime(text)
        except ValueError:
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        seconds = (moment - datetime.now(tz=UTC)).total_seconds()
    # NaN compares as false and ends as the longest wait.
    return max(0.0, seconds) if seconds < LONGEST_RETRY_AFTER_SECONDS else LONGEST_RETRY_AFTER_SECONDS


def is_over(alert: Alert) -> bool:
    """Say whether the message tells the end of its incident."""
    return alert.reason is AlertReason.RESOLVED


def colour(alert: Alert) -> int:
    """Return the colour of a message, 0xRRGGBB."""
    if is_over(alert):
        return GREEN
    if alert.reason is AlertReason.TEST:
        return GREY
    return COLOURS.get(alert.severity, GREY)


def is_urgent(alert: Alert) -> bool:
    """Say whether somebody may be woken for it."""
    return alert.severity in (Severity.P1, Severity.P2) and alert.reason not in (
        AlertReason.RESOLVED, AlertReason.ACKNOWLEDGED, AlertReason.CHANGED, AlertReason.TEST,
    )  # fmt: skip


def link_label(alert: Alert) -> str:
    """Return what the link to the incident's page says."""
    return "打开事件" if alert.language == "zh" else "Open incident"


def refusal_by_errcode(answer: Answer, passing: frozenset[int], waits: Mapping[int, float]) -> Delivery | None:
    """Read an answer whose `errcode` is 0 for success.

    Parameters
    ----------
    passing: codes after which another try can help. waits: seconds to wait after a code, such codes pass too.
    """
    body = answer.json()
    code = body.get("errcode") if isinstance(body, dict) else None
    if code == 0:
        return None
    if code is None:
        return refused(answer, f"answered no errcode: {answer.text()}", retry=True)
    wait = waits.get(code)
    return refused(
        answer, f"refused: {code} {body.get('errmsg', '')}", retry=code in passing or wait is not None,
        retry_after_seconds=wait,
    )  # fmt: skip


def cut(text: str, limit: int) -> str:
    """Shorten a text to `limit` characters, with an ellipsis where something is missing."""
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def cut_bytes(text: str, limit: int) -> str:
    """Shorten a text to `limit` bytes of UTF-8, never inside a character."""
    encoded = text.encode()
    return text if len(encoded) <= limit else encoded[: limit - 3].decode("utf-8", "ignore").rstrip() + "…"
