"""One console with a store for all tests of a module: a process opens one embedded store at a time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flightwatch.dashboard.access.settings import AccessSettings
from flightwatch.pipeline.store.client import Store, open_store
from flightwatch.pipeline.store.migrate import migrate
from flightwatch.pipeline.store.settings import StoreSettings
from tests.dashboard.access_kit import Site


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    opened = open_store(f"chdb://{tmp_path_factory.mktemp('store') / 'data'}", StoreSettings())
    migrate(opened)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, store: Store) -> Iterator[Site]:
    settings = AccessSettings(required=True, requests_per_second=100_000, writes_per_minute=1_000_000)
    site = Site(tmp_path_factory.mktemp("site"), settings, store=store)
    yield site
    site.close()
