"""A test message to one channel, past the queue: does it arrive at all?"""

from __future__ import annotations

import secrets

from flightwatch.core.clock import Clock
from flightwatch.core.incident import AlertReason
from flightwatch.core.vocabulary import Severity
from flightwatch.incidents.channels import Channel
from flightwatch.incidents.contract import Delivery
from flightwatch.incidents.text import platform_alert


def send_test(channel: Channel, clock: Clock, cluster: str, actor: str) -> Delivery:
    """Send a test message and return what the service answered.

    A pager gets an event of severity info, which is resolved at once.
    """
    key = f"test-{secrets.token_hex(8)}"
    detail = {"channel": channel.name, "service": channel.notifier.service, "cluster": cluster,
              "at_ms": clock.now_ms(), "actor": actor}  # fmt: skip

    def send(reason: AlertReason, part: str, reference: Delivery | None) -> Delivery:
        alert = platform_alert(
            "test", detail, reason, Severity.INFO, key=key, now_ms=clock.now_ms(), zone=channel.zone, cluster=cluster,
            language=channel.settings.language, idempotency_key=f"{key}-{part}",
        )  # fmt: skip
        return channel.notifier.send(alert, None if reference is None else reference.reference)

    first = send(AlertReason.TEST, "1", None)
    if first.ok and channel.notifier.pages:
        return send(AlertReason.RESOLVED, "2", first)
    return first
