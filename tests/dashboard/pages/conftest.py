"""A console over a small simulated cluster, with a job, events, a finding and a profile in it; and a browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from flightwatch.core.clock import SystemClock
from flightwatch.core.protocols import Row
from flightwatch.dashboard.app import create_app
from flightwatch.dashboard.serve import HttpServer, bind_port
from flightwatch.dashboard.services import Services
from flightwatch.pipeline.control.database import open_control
from flightwatch.pipeline.control.settings import ControlSettings
from flightwatch.pipeline.store.client import Store, open_store
from flightwatch.pipeline.store.frames import insert_rows
from flightwatch.pipeline.store.migrate import migrate
from flightwatch.pipeline.store.settings import StoreSettings
from flightwatch.simulator.fill import fill_store
from tests.dashboard.page_kit import (
    CHROMIUM,
    DEVICES,
    FLAGS,
    JOB,
    NODE,
    SENTENCE,
    Served,
    Watched,
    add_incidents,
    add_profile,
    set_cookies,
    status_of,
)


@pytest.fixture(scope="module")
def page_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with a quarter of an hour of 64 accelerators up to now, one slow, and a few events.

    Of a module and no longer: a process opens one embedded store at a time.
    """
    store = open_store(f"chdb://{tmp_path_factory.mktemp('pages') / 'store'}", StoreSettings())
    migrate(store)
    now_ms = SystemClock().now_ms()
    fill_store(store, DEVICES, 0.25, now_ms, faults=["slow_gpu@0:5,severity=0.3,after=200"])
    base: dict[str, Any] = {"received_at": now_ms, "cluster": "sim", "node": NODE, "src_partition": 0, "src_offset": 1}
    event: dict[str, Any] = {
        "ts": now_ms - 120_000,
        "device": 5,
        "source": "kernel",
        "code": "xid:94",
        "severity": "error",
        "message": "NVRM: Xid 94, contained ECC error",
        "attrs": {},
    }
    finding: dict[str, Any] = {
        "ts": now_ms - 60_000,
        "id": "f1",
        "detector": "slow",
        "detector_version": "1",
        "kind": "slow",
        "class": "compute",
        "scope": "device",
        "job": JOB,
        "run": None,
        "device": 5,
        "rank": 5,
        "targets": [],
        "first_seen_at": now_ms - 300_000,
        "detected_at": now_ms - 60_000,
        "score": 12.0,
        "threshold": 4.0,
        "severity": "P2",
        "blames_hardware": True,
        "confidence": 0.9,
        "summary": SENTENCE,
        "state": "raised",
        "evidence": "{}",
    }
    insert_rows(store, [Row("events", base | event), Row("findings", base | finding)], "pages:extra")
    yield store
    store.close()


@pytest.fixture(scope="module")
def served(page_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A console on a free port, without a login."""
    folder = tmp_path_factory.mktemp("console")
    control = open_control(f"sqlite:///{folder / 'control.sqlite'}", ControlSettings())
    profile = add_profile(control, folder)
    add_incidents(control)
    bound = bind_port("127.0.0.1", 23_500, trust_network=False)
    app = create_app(Services(page_store, status_of(page_store), lambda: None, control), loopback_only=True)
    server = HttpServer("console", app, bound)
    server.start()
    yield Served(f"http://127.0.0.1:{bound.getsockname()[1]}", page_store, control, profile)
    server.stop()
    control.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium. Of a module and no longer: a thread drives one at a time, and others start their own."""
    if not CHROMIUM.exists():
        pytest.skip("chromium is not installed: apt-get install chromium")
    expect.set_options(timeout=60_000)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def watched(browser: Browser, served: Served) -> Iterator[Watched]:
    """A browser page in English and dark, refreshing paused."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, accept_downloads=True)
    set_cookies(context, served.url, "en", "dark")
    page = Watched(context, served.url)
    yield page
    context.close()
