"""DingTalk: markdown message of a custom robot, signed when the robot asks for it.

Format: custom robot guide. The signature is urlencode(base64(HMAC-SHA256(secret, "timestamp\\nsecret"))) with the
timestamp in milliseconds, both in the query; 20 messages a minute, beyond that the robot is stopped for ten minutes.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from typing import Any

import httpx

from flightwatch.incidents.contract import Alert, Delivery
from flightwatch.incidents.notifiers.base import HttpNotifier, cut, cut_bytes, is_urgent, refusal_by_errcode
from flightwatch.incidents.notifiers.markdown import escaped, message_body
from flightwatch.incidents.outgoing import Answer

#: The service is busy.
_BUSY = frozenset({-1, 33012, 400102})
#: Too many messages: the robot is stopped for ten minutes.
_STOPPED_SECONDS = dict.fromkeys((130101, 90018, 90030, 410100), 600.0)


def signature(secret: str, timestamp_ms: int) -> str:
    """Return the signature of a timestamp in milliseconds, not yet URL-encoded."""
    text = f"{timestamp_ms}\n{secret}".encode()
    return base64.b64encode(hmac.new(secret.encode(), text, hashlib.sha256).digest()).decode()


class DingTalk(HttpNotifier):
    """A markdown message in a group. A robot cannot change its messages: each message stands alone."""

    service = "dingtalk"
    per_minute = 18.0

    def deliver(self, alert: Alert, reference: dict[str, Any]) -> Delivery:
        """Send a message."""
        del reference
        url = httpx.URL(self.url)
        if self.settings.signing_secret:
            timestamp_ms = int(time.time() * 1000)
            sign = signature(self.settings.signing_secret, timestamp_ms)
            url = url.copy_merge_params({"timestamp": str(timestamp_ms), "sign": sign})
        mention = f"{self.settings.mention} " if self.settings.mention and is_urgent(alert) else ""
        text = f"### {escaped(cut(alert.title, 200))}\n\n{mention}{message_body(alert, newline=chr(10) * 2)}"
        body: dict[str, Any] = {
            "msgtype": "markdown",
            "markdown": {"title": cut(alert.title, 100), "text": cut_bytes(text, 12_000)},
            "at": {"isAtAll": bool(mention) and "@all" in mention},
        }
        return self.result(self.call(url=str(url), json=body))

    def refusal(self, answer: Answer) -> Delivery | None:
        """Success is errcode 0."""
        return refusal_by_errcode(answer, _BUSY, _STOPPED_SECONDS)
