"""Both databases: SQLite always, PostgreSQL from Debian's package on a private cluster in a temporary folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flightwatch.core.clock import Clock
from flightwatch.pipeline.control.database import Control, open_control
from flightwatch.pipeline.control.settings import ControlSettings
from tests.pipeline.control.postgres_kit import PostgresServer, postgres

__all__ = ["postgres"]

OpenControl = Callable[[], Control]


@pytest.fixture(params=["sqlite", "postgresql"])
def control_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        server: PostgresServer = request.getfixturevalue("postgres")
        return server.new_database()
    return f"sqlite://{tmp_path / 'control.db'}"


@pytest.fixture
def open_another(control_url: str) -> Iterator[Callable[[Clock | None], Control]]:
    """Open a further connection to the same database, as another process would."""
    opened: list[Control] = []

    def another(clock: Clock | None = None) -> Control:
        opened.append(open_control(control_url, ControlSettings(), clock))
        return opened[-1]

    yield another
    for control in opened:
        control.close()
