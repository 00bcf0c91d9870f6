"""Microsoft Teams: adaptive card through a Workflow ("When a Teams webhook request is received").

Format: a message with one attachment of type application/vnd.microsoft.card.adaptive. A request takes 28 KB; the
answer is 202. Workflows neither change nor answer a message. Office connectors, its predecessor, are not supported.
"""

from __future__ import annotations

from typing import Any

from flightwatch.core.vocabulary import Severity
from flightwatch.incidents.contract import Alert, Delivery
from flightwatch.incidents.notifiers.base import HttpNotifier, cut, cut_bytes, is_over, is_urgent, link_label

_STYLES = {Severity.P1: "attention", Severity.P2: "warning", Severity.P3: "accent", Severity.P4: "emphasis"}


class Teams(HttpNotifier):
    """A card in a channel or chat; each message stands alone."""

    service = "teams"
    per_minute = 60.0

    def deliver(self, alert: Alert, reference: dict[str, Any]) -> Delivery:
        """Send a card."""
        del reference
        return self.result(self.call(json=self._message(alert)))

    def _message(self, alert: Alert) -> dict[str, Any]:
        mention = f"{self.settings.mention} " if self.settings.mention and is_urgent(alert) else ""
        style = "good" if is_over(alert) else _STYLES.get(alert.severity, "default")
        body: list[dict[str, Any]] = [
            {
                "type": "Container", "style": style, "bleed": True,
                "items": [_text(mention + cut(alert.title, 300), weight="Bolder", size="Medium")],
            },
            *(_text(line, spacing="Small") for line in cut_bytes(alert.lead, 5000).splitlines()[:20]),
        ]  # fmt: skip
        if alert.facts:
            body.append({"type": "FactSet", "facts": _facts(alert)})
        card: dict[str, Any] = {
            "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
            "type": "AdaptiveCard",
            "version": "1.4",
            "body": body,
            "msteams": {"width": "Full"},
        }
        if alert.link:
            card["actions"] = [{"type": "Action.OpenUrl", "title": link_label(alert), "url": alert.link}]
        attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
        return {"type": "message", "attachments": [attachment]}


def _facts(alert: Alert) -> list[dict[str, str]]:
    """Return as many facts as the size of a request allows."""
    room, facts = 14_000, []
    for label, value in alert.facts:
        fact = {"title": cut(label, 60), "value": cut(_plain(value), 700)}
        room -= len(fact["title"].encode()) + len(fact["value"].encode()) + 30
        if room < 0:
            break
        facts.append(fact)
    return facts


def _text(text: str, **options: str) -> dict[str, Any]:
    return {"type": "TextBlock", "text": cut(_plain(text), 1200), "wrap": True} | options


def _plain(text: str) -> str:
    """Escape the Markdown that text blocks understand."""
    for char in ("\\", "*", "_", "[", "]", "`", "<"):
        text = text.replace(char, "\\" + char if char != "<" else "‹")
    return text
