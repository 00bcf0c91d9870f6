"""Scraping exporters: a real local server, and every way in which one can disappoint."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from flightwatch.collectors.environment import Environment
from flightwatch.collectors.scrape import ScrapeCollector, fetch
from flightwatch.collectors.settings import AgentSettings
from flightwatch.collectors.tree import FolderTree
from flightwatch.core.errors import ConfigError, NoData, TransientError

SAMPLES = Path(__file__).parent / "captures" / "devices" / "samples"
NOW_MS = 1_790_000_000_000


class Exporter(BaseHTTPRequestHandler):
    """Answers by path."""

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self._answer(200, (SAMPLES / "dcgm.prom").read_bytes())
        elif self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/metrics")
            self.end_headers()
        elif self.path == "/endless":
            self.send_response(200)
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b"# comment\n" * 10_000)
            except OSError:
                return
        elif self.path == "/slow":
            self.send_response(200)
            self.end_headers()
            try:
                # Without an end: a reader that does not give up hangs.
                while not self.server.stopped.wait(0.05):  # type: ignore[attr-defined]
                    self.wfile.write(b"a 1\n")
                    self.wfile.flush()
            except OSError:
                return
        else:
            self._answer(500, b"broken")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Exporter)
    server.stopped = threading.Event()  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.stopped.set()  # type: ignore[attr-defined]
    server.shutdown()
    thread.join()
    server.server_close()


def collector(*urls: str, live: bool = True) -> ScrapeCollector:
    def no_command(words: object, timeout_seconds: float) -> bytes:
        raise NoData("no command")

    settings = AgentSettings(scrape_urls=urls, scrape_timeout_seconds=2.0)
    return ScrapeCollector(Environment(FolderTree("/"), live, settings, no_command))


def test_known_names_become_columns_and_conditions_are_told_once(url: str) -> None:
    scrape = collector(f"{url}/metrics")
    first = list(scrape.collect(NOW_MS))
    gpu = next(row.values for row in first if row.table == "device_samples")
    assert gpu["ts"] == NOW_MS
    assert gpu["temp_c"] == 63.0
    assert [row.values["code"] for row in first if row.table == "events"] == ["xid:79"]
    up = next(row.values for row in first if row.values.get("chip") == "scrape")
    assert up["status"] == "up"
    second = list(scrape.collect(NOW_MS + 15_000))
    assert not [row for row in second if row.table in ("events", "inventory")]
    assert any(row.table == "device_samples" for row in second)


def test_one_broken_exporter_leaves_the_others_alone(url: str) -> None:
    rows = list(collector(f"{url}/metrics", f"{url}/broken").collect(NOW_MS))
    assert sorted(str(row.values["status"]) for row in rows if row.values.get("chip") == "scrape") == ["down", "up"]
    assert any(row.table == "device_samples" for row in rows)


def test_when_all_fail_the_call_fails(url: str) -> None:
    with pytest.raises(TransientError, match="500"):
        collector(f"{url}/broken").collect(NOW_MS)


def test_nothing_configured_or_recorded_is_no_data(url: str) -> None:
    with pytest.raises(NoData):
        collector().collect(NOW_MS)
    with pytest.raises(NoData):
        collector(f"{url}/metrics", live=False).collect(NOW_MS)


def test_redirects_are_not_followed(url: str) -> None:
    with pytest.raises(TransientError, match="302"):
        fetch(f"{url}/moved", 2.0)


def test_an_endless_answer_is_cut(url: str) -> None:
    with pytest.raises(TransientError, match=r"more than 16 MB|did not finish"):
        fetch(f"{url}/endless", 5.0)


def test_a_dripping_answer_ends_at_the_timeout(url: str) -> None:
    with pytest.raises(TransientError, match="did not finish"):
        fetch(f"{url}/slow", 0.3)


def test_an_absent_exporter_is_one_sentence() -> None:
    with pytest.raises(TransientError, match=r"127\.0\.0\.1:1 cannot be read"):
        fetch("http://127.0.0.1:1/metrics", 1.0)


@pytest.mark.parametrize(
    "bad", ["ftp://host/x", "http://", "http://user:secret@host/metrics", "file:///etc/passwd", "http://h:99999/"]
)
def test_only_plain_http_addresses(bad: str) -> None:
    with pytest.raises(ConfigError) as caught:
        fetch(bad, 1.0)
    assert "secret" not in str(caught.value)
