"""Discord: a message with an embed, changed in place later; of a bot (with buttons) or of an incoming webhook.

Formats: create message and edit message of a bot (`Authorization: Bot`), execute webhook (`?wait=true` returns the
message) and edit webhook message. Content takes 2,000 characters; an embed's title 256, description 4,096, 25 fields
of 256 and 1,024 characters, 6,000 together; a button's label 80, its custom_id 100, its url 512; 429 carries
retry_after. A bot's nonce lets Discord drop a repeat for some minutes.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import httpx

from flightwatch.core.clock import iso_utc
from flightwatch.core.errors import ConfigError
from flightwatch.incidents.contract import Alert, AlertReason, Delivery
from flightwatch.incidents.notifiers.base import LOOK_AGAIN, HttpNotifier, colour, cut, is_urgent, link_label, refused
from flightwatch.incidents.notifiers.markdown import escaped

#: Styles of buttons by what they do: blue, green, red.
_STYLES = {"ack": 1, "approve": 3, "reject": 4}
_LINK_STYLE = 5


class Discord(HttpNotifier):
    """A message with an embed. What people must see again is posted anew, all else changes the old message."""

    service = "discord"
    default_url = "https://discord.com/api/v10"
    updates = True
    takes_pictures = True
    per_minute = 28.0

    def check(self) -> None:
        """A bot needs token and channel, a webhook its address."""
        if self.settings.token:
            self.url = (self.settings.url or self.default_url).rstrip("/")
            self.need("to")
        elif not self.settings.secret_url:
            raise ConfigError(
                f"channels.{self.name}: discord needs {self.variable('token')} or {self.variable('secret_url')}"
            )

    def deliver(self, alert: Alert, reference: dict[str, Any]) -> Delivery:
        """Post, or edit."""
        message = reference.get("message")
        if message and alert.reason not in LOOK_AGAIN:
            return self._judged("PATCH", self._address(str(message)), self._message(alert), reference)
        picture = alert.picture if self.settings.pictures and alert.reason is AlertReason.OPENED else None
        body = self._message(alert, picture is not None)
        if self.settings.token:
            nonce = hashlib.sha256(alert.idempotency_key.encode()).hexdigest()[:25]
            body |= {"nonce": nonce, "enforce_nonce": True}
        return self._judged("POST", self._address(), body, {}, picture)

    def _address(self, message: str = "") -> str:
        """Return where messages are posted, or where one of them is."""
        if self.settings.token:
            return f"{self.url}/channels/{self.settings.to[0]}/messages" + (f"/{message}" if message else "")
        url = httpx.URL(self.url)
        if not message:
            return str(url.copy_merge_params({"wait": "true"}))
        return str(url.copy_with(path=f"{url.path.rstrip('/')}/messages/{message}"))

    def _judged(
        self, method: str, url: str, body: dict[str, Any], reference: dict[str, Any], picture: bytes | None = None
    ) -> Delivery:
        headers = {"Authorization": f"Bot {self.settings.token}"} if self.settings.token else {}
        if picture is not None:
            form = {"payload_json": json.dumps(body, ensure_ascii=False)}
            files = {"files[0]": ("evidence.png", picture, "image/png")}
            answer = self.call(method, url, data=form, files=files, headers=headers)
        else:
            answer = self.call(method, url, json=body, headers=headers)
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
        message = {"content": cut(mention, 2000), "embeds": [embed], "allowed_mentions": {"parse": parse}}
        # An incoming webhook belongs to no app that could hear of a press. An edit without rows keeps the old ones.
        return message | ({"components": _rows(alert)} if self.settings.token else {})

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


def _rows(alert: Alert) -> list[dict[str, Any]]:
    """Return the row of buttons, none where there is nothing to press."""
    row: list[dict[str, Any]] = [
        {"type": 2, "style": _STYLES.get(value.partition(":")[0], 2), "label": cut(label, 80), "custom_id": value}
        for label, value in alert.buttons
    ]
    if alert.link and len(alert.link) <= 512:
        row.append({"type": 2, "style": _LINK_STYLE, "label": link_label(alert), "url": alert.link})
    return [{"type": 1, "components": row}] if row else []
