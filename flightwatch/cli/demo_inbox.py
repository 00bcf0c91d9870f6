"""The demo's channel: a receiver in this process that prints what people would read."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from flightwatch.core.clock import Clock
from flightwatch.incidents.alert_settings import ChannelSettings
from flightwatch.incidents.channels import Channel, build_channel
from flightwatch.incidents.outgoing import Outgoing
from flightwatch.incidents.outgoing_settings import OutgoingSettings
from flightwatch.incidents.webhook_receiver import WebhookReceiver


class DemoInbox:
    """Receives messages over HTTP as an operator's program would, and prints them."""

    def __init__(self) -> None:
        self._receiver = WebhookReceiver("127.0.0.1", 0, lambda message: print(readable(message), flush=True))

    def start(self, clock: Clock) -> Channel:
        """Listen; return the channel that sends here."""
        self._receiver.start()
        # Only this one address, and only for this channel: the settings' own list stays as it is.
        outgoing = Outgoing(OutgoingSettings(allowed_addresses=(f"127.0.0.1:{self._receiver.port}",)), clock)
        settings = ChannelSettings(service="webhook", url=self._receiver.url, disclosure="full")
        return build_channel("demo", settings, outgoing)

    def stop(self) -> None:
        """End."""
        self._receiver.stop()


def readable(message: Mapping[str, Any]) -> str:
    """Return a message of the generic webhook as lines for a terminal; control characters are shown, not obeyed."""
    lines = [f"── {message.get('title', '')} "]
    lines[0] += "─" * max(0, 100 - len(lines[0]))
    for text in str(message.get("lead", "")).splitlines():
        lines += textwrap.wrap(text, 100, subsequent_indent="  ") or [""]
    for fact in message.get("facts") or ():
        lines += textwrap.wrap(f"{fact.get('label')}: {fact.get('value')}", 100, subsequent_indent="  ")
    if message.get("link"):
        lines.append(str(message["link"]))
    return "\n".join("".join(char if char.isprintable() else "�" for char in line) for line in lines)
