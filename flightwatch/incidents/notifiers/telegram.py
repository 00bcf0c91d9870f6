"""Telegram: bot message in HTML, changed in place, answered where people must look again.

Format: Bot API `sendMessage`, `editMessageText`, `sendPhoto`. A text takes 4,096 characters after entities; a group 20
messages a minute; 429 carries parameters.retry_after.
"""

from __future__ import annotations

import html
from typing import Any

from flightwatch.incidents.contract import Alert, AlertReason, Delivery
from flightwatch.incidents.notifiers.base import LOOK_AGAIN, HttpNotifier, cut, is_over, is_urgent, link_label, refused
from flightwatch.incidents.outgoing import Answer


class Telegram(HttpNotifier):
    """A message of a bot in a chat."""

    service = "telegram"
    default_url = "https://api.telegram.org"
    updates = True
    takes_pictures = True
    per_minute = 18.0

    def check(self) -> None:
        """The bot's token and the chat's id are needed."""
        self.need("token", "to")

    def deliver(self, alert: Alert, reference: dict[str, Any]) -> Delivery:
        """Send, edit, or edit and answer."""
        message = reference.get("message_id")
        if not message:
            return self._first(alert)
        answer = self._api("editMessageText", self._body(alert) | {"message_id": message})
        edited = self.result(answer, reference)
        if not edited.ok or not (alert.reason in LOOK_AGAIN or is_over(alert)):
            return edited
        reply = {
            "chat_id": self.settings.to[0], "text": f"<b>{html.escape(alert.title)}</b>", "parse_mode": "HTML",
            "reply_parameters": {"message_id": message, "allow_sending_without_reply": True},
            "disable_notification": not is_urgent(alert),
        }  # fmt: skip
        return self.result(self._api("sendMessage", reply), reference)

    def _first(self, alert: Alert) -> Delivery:
        body = self._body(alert) | {"disable_notification": not is_urgent(alert)}
        answer = self._api("sendMessage", body)
        answered = answer.json()
        result = answered.get("result") if isinstance(answered, dict) else None
        message = result.get("message_id") if isinstance(result, dict) else None
        sent = self.result(answer, {"message_id": message})
        if sent.ok and message and alert.picture and self.settings.pictures and alert.reason is AlertReason.OPENED:
            self.extra(lambda: self._picture(alert.picture, message))
        return sent

    def _picture(self, picture: bytes | None, message: int) -> None:
        form = {
            "chat_id": self.settings.to[0], "disable_notification": "true",
            "reply_parameters": f'{{"message_id": {int(message)}}}',
        }  # fmt: skip
        self.call(url=self._method("sendPhoto"), data=form, files={"photo": ("evidence.png", picture, "image/png")})

    def _method(self, method: str) -> str:
        return f"{self.url.rstrip('/')}/bot{self.settings.token}/{method}"

    def _api(self, method: str, body: dict[str, Any]) -> Answer:
        return self.call(url=self._method(method), json=body)

    def result(self, answer: Answer, reference: Any = None) -> Delivery:
        """Read retry_after; a text that is already as wanted counts as edited."""
        body = answer.json()
        if not answer.ok and isinstance(body, dict):
            description = str(body.get("description", "refused"))
            if "message is not modified" in description:
                return Delivery(ok=True, http_status=answer.status, reference=dict(reference or {}))
            wait = (body.get("parameters") or {}).get("retry_after")
            if answer.status == 429 and wait is not None:
                return refused(answer, description, retry=True, retry_after_seconds=float(wait))
        return super().result(answer, reference)

    def _body(self, alert: Alert) -> dict[str, Any]:
        mention = f"{html.escape(self.settings.mention)}\n" if self.settings.mention and is_urgent(alert) else ""
        link = ""
        if alert.link:
            link = f'\n<a href="{html.escape(alert.link)}">{link_label(alert)}</a>'
        # Escaping lengthens the text but not what Telegram counts.
        facts = "\n".join(f"{label}: {value}" for label, value in alert.facts)
        text = f"{mention}<b>{html.escape(cut(alert.title, 300))}</b>\n{html.escape(cut(alert.lead, 1500))}"
        details = f"\n\n{html.escape(cut(facts, 1800))}" if facts else ""
        keyboard = [[{"text": label, "callback_data": value} for label, value in alert.buttons]]
        return {
            # Sent always: an edit without it keeps the buttons of before.
            "reply_markup": {"inline_keyboard": keyboard if alert.buttons else []},
            "chat_id": self.settings.to[0],
            "text": text + details + link,
            "parse_mode": "HTML",
            "link_preview_options": {"is_disabled": True},
        }
