"""Slack: a bot (messages that change, with a thread and a picture) or an incoming webhook (new messages only).

Formats: `chat.postMessage`, `chat.update`, `files.getUploadURLExternal` and `files.completeUploadExternal` of the Web
API; incoming webhooks; Block Kit. A header takes 150 characters, a section 3,000, a button's text 75.
"""

from __future__ import annotations

from typing import Any

from flightwatch.core.errors import ConfigError
from flightwatch.incidents.contract import Alert, Delivery
from flightwatch.incidents.notifiers.base import LOOK_AGAIN, HttpNotifier, cut, is_over, is_urgent, link_label, refused
from flightwatch.incidents.outgoing import Answer

#: Errors that say that nothing is wrong with the message or the settings.
_PASSING = frozenset(
    {"ratelimited", "rate_limited", "internal_error", "service_unavailable", "request_timeout", "fatal_error"}
)


class Slack(HttpNotifier):
    """Messages in blocks. With a bot token: one message an incident that is kept up to date, and a thread."""

    service = "slack"
    default_url = "https://slack.com/api"
    per_minute = 50.0

    def check(self) -> None:
        """A bot needs token and channel, a webhook its address."""
        self.updates = self.takes_pictures = bool(self.settings.token)
        if self.settings.token:
            self.url = (self.settings.url or self.default_url).rstrip("/")
            self.need("to")
        elif not self.settings.secret_url:
            raise ConfigError(
                f"channels.{self.name}: slack needs {self.variable('token')} or {self.variable('secret_url')}"
            )

    def deliver(self, alert: Alert, reference: dict[str, Any]) -> Delivery:
        """Post or update; what people must see again is also said in the thread."""
        if not self.settings.token:
            return self.result(self.call(json=self._message(alert, details=True)))
        if not reference.get("ts"):
            return self._first(alert)
        answer = self._api(
            "chat.update", {**self._message(alert), "channel": reference["channel"], "ts": reference["ts"]}
        )
        updated = self.result(answer, reference)
        if not updated.ok or not (alert.reason in LOOK_AGAIN or is_over(alert)):
            return updated
        reply = {
            "channel": reference["channel"], "thread_ts": reference["ts"], "text": _escaped(cut(alert.title, 2900)),
            "reply_broadcast": is_urgent(alert), "unfurl_links": False,
        }  # fmt: skip
        return self.result(self._api("chat.postMessage", reply), reference)

    def _first(self, alert: Alert) -> Delivery:
        answer = self._api(
            "chat.postMessage", {**self._message(alert), "channel": self.settings.to[0], "unfurl_links": False}
        )
        body = answer.json() or {}
        posted = self.result(answer, {"channel": body.get("channel"), "ts": body.get("ts")})
        if posted.ok:
            self.extra(lambda: self._thread(alert, {"channel": body.get("channel"), "thread_ts": body.get("ts")}))
        return posted

    def _thread(self, alert: Alert, thread: dict[str, Any]) -> None:
        """Put details and picture below the message, so that the channel stays calm."""
        if alert.facts:
            self._api("chat.postMessage", {**thread, "text": _facts(alert), "unfurl_links": False})
        if alert.picture and self.settings.pictures:
            self._picture(alert.picture, thread)

    def _picture(self, picture: bytes, thread: dict[str, Any]) -> None:
        ticket = self._api(
            "files.getUploadURLExternal", form={"filename": "evidence.png", "length": str(len(picture))}
        ).json() or {}  # fmt: skip
        if not ticket.get("ok") or not ticket.get("upload_url"):
            return
        if self.call("POST", ticket["upload_url"], content=picture, headers={"Content-Type": "image/png"}).ok:
            self._api(
                "files.completeUploadExternal",
                {"files": [{"id": ticket["file_id"], "title": "evidence"}], "channel_id": thread["channel"],
                 "thread_ts": thread["thread_ts"]},
            )  # fmt: skip

    def _api(self, method: str, body: dict[str, Any] | None = None, form: dict[str, str] | None = None) -> Answer:
        headers = {"Authorization": f"Bearer {self.settings.token}"}
        if form is not None:
            return self.call(url=f"{self.url}/{method}", data=form, headers=headers)
        headers["Content-Type"] = "application/json; charset=utf-8"
        return self.call(url=f"{self.url}/{method}", json=body, headers=headers)

    def refusal(self, answer: Answer) -> Delivery | None:
        """The Web API answers 200 with "ok": false; a webhook answers the text "ok"."""
        body = answer.json()
        if not isinstance(body, dict) or body.get("ok", True):
            return None
        error = str(body.get("error", "refused"))
        return refused(answer, f"refused: {error}", retry=error in _PASSING)

    def _message(self, alert: Alert, *, details: bool = False) -> dict[str, Any]:
        mention = f"{self.settings.mention}\n" if self.settings.mention and is_urgent(alert) else ""
        blocks: list[dict[str, Any]] = [
            {"type": "header", "text": {"type": "plain_text", "text": cut(alert.title, 150), "emoji": False}},
            {"type": "section", "text": {"type": "mrkdwn", "text": mention + cut(_escaped(alert.lead), 2900)}},
        ]
        if details and alert.facts:
            blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": _facts(alert)}})
        elements: list[dict[str, Any]] = []
        if alert.link:
            elements.append({"type": "button", "text": _plain(link_label(alert)), "url": cut(alert.link, 3000)})
        if self.settings.token:
            # An incoming webhook belongs to no app that could hear of a press.
            elements += [
                {"type": "button", "text": _plain(label), "value": value, "action_id": f"flightwatch_{number}"}
                for number, (label, value) in enumerate(alert.buttons)
            ]
        if elements:
            blocks.append({"type": "actions", "elements": elements})
        return {"text": mention + _escaped(cut(alert.title, 2900)), "blocks": blocks}


def _plain(text: str) -> dict[str, str]:
    return {"type": "plain_text", "text": cut(text, 75)}


def _escaped(text: str) -> str:
    """Escape what Slack reads as markup: a job's name must not mention a channel."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _facts(alert: Alert) -> str:
    return cut("\n".join(f"*{_escaped(label)}*: {_escaped(value)}" for label, value in alert.facts), 2900)
