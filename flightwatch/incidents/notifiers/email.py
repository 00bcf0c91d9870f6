"""E-mail over SMTP, with STARTTLS (`smtp://`, port 587) or TLS from the start (`smtps://`, port 465).

Messages of one incident form a thread (Message-ID, In-Reply-To). A mail server outside this machine is only spoken to
encrypted; `smtp-plain://` is for a relay on this machine.
"""

from __future__ import annotations

import hashlib
import html
import smtplib
import socket
import ssl
import time
from collections.abc import Mapping
from email.message import EmailMessage
from email.utils import formatdate, parseaddr
from typing import Any
from urllib.parse import urlsplit

from flightwatch.core.errors import ConfigError, Refused
from flightwatch.incidents.addresses import is_guarded
from flightwatch.incidents.alert_settings import ChannelSettings
from flightwatch.incidents.contract import Alert, AlertReason, Delivery
from flightwatch.incidents.notifiers.base import cut, is_urgent, link_label
from flightwatch.incidents.outgoing import Outgoing, OutgoingError, tls_context

_PORTS = {"smtp": 587, "smtps": 465, "smtp-plain": 25}


class Email:
    """A message to one or more addresses; a mail cannot be changed, so each message is a mail in the same thread."""

    service = "email"
    idempotent = False
    updates = False
    pages = False
    takes_pictures = True
    per_minute = 30.0

    def __init__(self, name: str, settings: ChannelSettings, outgoing: Outgoing) -> None:
        """Check the settings. Raises ConfigError: one is wrong or missing."""
        self.name, self.settings, self._outgoing = name, settings, outgoing
        parts = urlsplit(settings.url)
        if parts.scheme not in _PORTS or not parts.hostname:
            raise ConfigError(f"channels.{name}.url must be smtp://HOST[:PORT] (STARTTLS) or smtps://HOST[:PORT]")
        if not settings.to or not all("@" in parseaddr(address)[1] for address in settings.to):
            raise ConfigError(f"channels.{name}.to must be a list of mail addresses")
        if "@" not in parseaddr(settings.sender)[1]:
            raise ConfigError(f"channels.{name}.sender must be a mail address")
        self._scheme, self._host = parts.scheme, parts.hostname
        self._port = parts.port or _PORTS[parts.scheme]
        self._tls = tls_context(settings.ca_file, f"channels.{name}.ca_file") if settings.ca_file else outgoing.tls

    def send(self, alert: Alert, reference: Mapping[str, Any] | None) -> Delivery:
        """Send a mail; a later one answers the first."""
        first = str((reference or {}).get("message_id", ""))
        message = self._message(alert, first)
        started = time.monotonic()
        try:
            self._submit(message)
        except smtplib.SMTPResponseException as error:
            text = (
                error.smtp_error.decode("utf-8", "replace") if isinstance(error.smtp_error, bytes) else error.smtp_error
            )
            passing = 400 <= error.smtp_code < 500
            return Delivery(ok=False, error=f"the mail server answered {error.smtp_code} {text}"[:300], retry=passing)
        except smtplib.SMTPRecipientsRefused as error:
            codes = sorted({code for code, _ in error.recipients.values()})
            passing = all(400 <= code < 500 for code in codes)
            return Delivery(ok=False, error=f"the mail server refused every recipient: {codes}", retry=passing)
        except OutgoingError as error:
            return Delivery(ok=False, error=str(error), retry=True, unknown=error.sent)
        except (Refused, ConfigError) as error:
            return Delivery(ok=False, error=str(error), retry=False)
        except smtplib.SMTPNotSupportedError as error:
            return Delivery(ok=False, error=f"the mail server cannot do what is needed: {error}", retry=False)
        except (smtplib.SMTPException, OSError) as error:
            # Whether the server took the mail before the connection broke is not known.
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            return Delivery(
                ok=False, error=f"{self._host}: {reason}", retry=True, unknown=not isinstance(error, ssl.SSLError)
            )
        return Delivery(
            ok=True, reference={"message_id": first or message["Message-ID"]},
            latency_ms=(time.monotonic() - started) * 1000,
        )  # fmt: skip

    def _submit(self, message: EmailMessage) -> None:
        timeout = self._outgoing.settings.timeout_seconds
        address = self._outgoing.addresses(self._host, self._port, timeout)[0]
        if self._scheme == "smtp-plain" and not is_guarded(address):
            raise ConfigError(f"channels.{self.name}.url: smtp-plain is only for a relay on this machine")
        kind = _smtps(address, self._tls) if self._scheme == "smtps" else _smtp(address)
        with kind(self._host, self._port, timeout=timeout) as server:
            if self._scheme == "smtp":
                server.starttls(context=self._tls)
            if self.settings.user:
                server.login(self.settings.user, self.settings.password)
            server.send_message(message)

    def _message(self, alert: Alert, first: str) -> EmailMessage:
        message = EmailMessage()
        message["Subject"] = cut(" ".join(alert.title.split()), 200)
        message["From"] = self.settings.sender
        message["To"] = ", ".join(self.settings.to)
        message["Date"] = formatdate(alert.at_ms / 1000)
        domain = parseaddr(self.settings.sender)[1].rpartition("@")[2]
        digest = hashlib.sha256(f"{self.name}|{alert.idempotency_key}".encode()).hexdigest()[:32]
        message["Message-ID"] = f"<flightwatch.{digest}@{domain}>"
        message["Auto-Submitted"] = "auto-generated"
        if first:
            message["In-Reply-To"] = first
            message["References"] = first
        if is_urgent(alert):
            message["Importance"] = "high"
        message.set_content(_text(alert))
        message.add_alternative(_html(alert), subtype="html")
        if alert.picture and self.settings.pictures and alert.reason is AlertReason.OPENED:
            message.add_attachment(alert.picture, maintype="image", subtype="png", filename="evidence.png")
        return message


def _smtp(address: str) -> type[smtplib.SMTP]:
    class Checked(smtplib.SMTP):
        """Connects to the address that was checked."""

        def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
            return socket.create_connection((address, port), timeout, self.source_address)

    return Checked


def _smtps(address: str, tls: ssl.SSLContext) -> type[smtplib.SMTP]:
    class Checked(smtplib.SMTP):
        """Connects to the address that was checked, with TLS for the name that was asked for."""

        def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
            plain = socket.create_connection((address, port), timeout, self.source_address)
            try:
                return tls.wrap_socket(plain, server_hostname=host)
            except OSError:
                plain.close()
                raise

    return Checked


def _text(alert: Alert) -> str:
    parts = [alert.lead, "\n".join(f"{label}: {value}" for label, value in alert.facts), alert.link]
    return "\n\n".join(part for part in parts if part) + "\n"


def _html(alert: Alert) -> str:
    lead = "<br>".join(html.escape(line) for line in alert.lead.splitlines())
    rows = "".join(
        f'<tr><td style="padding:2px 12px 2px 0;vertical-align:top"><b>{html.escape(label)}</b></td>'
        f"<td>{html.escape(value)}</td></tr>"
        for label, value in alert.facts
    )
    link = f'<p><a href="{html.escape(alert.link)}">{link_label(alert)}</a></p>' if alert.link else ""
    return f"<html><body><p>{lead}</p><table>{rows}</table>{link}</body></html>"
