"""The section `[console]`."""

from __future__ import annotations

from dataclasses import dataclass

from flightwatch.core.settings import setting


@dataclass(frozen=True)
class ConsoleSettings:
    """Where the console listens."""

    host: str = setting(
        "127.0.0.1", "address to listen on; beyond loopback it needs a login ([access]) or trust_network"
    )
    port: int = setting(8080, "port; when it is taken, the next free one", minimum=1)
    trust_network: bool = setting(
        False,
        "listen beyond this machine without a login: who can reach it reads everything, changes nothing",
    )
    base_path: str = setting(
        "", "path below which a proxy offers the console, for example /flightwatch; empty: at the root"
    )
