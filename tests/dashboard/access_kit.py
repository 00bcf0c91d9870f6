"""A console without pages: health, login, the gate and the API over a control database and, where asked, a store."""

from __future__ import annotations

import atexit
import shutil
import sqlite3
import tempfile
from contextlib import closing
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from fastapi import FastAPI
from fastapi.testclient import TestClient

from flightwatch.core.clock import Clock
from flightwatch.dashboard.access.control import AccessControl
from flightwatch.dashboard.access.gate import Gate
from flightwatch.dashboard.access.login import login_router
from flightwatch.dashboard.access.settings import AccessSettings
from flightwatch.dashboard.api.health import router
from flightwatch.dashboard.api.server import PREFIX, create_api
from flightwatch.dashboard.services import Services
from flightwatch.detectors.contract import Finding
from flightwatch.incidents.outgoing import Outgoing
from flightwatch.pipeline.control.database import Control, open_control
from flightwatch.pipeline.control.roles import Grant, Role
from flightwatch.pipeline.control.settings import ControlSettings
from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.settings import StoreSettings

STATUS: dict[str, Any] = {
    "version": "9", "cluster": "lab", "uptime_seconds": 1.0, "components": {}, "rows_per_second": 2.5,
    "newest_row_age_seconds": None, "lag_seconds": 0.0, "retention_share": 0.0, "partitions": [],
    "tables": [{"table": "events", "rows_per_second": 0.0, "last_ts": None, "age_seconds": None}],
    "coverage": {"nodes_reporting": 1, "nodes_known": 2, "devices_reporting": 0}, "data_gaps_24h": 0,
    "holes_of_unknown_size_24h": 0, "dead_letters_24h": 0,
    "disk": {"path": None, "used_bytes": None, "free_bytes": None}, "notices": [],
}  # fmt: skip
BASE = "http://127.0.0.1"


@cache
def _migrated() -> Path:
    """Return a migrated control database to copy: migrating takes longer than most tests."""
    folder = Path(tempfile.mkdtemp(prefix="flightwatch-control-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    control = open_control(f"sqlite://{folder / 'control.db'}", ControlSettings())
    control.close()
    with closing(sqlite3.connect(folder / "control.db")) as own:
        own.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return folder / "control.db"


class Site:
    """One console. `client` is a browser or program on 127.0.0.1.

    Parameters
    ----------
    store: None: a stand-in that no test reads. clock: of limits and of the control database.
    """

    def __init__(
        self,
        folder: Path,
        settings: AccessSettings | None = None,
        *,
        store: Store | None = None,
        loopback_only: bool = True,
        clock: Clock | None = None,
        outgoing: Outgoing | None = None,
    ) -> None:
        shutil.copyfile(_migrated(), folder / "control.db")
        self.control: Control = open_control(f"sqlite://{folder / 'control.db'}", ControlSettings(), clock)
        self.access = AccessControl(
            settings or AccessSettings(), self.control, loopback_only=loopback_only, clock=clock
        )
        shown = store or cast(Store, SimpleNamespace(settings=StoreSettings(), embedded=True, cluster=""))
        self.published: list[Finding] = []
        self.services = Services(
            shown, lambda: STATUS, lambda: None, self.control, self.access, publish_findings=self.published.extend
        )
        self.api = create_api(self.services, self.access)
        self.app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
        self.app.include_router(router(self.services))
        self.app.include_router(login_router(self.access, outgoing))
        self.app.mount(PREFIX, self.api)
        self.app.add_middleware(Gate, access=self.access)

        @self.app.get("/page")
        def page() -> str:
            return "a page"

    def client(self, address: str = "127.0.0.1", base: str = BASE) -> TestClient:
        """Return a client that calls from an address."""
        return TestClient(self.app, base_url=base, client=(address, 4711), follow_redirects=False)

    def token(self, role: Role | str, *scopes: str, tenant: str | None = None, name: str = "") -> dict[str, str]:
        """Make a token and return the header that carries it."""
        assert self.access.tokens is not None
        made = f"t{len(self.access.tokens.all())}"
        allowed = scopes or ("read", "sql", "write", "admin", "metrics", "alerts")
        _, text = self.access.tokens.create(name or made, "admin@example.com", [Grant(Role(role), tenant)], allowed, 1)
        return {"Authorization": f"Bearer {text}"}

    def audit(self) -> list[tuple[str, str, bool]]:
        """Return actor, action and outcome of the audit log, the oldest first."""
        assert self.access.audit is not None
        return [(one.actor, one.action, one.ok) for one in reversed(self.access.audit.page(limit=1000))]

    def close(self) -> None:
        """Close the control database."""
        self.control.close()
