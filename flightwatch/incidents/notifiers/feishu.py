"""Feishu and Lark: interactive card of a custom bot, signed when the bot asks for signatures.

Format: custom bot guide of the open platform. The signature is base64(HMAC-SHA256(key "timestamp\\nsecret", empty
message)), the timestamp in seconds and at most an hour old; a request takes 20 KB; 100 messages a minute, 5 a second.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from typing import Any

from flightwatch.core.vocabulary import Severity
from flightwatch.incidents.contract import Alert, AlertReason, Delivery
from flightwatch.incidents.notifiers.base import HttpNotifier, cut, cut_bytes, is_over, is_urgent, link_label, refused
from flightwatch.incidents.outgoing import Answer

_TEMPLATES = {Severity.P1: "red", Severity.P2: "orange", Severity.P3: "yellow", Severity.P4: "blue"}
#: 11232 and 9499: too many requests; 11233: the group is muted for a while.
_PASSING = frozenset({11232, 11233, 9499, 1500})


def signature(secret: str, timestamp: int) -> str:
    """Return the signature of a timestamp in seconds."""
    key = f"{timestamp}\n{secret}".encode()
    return base64.b64encode(hmac.new(key, b"", hashlib.sha256).digest()).decode()


class Feishu(HttpNotifier):
    """A card in a group. A custom bot cannot change or answer its messages: each message stands alone."""

    service = "feishu"
    per_minute = 90.0

    def deliver(self, alert: Alert, reference: dict[str, Any]) -> Delivery:
        """Send a card."""
        del reference
        body: dict[str, Any] = {"msg_type": "interactive", "card": self._card(alert)}
        if self.settings.signing_secret:
            timestamp = int(time.time())
            body = {"timestamp": str(timestamp), "sign": signature(self.settings.signing_secret, timestamp)} | body
        return self.result(self.call(json=body))

    def refusal(self, answer: Answer) -> Delivery | None:
        """Success is code 0 (StatusCode 0 in answers of the first version)."""
        body = answer.json()
        if not isinstance(body, dict):
            return refused(answer, f"answered no JSON: {answer.text()}", retry=True)
        code = body.get("code", body.get("StatusCode", 0))
        if code == 0:
            return None
        return refused(answer, f"refused: {code} {body.get('msg', '')}".strip(), retry=code in _PASSING)

    def _card(self, alert: Alert) -> dict[str, Any]:
        mention = f"{self.settings.mention}\n" if self.settings.mention and is_urgent(alert) else ""
        facts = "\n".join(f"**{_plain(label)}**: {_plain(value)}" for label, value in alert.facts)
        elements: list[dict[str, Any]] = [
            {"tag": "div", "text": {"tag": "lark_md", "content": mention + cut_bytes(_plain(alert.lead), 6000)}}
        ]
        if facts:
            elements += [{"tag": "hr"}, {"tag": "div", "text": {"tag": "lark_md", "content": cut_bytes(facts, 9000)}}]
        if alert.link:
            button = {
                "tag": "button",
                "text": {"tag": "plain_text", "content": link_label(alert)},
                "type": "primary",
                "url": alert.link,
            }
            elements.append({"tag": "action", "actions": [button]})
        return {
            "config": {"wide_screen_mode": True},
            "header": {"title": {"tag": "plain_text", "content": cut(alert.title, 200)}, "template": _template(alert)},
            "elements": elements,
        }


def _template(alert: Alert) -> str:
    if is_over(alert):
        return "green"
    return "grey" if alert.reason is AlertReason.TEST else _TEMPLATES.get(alert.severity, "grey")


def _plain(text: str) -> str:
    """Escape what lark_md reads as markup: a job's name must not mention everybody."""
    for char, code in (("<", "&#60;"), (">", "&#62;"), ("*", "&#42;"), ("~", "&#126;"), ("[", "&#91;"), ("]", "&#93;")):
        text = text.replace(char, code)
    return text
