"""E-mail: encryption, threads, refusals, and what is not known after a broken connection."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flightwatch.core.errors import ConfigError
from flightwatch.core.incident import AlertReason
from flightwatch.incidents.alert_settings import ChannelSettings
from flightwatch.incidents.channels import build_channel
from flightwatch.incidents.contract import Notifier
from flightwatch.incidents.outgoing import Outgoing
from tests.incidents.alert_kit import PNG, alert, outgoing
from tests.incidents.http_receiver import certificate, server_tls
from tests.incidents.smtp_receiver import MailServer


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def servers() -> Iterator[list[MailServer]]:
    made: list[MailServer] = []
    yield made
    for server in made:
        server.stop()


def notifier(scheme: str, server: MailServer, ca_file: Path | None, client: Outgoing | None = None) -> Notifier:
    settings = ChannelSettings(
        service="email", url=f"{scheme}://127.0.0.1:{server.port}", sender="Flightwatch <fw@example.org>",
        to=("oncall@example.org", "boss@example.org"), ca_file=str(ca_file or ""),
    )  # fmt: skip
    return build_channel("mail", settings, client or outgoing(timeout_seconds=5.0)).notifier


@pytest.mark.parametrize("scheme", ["smtp", "smtps"])
def test_mails_are_encrypted_and_form_a_thread(scheme: str, pair: tuple[Path, Path], servers: list[MailServer]) -> None:
    server = MailServer(server_tls(*pair), from_start=scheme == "smtps")
    servers.append(server)
    mail = notifier(scheme, server, pair[0])
    first = mail.send(alert(), None)
    assert first.ok, first.error
    over = alert(reason=AlertReason.RESOLVED, idempotency_key="need-18-ops")
    assert mail.send(over, first.reference).ok
    assert server.encrypted == [True, True]
    one, two = server.mails
    assert one["Subject"] == "P2 · slowed · llm-70b: gpu-0417 GPU 3 is slow"
    assert one["To"] == "oncall@example.org, boss@example.org"
    assert two["In-Reply-To"] == one["Message-ID"]
    assert one["Message-ID"] != two["Message-ID"]
    parts = {part.get_content_type(): part for part in one.walk()}
    assert "gpu-0417 <b>GPU 3</b> & *more*" in parts["text/plain"].get_content()
    assert "&lt;b&gt;GPU 3&lt;/b&gt;" in parts["text/html"].get_content()
    assert parts["image/png"].get_content() == PNG


def test_a_server_without_encryption_is_refused(servers: list[MailServer]) -> None:
    server = MailServer(None)
    servers.append(server)
    delivery = notifier("smtp", server, None).send(alert(), None)
    assert (delivery.ok, delivery.retry) == (False, False)
    assert not server.mails
    assert notifier("smtp-plain", server, None).send(alert(), None).ok


def test_a_bad_certificate_is_refused(pair: tuple[Path, Path], servers: list[MailServer]) -> None:
    for from_start, scheme in ((False, "smtp"), (True, "smtps")):
        server = MailServer(server_tls(*pair), from_start=from_start)
        servers.append(server)
        delivery = notifier(scheme, server, None).send(alert(), None)
        assert (delivery.ok, delivery.retry, delivery.unknown) == (False, True, False)
        assert not server.mails


@pytest.mark.parametrize(("answer", "retry"), [("450 later", True), ("550 nobody", False)])
def test_refused_recipients(answer: str, retry: bool, servers: list[MailServer]) -> None:
    server = MailServer(None, rcpt=answer)
    servers.append(server)
    delivery = notifier("smtp-plain", server, None).send(alert(), None)
    assert (delivery.ok, delivery.retry) == (False, retry)


def test_a_connection_that_breaks_has_an_unknown_outcome(servers: list[MailServer]) -> None:
    server = MailServer(None, drop=True)
    servers.append(server)
    delivery = notifier("smtp-plain", server, None).send(alert(), None)
    assert (delivery.ok, delivery.retry, delivery.unknown) == (False, True, True)


def test_guarded_addresses(servers: list[MailServer]) -> None:
    server = MailServer(None)
    servers.append(server)
    delivery = notifier("smtp-plain", server, None, Outgoing()).send(alert(), None)
    assert (delivery.ok, delivery.retry) == (False, False)


def test_headers_cannot_be_smuggled(servers: list[MailServer]) -> None:
    server = MailServer(None)
    servers.append(server)
    odd = alert(title="P2\r\nBcc: evil@example.org\r\n\r\nbody", picture=None)
    assert notifier("smtp-plain", server, None).send(odd, None).ok
    assert server.mails[0]["Bcc"] is None


@pytest.mark.parametrize(
    "changes",
    [{"url": "http://m"}, {"url": ""}, {"sender": "nobody"}, {"to": ()}, {"to": ("x",)}],
)
def test_wrong_settings(changes: dict[str, Any]) -> None:
    base = {"service": "email", "url": "smtp://m", "sender": "a@b.example", "to": ("c@d.example",)}
    with pytest.raises(ConfigError, match=r"channels\.mail"):
        build_channel("mail", ChannelSettings(**(base | changes)), outgoing())
