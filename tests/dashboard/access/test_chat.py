"""Buttons of chat services: signed, fresh, once, by a known person with the role."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import httpx2
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from flightwatch.core.clock import ManualClock
from flightwatch.dashboard.access.settings import AccessSettings
from flightwatch.incidents.buttons import Press, button_value, parse_button
from flightwatch.pipeline.control.action_model import Proposal
from flightwatch.pipeline.control.actions import ActionRecords
from flightwatch.pipeline.control.incidents import IncidentRecords
from flightwatch.pipeline.control.roles import Grant, Role
from tests.dashboard.access_kit import Site
from tests.pipeline.control.incident_kit import add_incident

NOW_MS = 1_795_990_000_000
DISCORD = Ed25519PrivateKey.from_private_bytes(b"\x07" * 32)
SETTINGS = AccessSettings(
    required=True, slack_signing_secret="slack-secret", telegram_secret_token="telegram-secret",
    discord_public_key=DISCORD.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex(),
    feishu_encrypt_key="feishu-key", dingtalk_app_secret="ding-secret",
)  # fmt: skip
Request = tuple[str, dict[str, str], bytes]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


@pytest.fixture
def site(make_site: Callable[..., Site], clock: ManualClock) -> Site:
    site = make_site(SETTINGS, loopback_only=False, clock=clock)
    people = site.access.people
    assert people is not None
    people.grant("alice", Grant(Role.OPERATOR), "test", name="Alice")
    people.grant("bob", Grant(Role.VIEWER), "test")
    for service in ("slack", "discord", "telegram", "feishu", "dingtalk"):
        people.link("alice", service, "4711")
        people.link("bob", service, "4712")
    add_incident(site.control, "i1", NOW_MS)
    return site


def slack(value: str, account: str, now_s: int, salt: int = 0, secret: str = "slack-secret") -> Request:
    payload = {"type": "block_actions", "user": {"id": account}, "actions": [{"value": value}], "trigger_id": str(salt)}
    body = urlencode({"payload": json.dumps(payload)}).encode()
    digest = hmac.new(secret.encode(), f"v0:{now_s}:".encode() + body, hashlib.sha256).hexdigest()
    headers = {"X-Slack-Request-Timestamp": str(now_s), "X-Slack-Signature": f"v0={digest}"}
    return "slack", headers | {"Content-Type": "application/x-www-form-urlencoded"}, body


def discord(value: str, account: str, now_s: int, salt: int = 0, key: Ed25519PrivateKey = DISCORD) -> Request:
    body = json.dumps(
        {"type": 3, "member": {"user": {"id": account}}, "data": {"custom_id": value}, "id": salt}
    ).encode()
    signature = key.sign(str(now_s).encode() + body).hex()
    return "discord", {"X-Signature-Ed25519": signature, "X-Signature-Timestamp": str(now_s)}, body


def telegram(value: str, account: str, now_s: int, salt: int = 0, secret: str = "telegram-secret") -> Request:
    query = {"id": "q1", "from": {"id": int(account)}, "data": value}
    body = json.dumps({"update_id": 100 + salt, "callback_query": query}).encode()
    return "telegram", {"X-Telegram-Bot-Api-Secret-Token": secret}, body


def feishu(value: str, account: str, now_s: int, salt: int = 0, secret: str = "feishu-key") -> Request:
    event = {"operator": {"open_id": account}, "action": {"value": {"flightwatch": value}}, "token": str(salt)}
    body = sealed({"schema": "2.0", "event": event}, secret)
    digest = hashlib.sha256((f"{now_s}n{secret}").encode() + body).hexdigest()
    stamp = {"X-Lark-Request-Timestamp": str(now_s), "X-Lark-Request-Nonce": "n", "X-Lark-Signature": digest}
    return "feishu", stamp, body


def sealed(document: dict[str, Any], key: str = "feishu-key") -> bytes:
    plain = json.dumps(document).encode()
    plain += bytes([16 - len(plain) % 16]) * (16 - len(plain) % 16)
    start = secrets.token_bytes(16)
    encryptor = Cipher(algorithms.AES(hashlib.sha256(key.encode()).digest()), modes.CBC(start)).encryptor()
    content = start + encryptor.update(plain) + encryptor.finalize()
    return json.dumps({"encrypt": base64.b64encode(content).decode()}).encode()


def dingtalk(value: str, account: str, now_s: int, salt: int = 0, secret: str = "ding-secret") -> Request:
    stamp = f"{now_s}{salt:03d}"
    digest = hmac.new(secret.encode(), f"{stamp}\n{secret}".encode(), hashlib.sha256).digest()
    body = json.dumps({"senderStaffId": account, "text": {"content": f" {value} "}}).encode()
    return "dingtalk", {"timestamp": stamp, "sign": base64.b64encode(digest).decode()}, body


SERVICES: list[Callable[..., Request]] = [slack, discord, telegram, feishu, dingtalk]
WRONG = {"slack": "x", "discord": Ed25519PrivateKey.generate(), "telegram": "x", "feishu": "x", "dingtalk": "x"}


def send(site: Site, request: Request) -> httpx2.Response:
    service, headers, body = request
    return site.client("203.0.113.5").post(f"/api/v1/hooks/{service}", content=body, headers=headers)


def ack(now_ms: int = NOW_MS) -> str:
    return button_value("ack", "i1", 1, now_ms)


@pytest.mark.parametrize("make", SERVICES)
def test_a_signed_press_of_a_known_person_acts_once(site: Site, make: Callable[..., Request]) -> None:
    request = make(ack(), "4711", NOW_MS // 1000)
    answer = send(site, request)
    assert (answer.status_code, "Alice acknowledged it" in answer.text) == (200, True)
    assert IncidentRecords(site.control).get("i1").acknowledged_by == "alice"
    assert send(site, request).status_code == 401  # the same press again
    assert site.audit() == [("alice", "incident.acknowledge", True), ("anonymous", "denied.unauthenticated", False)]


@pytest.mark.parametrize("make", SERVICES)
def test_a_wrong_signature_does_nothing(site: Site, make: Any) -> None:
    name = make.__name__
    key = {"key": WRONG[name]} if name == "discord" else {"secret": WRONG[name]}
    assert send(site, make(ack(), "4711", NOW_MS // 1000, **key)).status_code == 401
    service, headers, body = make(ack(), "4711", NOW_MS // 1000)
    assert send(site, (service, {}, body)).status_code == 401
    if name not in ("telegram", "dingtalk"):  # their signatures do not cover the body
        assert send(site, (service, headers, body[:-9] + b"A" + body[-8:])).status_code == 401
        assert send(site, (service, headers, body + b" ")).status_code == 401
    assert IncidentRecords(site.control).get("i1").acknowledged_by is None


def test_an_old_or_early_signature_does_nothing(site: Site) -> None:
    for make in (slack, discord, feishu, dingtalk):
        for shift_s in (-301, 301, -10_000_000):
            assert send(site, make(ack(), "4711", NOW_MS // 1000 + shift_s)).status_code == 401
    assert IncidentRecords(site.control).get("i1").acknowledged_by is None


@pytest.mark.parametrize("make", [slack, telegram])
def test_strangers_and_viewers_are_told_and_written_down(site: Site, make: Callable[..., Request]) -> None:
    now_s = NOW_MS // 1000
    assert "belongs to nobody here" in send(site, make(ack(), "9999", now_s, 1)).text
    assert "needs the role operator" in send(site, make(ack(), "4712", now_s, 2)).text
    assert "not a button" in send(site, make("rm -rf", "4711", now_s, 3)).text
    assert [ok for _, _, ok in site.audit()] == [False] * 3
    assert IncidentRecords(site.control).get("i1").acknowledged_by is None


def test_handshakes_are_answered(site: Site) -> None:
    now_s = NOW_MS // 1000
    body = b'{"type": 1}'
    signature = DISCORD.sign(str(now_s).encode() + body).hex()
    stamp = {"X-Signature-Ed25519": signature, "X-Signature-Timestamp": str(now_s)}
    assert send(site, ("discord", stamp, body)).json() == {"type": 1}
    challenge = sealed({"type": "url_verification", "challenge": "c1"})
    assert send(site, ("feishu", {}, challenge)).json() == {"challenge": "c1"}
    assert send(site, ("feishu", {}, b'{"type": "url_verification", "challenge": "c1"}')).status_code == 401


def test_a_service_whose_secret_is_not_set_has_no_hook(make_site: Callable[..., Site]) -> None:
    site = make_site(AccessSettings(required=True))
    for make in SERVICES:
        assert send(site, make(ack(), "4711", NOW_MS // 1000)).status_code == 404
    assert send(site, ("nothing", {}, b"")).status_code == 404


def test_silence_from_chat_is_for_this_incident_and_a_few_hours(site: Site) -> None:
    assert (
        "silenced it for 4 h"
        in send(site, slack(button_value("silence", "i1", 1, NOW_MS), "4711", NOW_MS // 1000)).text
    )
    (silence,) = IncidentRecords(site.control).silences()
    assert silence.matchers == {"id": "i1", "tenant": "red"}
    assert silence.expires_at_ms == NOW_MS + 4 * 3_600_000


def propose(site: Site) -> ActionRecords:
    records = ActionRecords(site.control, "lab")
    records.request(
        Proposal("a1", "drain", "n1", "approve", "rule:xid", "it fell off the bus", incident="i1", revision=1)
    )
    return records


def test_an_approval_in_chat_is_bound_to_the_incident_as_shown(site: Site, clock: ManualClock) -> None:
    records, now_s = propose(site), NOW_MS // 1000
    IncidentRecords(site.control).assign("i1", "bob", "carol")  # revision 2
    shown_before = button_value("approve", "a1", 1, NOW_MS)
    assert "the incident changed since" in send(site, slack(shown_before, "4711", now_s, 1)).text
    assert records.get("a1").state == "proposed"
    assert (
        "needs the role operator" in send(site, slack(button_value("approve", "a1", 2, NOW_MS), "4712", now_s, 2)).text
    )
    clock.advance(901)
    late = slack(button_value("approve", "a1", 2, NOW_MS), "4711", now_s + 901, 3)
    assert "older than 15 minutes" in send(site, late).text
    fresh = button_value("approve", "a1", 2, NOW_MS + 900_000)
    assert "Alice approved it" in send(site, slack(fresh, "4711", now_s + 901, 4)).text
    assert (records.get("a1").state, records.get("a1").actor) == ("approved", "alice")
    assert "approved" in send(site, slack(fresh, "4711", now_s + 901, 5)).text
    assert [entry for entry in site.audit() if entry[1] == "action.approve" and entry[2]] == [
        ("alice", "action.approve", True)
    ]


def test_a_rejection_in_chat(site: Site) -> None:
    records = propose(site)
    assert "rejected it" in send(site, slack(button_value("reject", "a1", 1, NOW_MS), "4711", NOW_MS // 1000)).text
    assert records.get("a1").state == "rejected"


def test_odd_bodies_never_fail_on_our_side(site: Site) -> None:
    for make in SERVICES:
        for body in (b"", b"null", b"[]", b'{"payload": 1}', b"payload=%7B", b"\xff\xfe", b'{"encrypt": "AAAA"}'):
            service, headers, _ = make(ack(), "4711", NOW_MS // 1000)
            assert send(site, (service, headers, body)).status_code < 500
    assert IncidentRecords(site.control).get("i1").acknowledged_by is None


def test_a_value_is_short_and_read_back() -> None:
    value = button_value("approve", "a" * 16, 123_456, NOW_MS)
    assert len(value) <= 64  # Telegram's limit
    assert parse_button(value) == Press("approve", "a" * 16, 123_456, NOW_MS // 1000)
    assert [parse_button(odd) for odd in ("", "ack", "ack:i:x:1", "drop:i:1:1", None, 7, value + "\n")] == [None] * 7
