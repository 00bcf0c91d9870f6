"""What tests of pages share: a console's parts without a process, a profile, a page that notes what goes wrong."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from playwright.sync_api import BrowserContext, Page

from flightwatch.core.clock import SystemClock
from flightwatch.pipeline.control.database import Control
from flightwatch.pipeline.control.schema_incidents import INCIDENT_FINDINGS, INCIDENTS
from flightwatch.pipeline.profiles.records import Profiles, RankNews, Wanted
from flightwatch.pipeline.store import machine_reads
from flightwatch.pipeline.store.client import Store
from tests.pipeline.control.incident_kit import finding_row, incident_row

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
JOB, NODE, DEVICES = "sim-pretrain", "sim-n0000", 64
INCIDENT = "i-slow"
#: As the detector of slow targets says it.
SENTENCE = (
    "rank 5 (sim-n0000 device 5) computes 30.0 % longer than its role peers; the job would gain 20.1 % of its step"
    " without it."
)


@dataclass(frozen=True)
class Served:
    """A running console: address, store, control database, a profile that is done."""

    url: str
    store: Store
    control: Control
    profile: str


def status_of(store: Store) -> Callable[[], dict[str, Any]]:
    """Return a status of a store alone."""

    def status() -> dict[str, Any]:
        tables = machine_reads.table_activity(store)
        ages = [row["age_seconds"] for row in tables if row["age_seconds"] is not None]
        return {
            "cluster": "sim",
            "coverage": machine_reads.coverage(store),
            "notices": [],
            "lag_seconds": 0.0,
            "tables": tables,
            "newest_row_age_seconds": min(ages) if ages else None,
            "components": {},
            "data_gaps_24h": 0,
        }

    return status


def add_profile(control: Control, folder: Path) -> str:
    """Store a profile of ranks 4 and 5 with two small traces; rank 5 takes longer in one op."""
    records = Profiles(control)
    options = {"stacks": False, "shapes": False, "memory": False}
    name = records.create(Wanted(JOB, "", [4, 5], 3, options, 10**9, 120, "test", ""))
    news = []
    for rank, gemm_us in ((4, 100.0), (5, 150.0)):
        path = folder / f"rank{rank}.json.gz"
        path.write_bytes(gzip.compress(json.dumps(trace_of(rank, gemm_us)).encode()))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        news.append(RankNews(rank, "done", "", NODE, 10, str(path), digest, path.stat().st_size))
    records.tell(name, news)
    return name


def trace_of(rank: int, gemm_us: float) -> dict[str, Any]:
    """Return a Kineto trace with nested host ops and two kernels a step."""
    events: list[dict[str, Any]] = []
    at = 0.0
    for step in range(3):
        whole = gemm_us + 60.0
        events.append(_event("user_annotation", f"ProfilerStep#{10 + step}", 1, 1, at, whole))
        events.append(_event("cpu_op", "aten::linear", 1, 1, at + 1, gemm_us))
        events.append(_event("kernel", "gemm_bf16", 0, 7, at, gemm_us))
        events.append(_event("kernel", "ncclDevKernel_AllReduce", 0, 8, at + gemm_us, 50.0))
        at += whole
    return {"schemaVersion": 1, "baseTimeNanoseconds": 10**18, "distributedInfo": {"rank": rank}, "traceEvents": events}


def _event(category: str, name: str, pid: int, tid: int, at: float, took: float) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": at, "dur": took}


def add_incidents(control: Control) -> None:
    """Store the incident of the slow rank with a consequence, and an older one of its node that is over."""
    now_ms = SystemClock().now_ms()
    place: dict[str, Any] = {"cluster": "sim", "node": NODE, "device": 5, "job": JOB, "rank": 5, "tenant": None}
    with control.transaction() as connection:
        rows = [
            incident_row(
                INCIDENT,
                now_ms - 300_000,
                **place,
                title=f"{NODE} device 5 (rank 5): slow (compute) in {JOB}",
                summary=SENTENCE,
                confidence=0.9,
                loss_gpu_hours_per_hour=12.5,
                lost_gpu_hours=1.04,
                gpus_affected=64,
                findings_count=2,
            ),
            incident_row(
                "i-old",
                now_ms - 86_400_000,
                **place,
                title="It was slow before",
                state="resolved",
                closed_at_ms=now_ms - 80_000_000,
            ),
        ]
        connection.execute(sa.insert(INCIDENTS), rows)
        root = {
            "rank": 5,
            "job": JOB,
            "confidence": 0.9,
            "threshold": 4.0,
            "summary": SENTENCE,
            "evidence": json.dumps({"peer_ranks": [4, 6], "sql": "SELECT 1 AS evidence"}),
        }
        found = [
            finding_row("f1", INCIDENT, now_ms - 240_000, cluster="sim", node=NODE, device=5, **root),
            finding_row(
                "f2",
                INCIDENT,
                now_ms - 200_000,
                cluster="sim",
                node=NODE,
                device=5,
                kind="fail_slow",
                class_=None,
                parent="f1",
                why="a slow target holds the job back",
            ),
        ]
        connection.execute(sa.insert(INCIDENT_FINDINGS), found)


class Watched:
    """A page and what went wrong on it: messages of the console, failed and outside requests."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.context = context
        self.url = url
        self.wrong: list[str] = []
        self.page: Page = context.new_page()
        self.page.set_default_timeout(60_000)
        self.page.on("console", self._told)
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("request", lambda request: self._asked(request.url))
        self.page.on(
            "response",
            lambda answer: self.wrong.append(f"{answer.status} {answer.url}") if answer.status >= 400 else None,
        )

    def _told(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"{message.type}: {message.text}")

    def _asked(self, url: str) -> None:
        if not url.startswith((self.url, self.url.replace("http", "ws"), "data:", "blob:")):
            self.wrong.append(f"outside request: {url}")

    def open(self, path: str, ready: str = "#fw-main") -> Page:
        """Go to a path, not refreshing by itself, and wait until it shows something and nothing is being fetched."""
        self.page.goto(f"{self.url}{path}{'&' if '?' in path else '?'}refresh=off")
        self.page.wait_for_selector(ready, state="attached")
        self.settle()
        return self.page

    def settle(self) -> None:
        """Wait until no callback runs."""
        self.page.wait_for_function(
            "() => new Promise(done => { let quiet = 0; const look = () => {"
            " quiet = document.querySelector('[data-dash-is-loading=\"true\"]') ? 0 : quiet + 1;"
            " if (quiet > 8) done(true); else setTimeout(look, 50); }; look(); })"
        )


def set_cookies(context: BrowserContext, url: str, language: str, theme: str) -> None:
    """Choose language and theme as the header's buttons do."""
    context.add_cookies(
        [{"name": "fw_lang", "value": language, "url": url}, {"name": "fw_theme", "value": theme, "url": url}]
    )
