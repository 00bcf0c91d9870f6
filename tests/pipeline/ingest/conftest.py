"""One embedded store for each module of tests (a process has one store at a time), a fresh bus for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from flightwatch.pipeline.bus.base import Bus
from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.bus.settings import BusSettings
from flightwatch.pipeline.ingest.runner import Ingest
from flightwatch.pipeline.store.client import Store, open_store
from flightwatch.pipeline.store.migrate import migrate
from flightwatch.pipeline.store.settings import StoreSettings
from tests.pipeline.ingest.ingest_stage import SETTINGS, empty, setup_topics


@pytest.fixture(scope="module")
def module_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    store = open_store(f"chdb://{tmp_path_factory.mktemp('store')}/store", StoreSettings())
    migrate(store)
    yield store
    store.close()


@pytest.fixture
def store(module_store: Store) -> Store:
    empty(module_store)
    return module_store


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    opened = open_bus(f"sqlite://{tmp_path}/bus", BusSettings(session_timeout_seconds=2.0))
    setup_topics(opened)
    yield opened
    opened.close()


@pytest.fixture
def ingest(bus: Bus, store: Store) -> Ingest:
    return Ingest(bus, store, SETTINGS, cluster="c1", node="ingest-node")
