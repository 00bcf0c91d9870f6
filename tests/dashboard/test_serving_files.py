"""Static files kept compressed, and the console below a path prefix."""

from __future__ import annotations

import gzip

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from flightwatch.core.errors import ConfigError
from flightwatch.dashboard.serving import PathPrefix, StaticFiles, checked_prefix

SCRIPT = "x" * 5000


def client(prefix: str = "") -> tuple[TestClient, list[str]]:
    asked: list[str] = []

    def asset(request: object) -> Response:
        asked.append("asset")
        return Response(
            SCRIPT, media_type="application/javascript", headers={"Cache-Control": "no-store", "Vary": "Cookie"}
        )

    def where(request: object) -> Response:
        return PlainTextResponse(f"{request.scope['root_path']}|{request.url_for('asset').path}")  # type: ignore[attr-defined]

    routes = [Route("/assets/a.js", asset, name="asset"), Route("/where", where)]
    app = StaticFiles(Starlette(routes=routes))
    return TestClient(PathPrefix(app, prefix) if prefix else app), asked


def test_a_file_is_compressed_once_and_may_be_kept() -> None:
    browser, asked = client()
    for _ in range(3):
        answer = browser.get("/assets/a.js?m=17", headers={"Accept-Encoding": "gzip"})
        assert answer.text == SCRIPT
        assert answer.headers["content-encoding"] == "gzip"
        assert int(answer.headers["content-length"]) == len(gzip.compress(SCRIPT.encode(), 6))
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert answer.headers["vary"] == "accept-encoding"
    assert asked == ["asset"]


def test_who_does_not_take_gzip_gets_it_plain_and_an_address_without_a_version_is_kept_an_hour() -> None:
    browser, asked = client()
    answer = browser.get("/assets/a.js", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in answer.headers
    assert answer.headers["cache-control"] == "public, max-age=3600"
    assert asked == ["asset"]


def test_what_is_missing_is_not_kept() -> None:
    browser, _ = client()
    assert browser.get("/assets/none.js").status_code == 404
    assert "cache-control" not in browser.get("/where").headers


@pytest.mark.parametrize("path", ["/where", "/fw/where"])
def test_a_prefix_may_come_or_be_taken_off_by_the_proxy(path: str) -> None:
    browser, _ = client("/fw")
    assert browser.get(path).text == "/fw|/fw/assets/a.js"
    assert browser.get("/fw/assets/a.js").text == SCRIPT


@pytest.mark.parametrize("path", ["fw", "/a b", "//", "/x?y", "/<script>"])
def test_a_prefix_that_is_no_path_is_refused(path: str) -> None:
    if path == "//":
        assert checked_prefix("/") == ""
        return
    with pytest.raises(ConfigError, match=r"console\.base_path"):
        checked_prefix(path)
