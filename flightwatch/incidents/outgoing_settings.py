"""Settings of the one client for outgoing URLs, apart from it: they are checked where no HTTP library is installed."""

from __future__ import annotations

from dataclasses import dataclass

from flightwatch.core.settings import setting


@dataclass(frozen=True)
class OutgoingSettings:
    """Section `[outgoing]`: limits of every URL that Flightwatch calls."""

    allowed_addresses: tuple[str, ...] = setting(
        (),
        "addresses, networks or ADDRESS:PORT that may be called although they are loopback, link-local or a cloud's"
        " metadata service",
    )
    timeout_seconds: float = setting(10.0, "longest time of one call: name, connection and answer", minimum=0.1)
    max_answer_bytes: int = setting(1_000_000, "bytes of an answer that are read", minimum=1000)
    ca_file: str = setting("", "PEM file of certificate authorities to trust; empty: the system's")
