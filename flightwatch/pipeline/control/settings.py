"""The section `[control]`: how to reach the control database."""

from __future__ import annotations

from dataclasses import dataclass

from flightwatch.core.settings import setting


@dataclass(frozen=True)
class ControlSettings:
    """What an operator may change about the control database."""

    password: str = setting("", "password of the user in the postgresql:// URL", secret=True)
    busy_timeout_seconds: int = setting(10, "longest wait for another writer or a connection", minimum=1)
    connections: int = setting(5, "connections to PostgreSQL kept open", minimum=1)
