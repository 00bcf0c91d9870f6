"""The API fuzzed from its own OpenAPI document: whatever is sent, nothing fails on our side."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, seed, settings
from schemathesis.generation import GenerationMode

from flightwatch.pipeline.control.roles import Role
from tests.dashboard.access_kit import Site
from tests.pipeline.control.incident_kit import add_incident

EXAMPLES = 16
#: Values that trip programs: numbers at the edge, texts that databases and JSON dislike.
ODD: list[Any] = [
    None, True, -1, 0, 2**31, 2**63, 2**64, 1e308, "", " ", "\x00", "\ud800", "a" * 20_000, "' OR 1=1 --",
    "../../etc/passwd",
    "%00", "\u202e", [], {}, [[]], {"a": {"b": {"c": []}}}, "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999+14:00",
    "2026-02-30T00:00:00Z", "NaN", "\n", ["x"] * 1_000,
]  # fmt: skip


@pytest.fixture(scope="module")
def schema(site: Site) -> Any:
    add_incident(site.control, "i1", 1_795_990_000_000)
    document = site.api.openapi()
    # Requests that start something outside of a test: none does.
    loaded = schemathesis.openapi.from_dict(document | {"servers": [{"url": "/api/v1"}]})
    loaded.config.generation.update(modes=[GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
    return loaded


def send(client: TestClient, case: Any, header: dict[str, str]) -> int:
    """Send a generated case; what HTTP itself cannot carry is not sent."""
    sent = case.as_transport_kwargs(base_url="http://127.0.0.1/api/v1")
    headers = {**dict(sent.get("headers") or {}), **header}
    body: dict[str, Any] = {}
    if sent.get("json") is not None:
        body["content"] = json.dumps(sent["json"])
        headers["Content-Type"] = "application/json"
    elif isinstance(sent.get("data"), (bytes, str)):
        body["content"] = sent["data"]
    try:
        request = client.build_request(sent["method"], sent["url"], params=sent.get("params"), headers=headers, **body)
    except (UnicodeError, ValueError, TypeError):
        return 0
    return client.send(request).status_code


def test_whatever_fits_or_breaks_the_document_is_answered(site: Site, schema: Any) -> None:
    client, header = site.client(), site.token(Role.ADMIN)
    failed: list[str] = []
    statuses: Counter[int] = Counter()
    for operation in (result.ok() for result in schema.get_all_operations()):

        @seed(20261129)
        @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy())
        def answered(case: Any) -> None:
            status = send(client, case, header)
            statuses[status] += 1
            if status >= 500:
                failed.append(f"{case.method} {case.path} {case.query} {case.body!r}: {status}")

        answered()
    assert failed == []
    # It got past the validation, and was stopped by it.
    assert statuses[200] + statuses[201] + statuses[404] > 50
    assert statuses[422] > 40


def test_odd_values_in_every_field_are_answered(site: Site) -> None:
    """A thousand requests, chosen by a seed."""
    client, header, chance = site.client(), site.token(Role.ADMIN), random.Random(7)
    document = site.api.openapi()
    jobs = [
        (method, path, one, value)
        for path, methods in document["paths"].items()
        for method, one in methods.items()
        for value in ODD
    ]
    chance.shuffle(jobs)
    for method, path, one, value in jobs[:1_000]:
        params = {entry["name"]: _text(value) for entry in one.get("parameters", []) if entry["in"] == "query"}
        place = path.replace("{id}", chance.choice(["i1", "x", "%2e%2e", "a%00b", "é", "x" * 300])).replace(
            "{rank}", "1"
        )
        content = json.dumps(_filled(document, one, value)) if method != "get" else None
        headers = header | ({"Content-Type": "application/json"} if content is not None else {})
        status = client.request(method, f"/api/v1{place}", params=params, content=content, headers=headers).status_code
        assert status < 500, f"{method} {path} {value!r}"


def _text(value: Any) -> str:
    return (value if isinstance(value, str) else json.dumps(value)).encode("utf-8", "replace").decode()[:400]


def _filled(document: dict[str, Any], one: dict[str, Any], value: Any) -> Any:
    """Return a body in which every field has an odd value."""
    content = one.get("requestBody", {}).get("content", {}).get("application/json", {})
    name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
    fields = document["components"]["schemas"].get(name, {}).get("properties", {})
    return dict.fromkeys(fields, value)


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{", "application/json", 400), (b"\xff", "application/json", 400), (b"", "application/json", 422),
        (b'{"note": "a"}', "text/plain", 422), (b"[" * 100_000, "application/json", 400),
        (b'{"note": "' + b"a" * 1_100_000 + b'"}', "application/json", 413), (b"null", "application/json", 422),
        (b'{"note": "\\ud800"}', "application/json", 422), (b'{"note": "a\\u0000b"}', "application/json", 422),
        (b'{"revision": 1e400}', "application/json", 422), (b'{"revision": NaN}', "application/json", 422),
    ],
)  # fmt: skip
def test_malformed_and_oversized_bodies_have_the_one_error_shape(
    site: Site, content: bytes, kind: str, status: int
) -> None:
    headers = site.token(Role.OPERATOR) | {"Content-Type": kind}
    answer = site.client().post("/api/v1/incidents/x/acknowledge", content=content, headers=headers)
    assert set(answer.json()["error"]) == {"code", "message", "where"}
    assert answer.status_code == status


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nothing", 404), ("PATCH", "/incidents", 405)])
def test_wrong_places_and_methods_have_the_one_error_shape(site: Site, method: str, path: str, status: int) -> None:
    answer = site.client().request(method, f"/api/v1{path}", headers=site.token(Role.VIEWER))
    assert (answer.status_code, set(answer.json()["error"])) == (status, {"code", "message", "where"})
