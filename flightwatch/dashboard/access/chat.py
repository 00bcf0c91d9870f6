"""Button presses from chat services: signature and time checked, the account and the button's value read.

Formats as the services document them: Slack "Verifying requests from Slack", Discord "Interactions security",
Telegram `setWebhook` secret_token, Feishu/Lark event signature (with encrypt key), DingTalk robot `timestamp`/`sign`.
DingTalk's signature does not cover the body: it is used once, and TLS must keep it secret.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from flightwatch.dashboard.access.denied import Denied
from flightwatch.dashboard.access.settings import AccessSettings
from flightwatch.incidents.buttons import Press, parse_button

#: A signature older or newer than this is refused.
FRESH_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Pressed:
    """A verified press.

    Attributes
    ----------
    account: id of who pressed it, at the service. press: None for a button that is none of ours.
    once: what must not be accepted again. answered: a document to be sent back as it is (a handshake), else None.
    extra: what the answer must repeat.
    """

    account: str
    press: Press | None
    once: str
    answered: dict[str, Any] | None = None
    extra: str = ""


Headers = Mapping[str, str]
Reader = Callable[[AccessSettings, Headers, bytes, int], Pressed]


def slack(settings: AccessSettings, headers: Headers, body: bytes, now_s: int) -> Pressed:
    """Read `payload=` of an interactive message. Raises Denied (401, 400)."""
    stamp = _fresh(headers.get("x-slack-request-timestamp"), now_s)
    base = b"v0:" + stamp.encode() + b":" + body
    expected = "v0=" + hmac.new(settings.slack_signing_secret.encode(), base, hashlib.sha256).hexdigest()
    given = _same(headers.get("x-slack-signature"), expected)
    payload = _object(parse_qs(body.decode("utf-8", "replace"), max_num_fields=20).get("payload", [""])[0])
    actions = payload.get("actions")
    first = actions[0] if isinstance(actions, list) and actions and isinstance(actions[0], dict) else {}
    return Pressed(_text(payload, "user", "id"), parse_button(first.get("value")), given)


def discord(settings: AccessSettings, headers: Headers, body: bytes, now_s: int) -> Pressed:
    """Read an interaction. Raises Denied (401, 400)."""
    stamp = _fresh(headers.get("x-signature-timestamp"), now_s)
    given = headers.get("x-signature-ed25519", "")
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(settings.discord_public_key))
        key.verify(bytes.fromhex(given), stamp.encode() + body)
    except (InvalidSignature, ValueError) as error:
        raise _unsigned() from error
    payload = _object(body)
    if payload.get("type") == 1:
        return Pressed("", None, "", {"type": 1})
    account = _text(payload, "member", "user", "id") or _text(payload, "user", "id")
    data = payload.get("data")
    return Pressed(account, parse_button(data.get("custom_id") if isinstance(data, dict) else None), given)


def telegram(settings: AccessSettings, headers: Headers, body: bytes, now_s: int) -> Pressed:
    """Read a callback query. Raises Denied (401, 400)."""
    _same(headers.get("x-telegram-bot-api-secret-token"), settings.telegram_secret_token)
    payload = _object(body)
    query = payload.get("callback_query")
    if not isinstance(query, dict):
        return Pressed("", None, "", {})
    account = query["from"].get("id") if isinstance(query.get("from"), dict) else None
    press = parse_button(query.get("data"))
    return Pressed(str(account or ""), press, f"{payload.get('update_id')}", None, str(query.get("id", "")))


def feishu(settings: AccessSettings, headers: Headers, body: bytes, now_s: int) -> Pressed:
    """Read a card action, encrypted with the app's key. Raises Denied (401, 400)."""
    if "x-lark-signature" not in headers:
        return _feishu_handshake(settings, body)
    stamp = _fresh(headers.get("x-lark-request-timestamp"), now_s)
    nonce = headers.get("x-lark-request-nonce", "")
    signed = (stamp + nonce + settings.feishu_encrypt_key).encode() + body
    given = _same(headers.get("x-lark-signature"), hashlib.sha256(signed).hexdigest())
    payload = _object(_decrypted(settings.feishu_encrypt_key, _object(body)))
    if payload.get("type") == "url_verification":
        return Pressed("", None, "", {"challenge": _text(payload, "challenge")})
    event = payload.get("event")
    event = event if isinstance(event, dict) else {}
    action = event.get("action")
    value = action.get("value") if isinstance(action, dict) else None
    pressed = value.get("flightwatch") if isinstance(value, dict) else value
    return Pressed(_text(event, "operator", "open_id"), parse_button(pressed), given)


def _feishu_handshake(settings: AccessSettings, body: bytes) -> Pressed:
    """Answer the check of the address; whatever is wrong gives the same answer, so that nobody learns by trying."""
    try:
        payload = _object(_decrypted(settings.feishu_encrypt_key, _object(body)))
    except Denied as error:
        raise _unsigned() from error
    if payload.get("type") != "url_verification":
        raise _unsigned()
    return Pressed("", None, "", {"challenge": _text(payload, "challenge")})


def dingtalk(settings: AccessSettings, headers: Headers, body: bytes, now_s: int) -> Pressed:
    """Read what somebody wrote to the robot: the value of a button. Raises Denied (401, 400)."""
    stamp = headers.get("timestamp", "")
    _fresh(stamp[:-3], now_s)
    secret = settings.dingtalk_app_secret
    digest = hmac.new(secret.encode(), f"{stamp}\n{secret}".encode(), hashlib.sha256).digest()
    given = _same(headers.get("sign"), base64.b64encode(digest).decode())
    payload = _object(body)
    return Pressed(_text(payload, "senderStaffId"), parse_button(_text(payload, "text", "content").strip()), given)


#: Service to reader and to the setting without which it is off.
READERS: Mapping[str, tuple[Reader, str]] = {
    "slack": (slack, "slack_signing_secret"),
    "discord": (discord, "discord_public_key"),
    "telegram": (telegram, "telegram_secret_token"),
    "feishu": (feishu, "feishu_encrypt_key"),
    "dingtalk": (dingtalk, "dingtalk_app_secret"),
}


def answer_of(service: str, text: str, extra: str) -> dict[str, Any]:
    """Return the document that shows a sentence to who pressed the button, and to nobody else."""
    if service == "discord":
        return {"type": 4, "data": {"content": text, "flags": 64}}
    if service == "telegram":
        return {"method": "answerCallbackQuery", "callback_query_id": extra, "text": text[:200]}
    if service == "feishu":
        return {"toast": {"type": "info", "content": text}}
    if service == "dingtalk":
        return {"msgtype": "text", "text": {"content": text}}
    return {"response_type": "ephemeral", "replace_original": False, "text": text}


def _unsigned() -> Denied:
    return Denied(401, "unauthenticated", "the signature does not fit")


def _fresh(stamp: str | None, now_s: int) -> str:
    if stamp is None or not stamp.isascii() or not stamp.isdigit() or len(stamp) > 12:
        raise _unsigned()
    if abs(now_s - int(stamp)) > FRESH_SECONDS:
        raise Denied(401, "unauthenticated", "the signature is too old")
    return stamp


def _same(given: str | None, expected: str) -> str:
    if not given or not expected or not hmac.compare_digest(given.encode(), expected.encode()):
        raise _unsigned()
    return given


def _object(text: str | bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Denied(400, "malformed", "the body is not JSON") from error
    if not isinstance(found, dict):
        raise Denied(400, "malformed", "the body is not an object")
    return found


def _text(document: Any, *path: str) -> str:
    for name in path:
        document = document.get(name) if isinstance(document, dict) else None
    return document if isinstance(document, str) else ""


def _decrypted(key: str, document: dict[str, Any]) -> bytes:
    """Undo AES-256-CBC with PKCS#7 padding, its first block the initial value; refuses a body in the clear."""
    try:
        content = base64.b64decode(_text(document, "encrypt"), validate=True)
    except (binascii.Error, ValueError) as error:
        raise _unsigned() from error
    if len(content) < 32 or len(content) % 16:
        raise _unsigned()
    decryptor = Cipher(algorithms.AES(hashlib.sha256(key.encode()).digest()), modes.CBC(content[:16])).decryptor()
    plain = decryptor.update(content[16:]) + decryptor.finalize()
    if not 1 <= plain[-1] <= 16:
        raise _unsigned()
    return plain[: -plain[-1]]
