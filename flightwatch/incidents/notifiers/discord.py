"""Discord: webhook message with an embed, changed in place later.

Format: execute webhook (`?wait=true` returns the message) and edit webhook message. Content takes 2,000 characters; an
embed's title 256, description 4,096, 25 fields of 256 and 1,024 characters, 6,000 together; 429 carries retry_after.
"""

from __future__ import annotations

import json
from typing import Any

import httpx

from flightwatch.core.clock import iso_utc
from flightwatch.incidents.contract import Alert, AlertReason, Delivery
from flightwatch.incidents.notifiers.base import LOOK_AGAIN, HttpNotifier, colour, cut, is_urgent, refused
from flightwatch.incidents.notifiers.markdown import escaped


class Discord(HttpNotifier):
    """A message with an embed. What people must see again is posted anew, all else changes the old message."""

    service = "discord"
    updates = True
    takes_pictures = True
    per_minute = 28.0

    def deliver(self, alert: Alert, reference: dict[str, Any]) -> Delivery:
        """Post, or edit."""
        message = reference.get("message")
        if message and alert.reason not in LOOK_AGAIN:
            url = httpx.URL(self.url)
            edit = str(url.copy_with(path=f"{url.path.rstrip('/')}/messages/{message}"))
            return self._judged("PATCH", edit, self._message(alert), reference)
        url = httpx.URL(self.url).copy_merge_params({"wait": "true"})
        picture = alert.picture if self.settings.pictures and alert.reason is AlertReason.OPENED else None
        return self._judged("POST", str(url), self._message(alert, picture is not None), {}, picture)

    def _judged(
        self, method: str, url: str, body: dict[str, Any], reference: dict[str, Any], picture: bytes | None = None
    ) -> Delivery:
        if picture is not None:
            form = {"payload_json": json.dumps(body, ensure_ascii=False)}
            answer = self.call(method, url, data=form, files={"files[0]": ("evidence.png", picture, "image/png")})
        else:
            answer = self.call(method, url, json=body)
        answered = answer.json() or {}
        if answer.status == 429 and isinstance(answered, dict) and "retry_after" in answered:
            return refused(answer, "rate limited", retry=True, retry_after_seconds=float(answered["retry_after"]))
        if answer.ok and isinstance(answered, dict) and answered.get("id"):
            reference = {"message": str(answered["id"])}
        return self.result(answer, reference)

    def _message(self, alert: Alert, with_picture: bool = False) -> dict[str, Any]:
        mention = self.settings.mention if self.settings.mention and is_urgent(alert) else ""
        embed: dict[str, Any] = {
            "title": cut(alert.title, 256),
            "description": cut(escaped(alert.lead), 2000),
            "color": colour(alert),
            "timestamp": iso_utc(alert.at_ms),
            "fields": self._fields(alert),
        }
        if alert.link:
            embed["url"] = alert.link
        if with_picture:
            embed["image"] = {"url": "attachment://evidence.png"}
        parse = ["everyone", "roles", "users"] if mention else []
        return {"content": cut(mention, 2000), "embeds": [embed], "allowed_mentions": {"parse": parse}}

    @staticmethod
    def _fields(alert: Alert) -> list[dict[str, Any]]:
        # An embed takes 6,000 characters in all; title and description have taken 2,256 of them.
        room, fields = 3500, []
        for label, value in alert.facts[:25]:
            name, text = cut(label, 256), cut(escaped(value), 1024)
            room -= len(name) + len(text)
            if room < 0:
                break
            fields.append({"name": name, "value": text, "inline": False})
        return fields
