"""Consoles for tests of access: each test makes the ones it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flightwatch.dashboard.access.settings import AccessSettings
from tests.dashboard.access_kit import Site


@pytest.fixture
def make_site(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    made: list[Site] = []

    def make(settings: AccessSettings | None = None, **more: Any) -> Site:
        folder = tmp_path / f"site{len(made)}"
        folder.mkdir()
        made.append(Site(folder, settings, **more))
        return made[-1]

    yield make
    for site in made:
        site.close()
