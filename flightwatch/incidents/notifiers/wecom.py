"""WeCom (企业微信): markdown message of a group robot, and the evidence as an image message after it.

Format: group robot guide. Markdown content takes 4,096 bytes; an image 2 MB as base64 with its MD5; 20 messages a
minute.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from flightwatch.incidents.contract import Alert, AlertReason, Delivery
from flightwatch.incidents.notifiers.base import (
    HttpNotifier,
    cut_bytes,
    is_over,
    is_urgent,
    link_label,
    refusal_by_errcode,
)
from flightwatch.incidents.outgoing import Answer

_BUSY = frozenset({-1, 45033})
#: More than 20 messages in a minute.
_TOO_MANY = {45009: 60.0}
_LARGEST_IMAGE = 2_000_000


class WeCom(HttpNotifier):
    """A markdown message in a group. A robot cannot change its messages: each message stands alone."""

    service = "wecom"
    takes_pictures = True
    per_minute = 18.0

    def deliver(self, alert: Alert, reference: dict[str, Any]) -> Delivery:
        """Send a message; a picture that fails does not make the message fail."""
        del reference
        sent = self.result(self.call(json={"msgtype": "markdown", "markdown": {"content": self._content(alert)}}))
        picture = alert.picture
        wanted = picture and self.settings.pictures and alert.reason is AlertReason.OPENED
        if sent.ok and wanted and picture and len(picture) <= _LARGEST_IMAGE:
            digest = hashlib.md5(picture, usedforsecurity=False).hexdigest()
            image = {"base64": base64.b64encode(picture).decode(), "md5": digest}
            self.extra(lambda: self.call(json={"msgtype": "image", "image": image}))
        return sent

    def _content(self, alert: Alert) -> str:
        colour = "info" if is_over(alert) else "warning"
        mention = f"{self.settings.mention}\n" if self.settings.mention and is_urgent(alert) else ""
        head = f'<font color="{colour}">**{_plain(alert.title)}**</font>\n{mention}{_plain(alert.lead)}'
        link = f"\n[{link_label(alert)}]({alert.link})" if alert.link else ""
        facts = "".join(f"\n> {_plain(label)}: {_plain(value)}" for label, value in alert.facts)
        room = 4096 - len(link.encode())
        return cut_bytes(head + facts, room) + link

    def refusal(self, answer: Answer) -> Delivery | None:
        """Success is errcode 0."""
        return refusal_by_errcode(answer, _BUSY, _TOO_MANY)


def _plain(text: str) -> str:
    """Take the power from angle brackets, which colour text and mention people, and from links."""
    return text.replace("<", "‹").replace(">", "›").replace("](", "] (")
