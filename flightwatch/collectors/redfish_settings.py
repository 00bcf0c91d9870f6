"""The section `[redfish]` of the configuration."""

from __future__ import annotations

from dataclasses import dataclass

from flightwatch.core.settings import setting


@dataclass(frozen=True)
class RedfishSettings:
    """Which Redfish services this agent asks."""

    url: str = setting("", "https address of this node's BMC; empty: none is asked")
    facility_urls: tuple[str, ...] = setting((), "https addresses of CDUs, PDUs and CRACs that this agent asks")
    username: str = setting("", "user that may read sensors")
    password: str = setting("", "that user's password", secret=True)
    ca_file: str = setting("", "certificates that sign the services' own; empty: the system's")
    verify: bool = setting(True, "check certificates; false trusts anyone who answers")
    interval_seconds: float = setting(60.0, "interval of reading", minimum=30.0)
    timeout_seconds: float = setting(20.0, "time all requests of one reading may take together", minimum=1.0)
