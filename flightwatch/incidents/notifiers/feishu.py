"""Feishu and Lark: interactive cards of an app's bot (with buttons, changed in place) or of a group's custom bot.

Formats: custom bot guide; `auth/v3/tenant_access_token/internal`, `im/v1/messages` (send, reply, patch) of the open
platform. A custom bot's signature is base64(HMAC-SHA256(key "timestamp\\nsecret", empty message)), the timestamp in
seconds and at most an hour old; a request takes 20 KB; 100 messages a minute, 5 a second. An app's card takes 30 KB
and can be changed for 14 days; its `uuid` lets Feishu drop a repeat for an hour.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from typing import Any

from flightwatch.core.errors import ConfigError
from flightwatch.core.vocabulary import Severity
from flightwatch.incidents.contract import Alert, AlertReason, Delivery
from flightwatch.incidents.notifiers.base import (
    LOOK_AGAIN,
    HttpNotifier,
    cut,
    cut_bytes,
    is_over,
    is_urgent,
    link_label,
    refused,
)
from flightwatch.incidents.outgoing import Answer

_TEMPLATES = {Severity.P1: "red", Severity.P2: "orange", Severity.P3: "yellow", Severity.P4: "blue"}
#: 11232, 9499, 230020 and 99991400: too many requests; 11233: the group is muted for a while.
_PASSING = frozenset({11232, 11233, 9499, 1500, 230020, 99991400})
#: The app's token is unknown or over: the next try gets a new one.
_TOKEN_OVER = frozenset({99991661, 99991663, 99991664, 99991668})
#: The card was withdrawn, or is too old to change: a new one is sent.
_CARD_GONE = frozenset({230011, 230031})
#: A token is given up so long before its end.
_TOKEN_MARGIN_SECONDS = 300.0
_STYLES = {"approve": "primary", "reject": "danger"}


def signature(secret: str, timestamp: int) -> str:
    """Return the signature of a timestamp in seconds."""
    key = f"{timestamp}\n{secret}".encode()
    return base64.b64encode(hmac.new(key, b"", hashlib.sha256).digest()).decode()


class Feishu(HttpNotifier):
    """A card in a group. An app changes its card and answers below it; of a custom bot each message stands alone."""

    service = "feishu"
    default_url = "https://open.feishu.cn"
    per_minute = 90.0

    def check(self) -> None:
        """An app needs its id, its secret and a chat, a custom bot its address."""
        self._token, self._token_until_s = "", 0.0
        self.updates = bool(self.settings.token)
        if self.settings.token:
            self.url = (self.settings.url or self.default_url).rstrip("/")
            self.need("user", "to")
        elif not self.settings.secret_url:
            raise ConfigError(
                f"channels.{self.name}: feishu needs {self.variable('secret_url')}, or of an app user (its id), "
                f"{self.variable('token')} (its secret) and to (the chat)"
            )

    def deliver(self, alert: Alert, reference: dict[str, Any]) -> Delivery:
        """Send a card, or change the one of before."""
        if self.settings.token:
            return self._of_app(alert, str(reference.get("message_id") or ""))
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
        passing = code in _PASSING or code in _TOKEN_OVER
        return refused(answer, f"refused: {code} {body.get('msg', '')}".strip(), retry=passing)

    # -- an app's bot

    def _of_app(self, alert: Alert, message: str) -> Delivery:
        if time.monotonic() >= self._token_until_s and (failed := self._log_in()) is not None:
            return failed
        if not message:
            return self._first(alert)
        answer = self._api("PATCH", f"/{message}", {"content": _encoded(self._card(alert))})
        if _code(answer) in _CARD_GONE:
            return self._first(alert)
        changed = self._judged(answer, message)
        if not changed.ok or not (alert.reason in LOOK_AGAIN or is_over(alert)):
            return changed
        note = {"header": self._header(alert), "elements": [{"tag": "div", "text": _text(alert.lead.split("\n")[0])}]}
        reply = {"msg_type": "interactive", "content": _encoded(note), "uuid": _uuid(alert)}
        return self._judged(self._api("POST", f"/{message}/reply", reply), message)

    def _first(self, alert: Alert) -> Delivery:
        body = {"receive_id": self.settings.to[0], "msg_type": "interactive", "uuid": _uuid(alert),
                "content": _encoded(self._card(alert))}  # fmt: skip
        answer = self._api("POST", "?receive_id_type=chat_id", body)
        answered = answer.json()
        data = answered.get("data") if isinstance(answered, dict) else None
        return self._judged(answer, str(data.get("message_id") or "") if isinstance(data, dict) else "")

    def _judged(self, answer: Answer, message: str) -> Delivery:
        if _code(answer) in _TOKEN_OVER:
            self._token_until_s = 0.0
        return self.result(answer, {"message_id": message} if message else {})

    def result(self, answer: Answer, reference: Any = None) -> Delivery:
        """Read the code of refusals with a status of their own, too."""
        refused_by_code = self.refusal(answer) if _code(answer) is not None else None
        return refused_by_code or super().result(answer, reference)

    def _log_in(self) -> Delivery | None:
        """Get a token for about two hours; None when there is one, else why not."""
        body = {"app_id": self.settings.user, "app_secret": self.settings.token}
        answer = self.call(url=f"{self.url}/open-apis/auth/v3/tenant_access_token/internal", json=body)
        got = self.result(answer)
        answered = answer.json() or {}
        if not got.ok:
            return got
        token, seconds = answered.get("tenant_access_token"), answered.get("expire")
        if not isinstance(token, str) or not isinstance(seconds, int):
            return refused(answer, "answered no token", retry=True)
        self._token, self._token_until_s = token, time.monotonic() + max(0.0, seconds - _TOKEN_MARGIN_SECONDS)
        return None

    def _api(self, method: str, path: str, body: dict[str, Any]) -> Answer:
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json; charset=utf-8"}
        return self.call(method, f"{self.url}/open-apis/im/v1/messages{path}", json=body, headers=headers)

    # -- the card

    def _card(self, alert: Alert) -> dict[str, Any]:
        mention = f"{self.settings.mention}\n" if self.settings.mention and is_urgent(alert) else ""
        facts = "\n".join(f"**{_plain(label)}**: {_plain(value)}" for label, value in alert.facts)
        elements: list[dict[str, Any]] = [
            {"tag": "div", "text": {"tag": "lark_md", "content": mention + cut_bytes(_plain(alert.lead), 6000)}}
        ]
        if facts:
            elements += [{"tag": "hr"}, {"tag": "div", "text": {"tag": "lark_md", "content": cut_bytes(facts, 9000)}}]
        buttons: list[dict[str, Any]] = []
        if alert.link:
            buttons.append({"tag": "button", "text": _text(link_label(alert)), "type": "primary", "url": alert.link})
        if self.settings.token:
            # A custom bot belongs to no app that could hear of a press.
            buttons += [
                {"tag": "button", "text": _text(label), "type": _STYLES.get(value.partition(":")[0], "default"),
                 "value": {"flightwatch": value}}
                for label, value in alert.buttons
            ]  # fmt: skip
        if buttons:
            elements.append({"tag": "action", "actions": buttons})
        shared = {"update_multi": True} if self.settings.token else {}
        return {
            "config": {"wide_screen_mode": True} | shared, "header": self._header(alert), "elements": elements,
        }  # fmt: skip

    @staticmethod
    def _header(alert: Alert) -> dict[str, Any]:
        return {"title": _text(cut(alert.title, 200)), "template": _template(alert)}


def _text(content: str) -> dict[str, str]:
    return {"tag": "plain_text", "content": cut(content, 500)}


def _encoded(card: dict[str, Any]) -> str:
    return json.dumps(card, ensure_ascii=False)


def _uuid(alert: Alert) -> str:
    """Return what Feishu knows a repeat by: at most 50 characters."""
    return hashlib.sha256(alert.idempotency_key.encode()).hexdigest()[:32]


def _code(answer: Answer) -> int | None:
    body = answer.json()
    code = body.get("code") if isinstance(body, dict) else None
    return code if isinstance(code, int) else None


def _template(alert: Alert) -> str:
    if is_over(alert):
        return "green"
    return "grey" if alert.reason is AlertReason.TEST else _TEMPLATES.get(alert.severity, "grey")


def _plain(text: str) -> str:
    """Escape what lark_md reads as markup: a job's name must not mention everybody."""
    for char, code in (("<", "&#60;"), (">", "&#62;"), ("*", "&#42;"), ("~", "&#126;"), ("[", "&#91;"), ("]", "&#93;")):
        text = text.replace(char, code)
    return text
