"""Every notifier against a local server: the exact request, and what failures mean."""

from __future__ import annotations

import base64
import hashlib
import hmac
import html
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jsonschema
import pytest

from flightwatch.core.errors import ConfigError
from flightwatch.core.incident import AlertReason
from flightwatch.core.vocabulary import Severity
from flightwatch.incidents.alert_settings import ChannelSettings
from flightwatch.incidents.buttons import button_value, parse_button
from flightwatch.incidents.channels import build_channel
from flightwatch.incidents.contract import Notifier
from flightwatch.incidents.notifiers import dingtalk, feishu
from flightwatch.incidents.notifiers.registry import NOTIFIERS
from tests.incidents import service_schemas as schemas
from tests.incidents.alert_kit import BOTS, PNG, TAKEN, alert, channel, outgoing, settings_of
from tests.incidents.http_receiver import Receiver, Reply, Seen, certificate, receiving, server_tls

ROOT = Path(__file__).parents[2]
HTTP_SERVICES = tuple(TAKEN)
SECRETS = ("secret-token", "secret-hook", "secret-sign", "secret-sig", "secretkey", "secret-key")


def check(body: Any, schema: Mapping[str, Any]) -> None:
    jsonschema.validate(body, dict(schema), cls=jsonschema.Draft202012Validator)


def exchange(
    service: str, *messages: Any, replies: tuple[Reply, ...] = (), **changes: Any
) -> tuple[list[Seen], list[Any]]:
    """Send messages one after the other, each with the reference of the one before; return requests and deliveries."""
    deliveries: list[Any] = []
    with receiving(TAKEN[service]) as receiver:
        receiver.queue += replies
        notifier = channel(service, receiver.url, **changes).notifier
        reference: Mapping[str, Any] = {}
        for message in messages:
            deliveries.append(notifier.send(message, reference))
            reference = deliveries[-1].reference or reference
        return list(receiver.requests), deliveries


RESOLVED = alert(reason=AlertReason.RESOLVED)
WORSENED = alert(reason=AlertReason.WORSENED, severity=Severity.P1)
CHANGED = alert(reason=AlertReason.CHANGED)


def test_every_service_has_a_notifier_of_the_contract() -> None:
    assert set(NOTIFIERS) == {*HTTP_SERVICES, "email"}
    for service in HTTP_SERVICES:
        notifier = channel(service, "http://127.0.0.1:1").notifier
        assert isinstance(notifier, Notifier)
        assert notifier.service == service
        assert notifier.per_minute > 0


def test_slack_bot_keeps_one_message_and_a_thread() -> None:
    ticket = Reply(200, {"ok": True, "upload_url": "", "file_id": "F1"})
    with receiving(TAKEN["slack"]) as receiver:
        receiver.queue += [
            TAKEN["slack"], TAKEN["slack"],
            replace(ticket, body=ticket.body | {"upload_url": f"{receiver.url}/upload"}),
        ]  # fmt: skip
        notifier = channel("slack", receiver.url, mention="<!here>").notifier
        first = notifier.send(alert(), None)
        assert first.reference == {"channel": "C024BE91L", "ts": "1503435956.000247"}
        assert notifier.send(CHANGED, first.reference).ok
        assert notifier.send(WORSENED, first.reference).ok
    seen = receiver.requests
    assert [urlsplit(one.path).path for one in seen] == [
        "/api/chat.postMessage", "/api/chat.postMessage", "/api/files.getUploadURLExternal", "/upload",
        "/api/files.completeUploadExternal", "/api/chat.update", "/api/chat.update", "/api/chat.postMessage",
    ]  # fmt: skip
    assert {one.headers.get("Authorization") for one in seen if one.path != "/upload"} == {"Bearer xoxb-secret-token"}
    assert "Authorization" not in seen[3].headers
    for index in (0, 1, 7):
        check(seen[index].json, schemas.SLACK_POST)
    check(seen[4].json, schemas.SLACK_COMPLETE)
    check(seen[5].json, schemas.SLACK_UPDATE)
    assert seen[0].json["blocks"][1]["text"]["text"].startswith("<!here>\nP2")
    assert "&lt;b&gt;GPU 3&lt;/b&gt; &amp;" in seen[0].json["blocks"][1]["text"]["text"]
    assert (seen[1].json["thread_ts"], seen[7].json["thread_ts"]) == ("1503435956.000247",) * 2
    assert parse_qs(seen[2].body.decode()) == {"filename": ["evidence.png"], "length": [str(len(PNG))]}
    assert seen[3].body == PNG


def test_slack_details_that_fail_do_not_repeat_the_message() -> None:
    seen, deliveries = exchange("slack", alert(), replies=(TAKEN["slack"], Reply(close=True)))
    assert deliveries[0].ok
    assert len(seen) == 2


def test_slack_webhook_posts_once() -> None:
    with receiving(Reply(200, b"ok")) as receiver:
        settings = ChannelSettings(service="slack", secret_url=f"{receiver.url}/services/T/B/x")
        notifier = build_channel("ops", settings, outgoing()).notifier
        assert not notifier.updates
        assert notifier.send(alert(), None).ok
    check(receiver.requests[0].json, schemas.SLACK_WEBHOOK)


@pytest.mark.parametrize(
    ("error", "retry"), [("ratelimited", True), ("invalid_auth", False), ("channel_not_found", False)]
)
def test_slack_errors_in_an_answer_200(error: str, retry: bool) -> None:
    _, deliveries = exchange("slack", alert(), replies=(Reply(200, {"ok": False, "error": error}),))
    assert (deliveries[0].ok, deliveries[0].retry) == (False, retry)
    assert error in deliveries[0].error


def test_feishu_card_is_signed() -> None:
    seen, deliveries = exchange("feishu", alert(), RESOLVED)
    assert all(delivery.ok for delivery in deliveries)
    for one in seen:
        check(one.json, schemas.FEISHU)
        assert len(one.body) < 20_000
    body = seen[0].json
    key = f"{body['timestamp']}\nsecret-sign".encode()
    assert body["sign"] == base64.b64encode(hmac.new(key, digestmod=hashlib.sha256).digest()).decode()
    assert [one.json["card"]["header"]["template"] for one in seen] == ["orange", "green"]
    assert "&#60;b&#62;" in body["card"]["elements"][0]["text"]["content"]


def test_known_signatures() -> None:
    # Worked out with openssl: printf '' | openssl dgst -sha256 -hmac $'1599360473\nsecret' -binary | base64
    assert feishu.signature("secret", 1599360473) == _openssl(b"1599360473\nsecret", b"")
    assert dingtalk.signature("secret", 1577836800000) == _openssl(b"secret", b"1577836800000\nsecret")


def _openssl(key: bytes, message: bytes) -> str:
    import subprocess

    command = ["openssl", "dgst", "-sha256", "-mac", "HMAC", "-macopt", f"hexkey:{key.hex()}", "-binary"]
    return base64.b64encode(subprocess.run(command, input=message, capture_output=True, check=True).stdout).decode()


@pytest.mark.parametrize(("code", "retry"), [(9499, True), (11232, True), (19021, False), (19024, False)])
def test_feishu_codes(code: int, retry: bool) -> None:
    _, deliveries = exchange("feishu", alert(), replies=(Reply(200, {"code": code, "msg": "no"}),))
    assert (deliveries[0].ok, deliveries[0].retry) == (False, retry)


def test_dingtalk_is_signed_in_the_query() -> None:
    seen, _ = exchange("dingtalk", alert(), mention="@all")
    check(seen[0].json, schemas.DINGTALK)
    query = parse_qs(urlsplit(seen[0].path).query)
    assert query["access_token"] == ["secret-hook"]
    text = f"{query['timestamp'][0]}\nSECsecret-sign".encode()
    want = base64.b64encode(hmac.new(b"SECsecret-sign", text, hashlib.sha256).digest()).decode()
    assert query["sign"] == [want]
    assert seen[0].json["at"] == {"isAtAll": True}


@pytest.mark.parametrize(
    ("service", "code", "retry", "wait"),
    [
        ("dingtalk", 130101, True, 600.0),
        ("dingtalk", 310000, False, None),
        ("wecom", 45009, True, 60.0),
        ("wecom", 93000, False, None),
    ],
)
def test_errcodes(service: str, code: int, retry: bool, wait: float | None) -> None:
    _, deliveries = exchange(service, alert(), replies=(Reply(200, {"errcode": code, "errmsg": "no"}),))
    assert (deliveries[0].ok, deliveries[0].retry, deliveries[0].retry_after_seconds) == (False, retry, wait)


def test_wecom_sends_text_then_picture() -> None:
    seen, _ = exchange("wecom", alert(lead="停" * 3000))
    assert len(seen) == 2
    for one in seen:
        check(one.json, schemas.WECOM)
    assert len(seen[0].json["markdown"]["content"].encode()) <= 4096
    assert seen[0].json["markdown"]["content"].endswith("f00d5e1f00)")
    assert seen[1].json["image"]["md5"] == hashlib.md5(PNG, usedforsecurity=False).hexdigest()


def test_teams_card() -> None:
    seen, deliveries = exchange("teams", alert(), RESOLVED)
    assert [delivery.http_status for delivery in deliveries] == [202, 202]
    for one in seen:
        check(one.json, schemas.TEAMS)
        assert len(one.body) < 28_000
    assert seen[1].json["attachments"][0]["content"]["body"][0]["style"] == "good"


def test_discord_edits_its_message() -> None:
    seen, _ = exchange("discord", alert(), CHANGED, WORSENED, RESOLVED, mention="@everyone")
    assert [(one.method, urlsplit(one.path).path) for one in seen] == [
        ("POST", "/api/webhooks/123/secret-hook"),
        ("PATCH", "/api/webhooks/123/secret-hook/messages/1199876543210987654"),
        ("POST", "/api/webhooks/123/secret-hook"),
        ("PATCH", "/api/webhooks/123/secret-hook/messages/1199876543210987654"),
    ]
    assert seen[0].headers["Content-Type"].startswith("multipart/form-data")
    assert PNG in seen[0].body
    form = seen[0].body.split(b'name="payload_json"\r\n\r\n')[1].split(b"\r\n--")[0]
    for body in (json.loads(form), *(one.json for one in seen[1:])):
        check(body, schemas.DISCORD)
    assert seen[1].json["allowed_mentions"] == {"parse": []}
    assert seen[2].json["content"] == "@everyone"


def test_discord_and_telegram_say_when_to_come_back() -> None:
    _, deliveries = exchange(
        "discord", alert(picture=None), replies=(Reply(429, {"retry_after": 0.65, "global": False}),)
    )
    assert (deliveries[0].retry, deliveries[0].retry_after_seconds) == (True, 0.65)
    limited = Reply(429, {"ok": False, "error_code": 429, "description": "Too Many", "parameters": {"retry_after": 31}})
    _, deliveries = exchange("telegram", alert(), replies=(limited,))
    assert (deliveries[0].retry, deliveries[0].retry_after_seconds) == (True, 31.0)


def test_telegram_sends_edits_and_answers() -> None:
    seen, _ = exchange("telegram", alert(), CHANGED, RESOLVED)
    assert [one.path for one in seen] == [
        f"/bot123:secret-token/{method}"
        for method in ("sendMessage", "sendPhoto", "editMessageText", "editMessageText", "sendMessage")
    ]
    check(seen[0].json, schemas.TELEGRAM_SEND)
    check(seen[2].json, schemas.TELEGRAM_EDIT)
    check(seen[4].json, schemas.TELEGRAM_SEND)
    assert "&lt;b&gt;GPU 3&lt;/b&gt; &amp;" in seen[0].json["text"]
    assert PNG in seen[1].body


def test_telegram_that_is_as_wanted_already_counts_as_edited() -> None:
    same = Reply(400, {"ok": False, "error_code": 400, "description": "Bad Request: message is not modified"})
    _, deliveries = exchange("telegram", replace(alert(), picture=None), CHANGED, replies=(TAKEN["telegram"], same))
    assert deliveries[1].ok


def test_buttons_of_slack_and_telegram() -> None:
    value = button_value("ack", "5e1f00d5e1f00d5e1f00", 3, 1_796_000_000_000)
    pressed = alert(buttons=[("Acknowledge", value)], picture=None, facts=())
    seen, _ = exchange("slack", pressed, CHANGED)
    check(seen[0].json, schemas.SLACK_POST)
    elements = seen[0].json["blocks"][-1]["elements"]
    assert parse_button(elements[1]["value"]) is not None
    assert len(seen[1].json["blocks"][-1]["elements"]) == 1
    seen, _ = exchange("telegram", pressed, CHANGED)
    check(seen[0].json, schemas.TELEGRAM_SEND)
    assert seen[0].json["reply_markup"]["inline_keyboard"][0][0]["callback_data"] == value
    assert seen[1].json["reply_markup"]["inline_keyboard"] == []


PRESSED = alert(
    buttons=[
        ("Acknowledge", button_value("ack", "5e1f00d5e1f00d5e1f00", 3, 1_796_000_000_000)),
        ("Approve drain", button_value("approve", "a1b2c3", 3, 1_796_000_000_000)),
        ("Reject", button_value("reject", "a1b2c3", 3, 1_796_000_000_000)),
    ],
    picture=None,
)


def bot(service: str, url: str) -> Any:
    base = f"{url}/api/v10" if service == "discord" else url
    return build_channel("ops", ChannelSettings(service=service, url=base, **BOTS[service]), outgoing()).notifier


def test_a_discord_bot_has_buttons_and_edits_them_away() -> None:
    with receiving(TAKEN["discord"]) as receiver:
        notifier = bot("discord", receiver.url)
        first = notifier.send(PRESSED, None)
        notifier.send(PRESSED, None)
        notifier.send(CHANGED, first.reference)
        notifier.send(alert(), None)
        seen = list(receiver.requests)
    path = "/api/v10/channels/199737254929760256/messages"
    assert [(one.method, one.path) for one in seen[:3]] == [
        ("POST", path), ("POST", path), ("PATCH", f"{path}/1199876543210987654"),
    ]  # fmt: skip
    assert {one.headers["Authorization"] for one in seen} == {"Bot secret-token"}
    check(seen[0].json, schemas.DISCORD_BOT_POST)
    check(seen[2].json, schemas.DISCORD_BOT_EDIT)
    row = seen[0].json["components"][0]["components"]
    assert [one["style"] for one in row] == [1, 3, 4, 5]
    assert [parse_button(one.get("custom_id")) is not None for one in row] == [True, True, True, False]
    assert seen[0].json["nonce"] == seen[1].json["nonce"]  # a repeat is dropped by the service
    assert [one["style"] for one in seen[2].json["components"][0]["components"]] == [5]
    assert PNG in seen[3].body
    form = json.loads(seen[3].body.split(b'name="payload_json"\r\n\r\n')[1].split(b"\r\n--")[0])
    check(form, schemas.DISCORD_BOT_POST)


APP_TOKEN = Reply(200, {"code": 0, "msg": "ok", "tenant_access_token": "t-secret-tenant", "expire": 7200})
APP_SENT = Reply(200, {"code": 0, "msg": "success", "data": {"message_id": "om_1"}})


def test_a_feishu_app_has_buttons_changes_its_card_and_answers_below_it() -> None:
    with receiving(APP_SENT) as receiver:
        receiver.queue.append(APP_TOKEN)
        notifier = bot("feishu", receiver.url)
        first = notifier.send(PRESSED, None)
        assert first.reference == {"message_id": "om_1"}
        for one in (CHANGED, RESOLVED):
            assert notifier.send(one, first.reference).reference == {"message_id": "om_1"}
        seen = list(receiver.requests)
    base = "/open-apis/im/v1/messages"
    assert [(one.method, one.path) for one in seen] == [
        ("POST", "/open-apis/auth/v3/tenant_access_token/internal"), ("POST", f"{base}?receive_id_type=chat_id"),
        ("PATCH", f"{base}/om_1"), ("PATCH", f"{base}/om_1"), ("POST", f"{base}/om_1/reply"),
    ]  # fmt: skip
    assert seen[0].json == {"app_id": "cli_a1", "app_secret": "secret-token"}
    assert {one.headers["Authorization"] for one in seen[1:]} == {"Bearer t-secret-tenant"}
    check(seen[1].json, schemas.FEISHU_APP_SEND)
    for patched in seen[2:4]:
        check(patched.json, schemas.FEISHU_APP_PATCH)
        check(json.loads(patched.json["content"]), schemas.FEISHU_APP_CARD)
    check(seen[4].json, schemas.FEISHU_APP_REPLY)
    check(json.loads(seen[4].json["content"]), schemas.FEISHU_APP_NOTE)
    card = json.loads(seen[1].json["content"])
    check(card, schemas.FEISHU_APP_CARD)
    values = [one["value"]["flightwatch"] for one in card["elements"][-1]["actions"] if "value" in one]
    assert [getattr(parse_button(value), "do", None) for value in values] == ["ack", "approve", "reject"]
    assert all("value" not in one for one in json.loads(seen[2].json["content"])["elements"][-1]["actions"])


def test_a_feishu_app_whose_token_is_over_gets_another_one() -> None:
    over = Reply(400, {"code": 99991663, "msg": "token attribute is invalid"})
    with receiving(APP_SENT) as receiver:
        receiver.queue += [APP_TOKEN, over, APP_TOKEN]
        notifier = bot("feishu", receiver.url)
        refused = notifier.send(PRESSED, None)
        assert (refused.ok, refused.retry) == (False, True)
        assert notifier.send(PRESSED, None).ok
        assert [one.path.rsplit("/", 1)[1].partition("?")[0] for one in receiver.requests] == [
            "internal", "messages", "internal", "messages",
        ]  # fmt: skip


def test_a_feishu_app_sends_a_new_card_where_the_old_one_is_gone() -> None:
    for code in (230011, 230031):
        with receiving(APP_SENT) as receiver:
            receiver.queue += [APP_TOKEN, Reply(400, {"code": code, "msg": "gone"})]
            assert bot("feishu", receiver.url).send(CHANGED, {"message_id": "om_0"}).reference == {"message_id": "om_1"}


@pytest.mark.parametrize("answer", [{"code": 10014, "msg": "app secret invalid"}, {"code": 0}, [], "x"])
def test_a_feishu_app_that_is_refused_says_why_and_no_secret(answer: Any) -> None:
    with receiving(Reply(200, answer)) as receiver:
        refused = bot("feishu", receiver.url).send(PRESSED, None)
    assert not refused.ok
    assert refused.error
    assert "secret-token" not in refused.error


@pytest.mark.parametrize("service", ["discord", "feishu"])
def test_a_bot_survives_every_answer(service: str) -> None:
    answers = [Reply(500, b"no"), Reply(200, b""), Reply(200, []), Reply(200, {"data": []}), Reply(429, {"code": "x"}),
               Reply(close=True)]  # fmt: skip
    for answer in answers:
        with receiving(answer) as receiver:
            if service == "feishu":
                receiver.queue.append(APP_TOKEN)
            notifier = bot(service, receiver.url)
            notifier.send(PRESSED, None)
            notifier.send(CHANGED, {"message": "1", "message_id": "om_1"})
            assert len(receiver.requests) >= 2


def test_bots_without_a_place_are_refused() -> None:
    for service in ("discord", "feishu"):
        for missing in ("to", "token", *(["user"] if service == "feishu" else [])):
            settings = ChannelSettings(service=service, **(BOTS[service] | {missing: () if missing == "to" else ""}))
            with pytest.raises(ConfigError, match=r"channels\.ops"):
                build_channel("ops", settings, outgoing())


def test_pagerduty_life_of_an_alert() -> None:
    acknowledged = alert(reason=AlertReason.ACKNOWLEDGED)
    seen, _ = exchange("pagerduty", alert(), WORSENED, acknowledged, RESOLVED)
    for one in seen:
        check(one.json, schemas.PAGERDUTY)
    assert [one.json["event_action"] for one in seen] == ["trigger", "trigger", "acknowledge", "resolve"]
    assert {one.json["dedup_key"] for one in seen} == {"5e1f00d5e1f00d5e1f00"}
    assert [one.json["payload"]["severity"] for one in seen[:2]] == ["error", "critical"]


def test_opsgenie_life_of_an_alert() -> None:
    seen, _ = exchange("opsgenie", alert(), CHANGED, alert(reason=AlertReason.ACKNOWLEDGED), RESOLVED)
    check(seen[0].json, schemas.OPSGENIE_CREATE)
    for one in seen[1:]:
        check(one.json, schemas.OPSGENIE_NOTE)
    base = "/v2/alerts/5e1f00d5e1f00d5e1f00"
    assert [one.path for one in seen] == ["/v2/alerts"] + [
        f"{base}/{verb}?identifierType=alias" for verb in ("notes", "acknowledge", "close")
    ]
    assert seen[0].headers["Authorization"] == "GenieKey secret-key"
    assert seen[0].json["responders"] == [
        {"type": "team", "name": "gpu-ops"},
        {"type": "user", "username": "a@b.example"},
    ]


def test_alertmanager_knows_the_alert_again() -> None:
    seen, _ = exchange("alertmanager", alert(), WORSENED, RESOLVED)
    for one in seen:
        assert one.path == "/api/v2/alerts"
        check(one.json, schemas.ALERTMANAGER)
    assert len({json.dumps(one.json[0]["labels"], sort_keys=True) for one in seen}) == 1
    assert seen[2].json[0]["endsAt"] < seen[0].json[0]["endsAt"]


def test_webhook_body_matches_the_published_schema_and_is_signed() -> None:
    schema = json.loads((ROOT / "docs" / "alert-webhook.schema.json").read_text(encoding="utf-8"))
    levels = ("minimal", "standard", "full")
    bodies = []
    for level in levels:
        seen, _ = exchange("webhook", alert(), RESOLVED, disclosure=level)
        for one in seen:
            check(one.json, schema)
        bodies.append(seen[0].json)
        timestamp = seen[0].headers["X-Flightwatch-Timestamp"]
        want = hmac.new(b"secret-sign", f"{timestamp}.".encode() + seen[0].body, hashlib.sha256).hexdigest()
        assert seen[0].headers["X-Flightwatch-Signature"] == f"sha256={want}"
        assert seen[0].headers["Idempotency-Key"] == "need-17-ops"
    assert bodies[0]["incident"] is None
    assert bodies[1]["incident"]["loss_gpu_hours_per_hour"] == 187.0


# Failures: the same for every service -------------------------------------------------------------------------------


@pytest.mark.parametrize("service", HTTP_SERVICES)
def test_a_server_error_is_worth_another_try(service: str) -> None:
    _, deliveries = exchange(service, alert(), replies=(Reply(500, b"oops"),))
    assert (deliveries[0].ok, deliveries[0].retry, deliveries[0].http_status) == (False, True, 500)


@pytest.mark.parametrize("service", HTTP_SERVICES)
def test_a_refused_message_is_not(service: str) -> None:
    _, deliveries = exchange(service, alert(), replies=(Reply(403, b"go away"),))
    assert (deliveries[0].ok, deliveries[0].retry) == (False, False)


@pytest.mark.parametrize("service", HTTP_SERVICES)
def test_too_many_requests_are_told_when_to_come_back(service: str) -> None:
    _, deliveries = exchange(service, alert(), replies=(Reply(429, b"", {"Retry-After": "17"}),))
    assert (deliveries[0].ok, deliveries[0].retry, deliveries[0].retry_after_seconds) == (False, True, 17.0)


def test_retry_after_may_be_a_date() -> None:
    later = format_datetime(datetime.now(tz=UTC) + timedelta(seconds=90), usegmt=True)
    _, deliveries = exchange("webhook", alert(), replies=(Reply(503, b"", {"Retry-After": later}),))
    assert 80 < deliveries[0].retry_after_seconds <= 90
    for odd in ("soon", "inf", "nan", "-5"):
        _, deliveries = exchange("webhook", alert(), replies=(Reply(503, b"", {"Retry-After": odd}),))
        assert deliveries[0].retry_after_seconds in (None, 0.0, 3600.0)


@pytest.mark.parametrize("service", HTTP_SERVICES)
def test_a_connection_that_breaks_has_an_unknown_outcome(service: str) -> None:
    _, deliveries = exchange(service, alert(), replies=(Reply(close=True),))
    assert (deliveries[0].ok, deliveries[0].retry, deliveries[0].unknown) == (False, True, True)


@pytest.mark.parametrize("service", HTTP_SERVICES)
def test_no_answer_in_time_has_an_unknown_outcome(service: str) -> None:
    _, deliveries = exchange(service, alert(), replies=(Reply(hold=True),), timeout_seconds=0.8)
    assert (deliveries[0].ok, deliveries[0].retry, deliveries[0].unknown) == (False, True, True)
    assert "in time" in deliveries[0].error


@pytest.mark.parametrize("service", HTTP_SERVICES)
def test_a_bad_certificate_is_never_accepted(service: str, tmp_path: Path) -> None:
    certificate_file, key_file = certificate(tmp_path)
    with receiving(TAKEN[service], tls=server_tls(certificate_file, key_file)) as receiver:
        delivery = channel(service, receiver.url).notifier.send(alert(), None)
        assert (delivery.ok, delivery.retry, delivery.unknown) == (False, True, False)
        assert not receiver.requests
        trusted = channel(service, receiver.url, ca_file=str(certificate_file)).notifier
        assert trusted.send(alert(), None).ok


@pytest.mark.parametrize("service", HTTP_SERVICES)
def test_secrets_reach_neither_log_nor_error(service: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    texts = []
    for reply in (
        Reply(500, b"x"),
        Reply(403, b"x"),
        Reply(close=True),
        Reply(302, b"", {"Location": "http://10.0.0.1/"}),
    ):
        _, deliveries = exchange(service, alert(), replies=(reply,))
        texts.append(str(deliveries[0]))
    for secret in SECRETS:
        assert secret not in caplog.text
        assert not any(secret in text for text in texts)


@pytest.mark.parametrize("service", HTTP_SERVICES)
def test_a_guarded_address_is_not_called(service: str) -> None:
    with receiving() as receiver:
        notifier = build_channel("ops", settings_of(service, receiver.url), outgoing_guarded()).notifier
        delivery = notifier.send(alert(), None)
    assert (delivery.ok, delivery.retry) == (False, False)
    assert not receiver.requests


def outgoing_guarded() -> Any:
    from flightwatch.incidents.outgoing import Outgoing

    return Outgoing()


@pytest.mark.parametrize("service", HTTP_SERVICES)
def test_long_and_odd_texts_stay_inside_the_limits(service: str) -> None:
    odd = alert(
        title="长" * 900 + "<!channel> @everyone", lead="*_~`<>[]&\\\"\u202e\n" * 400,
        facts=tuple((f"label {i}", "值<at id=all></at>" * 200) for i in range(40)), picture=None,
    )  # fmt: skip
    seen, deliveries = exchange(service, odd)
    assert deliveries[0].ok
    schema = {
        "slack": schemas.SLACK_POST, "feishu": schemas.FEISHU, "dingtalk": schemas.DINGTALK, "wecom": schemas.WECOM,
        "teams": schemas.TEAMS, "discord": schemas.DISCORD, "telegram": schemas.TELEGRAM_SEND,
        "pagerduty": schemas.PAGERDUTY, "opsgenie": schemas.OPSGENIE_CREATE, "alertmanager": schemas.ALERTMANAGER,
    }.get(service)  # fmt: skip
    if schema is not None:
        check(seen[0].json, schema)
    if service == "telegram":
        # Telegram counts what is left after its entities are read.
        assert len(html.unescape(re.sub("<[^>]*>", "", seen[0].json["text"]))) <= 4096
    assert len(seen[0].body) < {"feishu": 20_000, "dingtalk": 20_000, "teams": 28_000}.get(service, 500_000)


EVIL = "[a](http://evil.example) ![b](http://evil.example/p) <!channel> <@U1> <at id=all></at> @everyone <i>x</i> `c`"


#: What a service would read as a link, a tag or somebody to call; a backslash before it takes its power.
MARKUP = {
    "slack": r"<[!@]", "feishu": r"<at|\]\(", "dingtalk": r"(?<!\\)(\]\(|<)", "wecom": r"<[@!ai]|\]\(",
    "teams": r"(?<!\\)\]\(|<", "discord": r"(?<!\\)\]\(", "telegram": r"<(?!/?b>)",
}  # fmt: skip


def _marked(value: Any) -> list[str]:
    """Return the strings of a document in which markup is read: not those of plain text, nor titles."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [text for one in value for text in _marked(one)]
    if not isinstance(value, dict) or "plain_text" in (value.get("type"), value.get("tag")):
        return []
    return [text for key, one in value.items() if key != "title" for text in _marked(one)]


@pytest.mark.parametrize("service", MARKUP)
def test_names_are_words_and_nowhere_markup(service: str) -> None:
    evil = alert(title=EVIL, lead=EVIL, facts=(("Job", EVIL),), link="", picture=None)
    seen, _ = exchange(service, evil)
    texts = _marked(seen[0].json)
    assert sum("evil.example" in text for text in texts) >= 1
    assert [text for text in texts if re.search(MARKUP[service], text)] == []
    if service == "discord":
        assert seen[0].json["allowed_mentions"] == {"parse": []}
    if service == "dingtalk":
        assert seen[0].json["at"] == {"isAtAll": False}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        (ChannelSettings(service="pigeon"), "channels.ops.service"),
        (ChannelSettings(service="slack"), "FLIGHTWATCH_CHANNELS_OPS_TOKEN"),
        (ChannelSettings(service="slack", token="x"), r"channels\.ops\.to"),
        (ChannelSettings(service="feishu"), "FLIGHTWATCH_CHANNELS_OPS_SECRET_URL"),
        (ChannelSettings(service="telegram", to=("1",)), "FLIGHTWATCH_CHANNELS_OPS_TOKEN"),
        (ChannelSettings(service="alertmanager"), r"channels\.ops\.url"),
        (ChannelSettings(service="webhook", url="ftp://x/"), r"channels\.ops\.url"),
        (ChannelSettings(service="webhook", url="http://x/", language="fr"), r"channels\.ops\.language"),
        (ChannelSettings(service="webhook", url="http://x/", disclosure="all"), r"channels\.ops\.disclosure"),
        (ChannelSettings(service="webhook", url="http://x/", time_zone="Mars/Base"), r"channels\.ops\.time_zone"),
        (ChannelSettings(service="webhook", url="http://x/", ca_file="/nowhere"), r"channels\.ops\.ca_file"),
        (ChannelSettings(service="email", url="smtp://m", sender="a@b", to=("nobody",)), r"channels\.ops\.to"),
    ],
)
def test_wrong_channels_name_their_setting(settings: ChannelSettings, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        build_channel("ops", settings, outgoing())


def test_a_receiver_that_sees_a_repeat_can_drop_it() -> None:
    with receiving(TAKEN["webhook"]) as receiver:
        notifier = channel("webhook", receiver.url).notifier
        notifier.send(alert(), None)
        notifier.send(alert(), None)
    assert len({one.headers["Idempotency-Key"] for one in receiver.requests}) == 1
    assert isinstance(receiver, Receiver)
