"""Devices, nodes, jobs, findings, profiles over HTTP, for everybody and for one tenant."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from flightwatch.pipeline.control.roles import Role
from flightwatch.pipeline.profiles.records import Profiles, RankNews
from flightwatch.pipeline.store.client import Store
from tests.dashboard.access_kit import Site
from tests.pipeline.store.blocks import insert

NOW_MS = int(time.time()) * 1000


@pytest.fixture(scope="module")
def full(site: Site, store: Store) -> Site:
    for number in range(4):
        job = "llm" if number < 2 else "vision"
        common = {"ts": NOW_MS, "cluster": "lab", "node": f"n{number}"}
        insert(store, "node_samples", common | {"cpu_pct": 12.5})
        for device in range(2):
            cells = {"device": device, "vendor": "nvidia", "job": job, "temp_c": 60.0, "link_rx_bytes_total": 2**60}
            insert(store, "device_samples", common | cells)
        insert(store, "inventory", common | {"rack": f"r{number // 2}", "serial": f"S{number}"})
        role = {"job": job, "run": "1", "rank": number % 2, "device": 0, "dp": number % 2}
        insert(store, "placements", common | role)
        insert(store, "rank_steps", common | {"job": job, "run": "1", "step": 7, "rank": number % 2, "step_us": 100.0})
    for job, tenant in (("llm", "red"), ("vision", "blue")):
        attrs = {"tenant": tenant, "owner": "alice"}
        cells = {"ts": NOW_MS, "cluster": "lab", "job": job, "run": "1", "phase": "train", "started_at": NOW_MS}
        insert(store, "runs", cells | {"attrs": attrs})
        for number in range(3):
            insert(store, "findings", finding(job, number))
    return site


def finding(job: str, number: int) -> dict[str, Any]:
    return {
        "ts": NOW_MS - number, "cluster": "lab", "node": "n0", "id": f"f-{job}-{number}", "detector": "slow",
        "kind": "slow", "scope": "device", "job": job, "severity": f"P{number + 2}", "state": "raised",
        "detected_at": NOW_MS, "score": 5.0, "summary": "It is slow.", "evidence": '{"peers": 3}', "targets": [],
    }  # fmt: skip


def get(site: Site, path: str, header: dict[str, str], **params: Any) -> Any:
    answer = site.client().get(f"/api/v1{path}", headers=header, params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


def paged(site: Site, path: str, header: dict[str, str], **params: Any) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    page = get(site, path, header, limit=3, **params)
    items += page["items"]
    while page["next_cursor"]:
        page = get(site, path, header, limit=3, cursor=page["next_cursor"], **params)
        items += page["items"]
    return items


def test_lists_come_in_pages_in_order(full: Site) -> None:
    header = full.token(Role.VIEWER)
    devices = paged(full, "/devices", header)
    assert [(one["node"], one["device"]) for one in devices] == [(f"n{n}", d) for n in range(4) for d in range(2)]
    assert devices[0]["link_rx_bytes_total"] == str(2**60)  # JavaScript would lose its digits
    assert devices[0]["ts"].endswith("Z")
    nodes = paged(full, "/nodes", header)
    assert [(one["node"], one["rack"], one["devices"]) for one in nodes] == [
        ("n0", "r0", 2), ("n1", "r0", 2), ("n2", "r1", 2), ("n3", "r1", 2),
    ]  # fmt: skip
    jobs = paged(full, "/jobs", header)
    assert [(one["job"], one["tenant"], one["ranks"], one["newest_step"]) for one in jobs] == [
        ("llm", "red", 2, 7), ("vision", "blue", 2, 7),
    ]  # fmt: skip
    findings = paged(full, "/findings", header)
    assert len({one["id"] for one in findings}) == 6
    assert [one["ts"] for one in findings] == sorted((one["ts"] for one in findings), reverse=True)
    assert findings[0]["evidence"] == {"peers": 3}


def test_filters(full: Site) -> None:
    header = full.token(Role.VIEWER)
    assert {one["node"] for one in get(full, "/devices", header, job="vision")["items"]} == {"n2", "n3"}
    assert [one["node"] for one in get(full, "/nodes", header, text="N3")["items"]] == ["n3"]
    assert {one["severity"] for one in get(full, "/findings", header, severity="P3")["items"]} == {"P3"}
    assert get(full, "/findings", header, until="2020-01-01T00:00:00Z")["items"] == []
    assert full.client().get("/api/v1/findings?kind=nonsense", headers=header).status_code == 422


def test_one_node_and_one_job(full: Site) -> None:
    header = full.token(Role.VIEWER)
    node = get(full, "/nodes/n1", header)
    assert (len(node["devices"]), node["inventory"][0]["serial"], node["host"][0]["cpu_pct"]) == (2, "S1", 12.5)
    assert {one["source"] for one in get(full, "/nodes/n0/history", header)["items"]} >= {"finding", "inventory"}
    job = get(full, "/jobs/llm", header)
    assert (job["tenant"], len(job["placements"]), job["steps"][0]["ranks"]) == ("red", 2, 2)
    assert [one["state"] for one in get(full, "/findings/f-llm-1", header)["items"]] == ["raised"]


def test_a_tenant_sees_its_jobs_and_the_nodes_they_run_on(full: Site) -> None:
    header = full.token(Role.OPERATOR, tenant="red")
    assert {one["node"] for one in get(full, "/devices", header)["items"]} == {"n0", "n1"}
    assert [one["node"] for one in get(full, "/nodes", header)["items"]] == ["n0", "n1"]
    assert [one["job"] for one in get(full, "/jobs", header)["items"]] == ["llm"]
    assert {one["job"] for one in get(full, "/findings", header)["items"]} == {"llm"}
    assert get(full, "/nodes/n0", header)["node"] == "n0"
    for path in ("/nodes/n2", "/jobs/vision", "/findings/f-vision-1"):
        assert full.client().get(f"/api/v1{path}", headers=header).status_code == 404


def test_profiles_are_asked_for_followed_and_fetched(full: Site, tmp_path: Path) -> None:
    red, blue = full.token(Role.OPERATOR, tenant="red"), full.token(Role.OPERATOR, tenant="blue")
    body = {"job": "llm", "ranks": [0, 1], "steps": 3, "reason": "slow"}
    client = full.client()
    made = client.post("/api/v1/profiles", headers=red, json=body)
    assert made.status_code == 201
    id_ = made.json()["id"]
    assert client.post("/api/v1/profiles", headers=blue, json=body).status_code == 403
    assert client.get(f"/api/v1/profiles/{id_}", headers=blue).status_code == 404
    assert get(full, "/profiles", blue)["items"] == []
    assert [one["id"] for one in get(full, "/profiles", red)["items"]] == [id_]
    too_many = client.post("/api/v1/profiles", headers=red, json=body | {"ranks": list(range(17))})
    assert (too_many.status_code, "1 to 16 are allowed" in too_many.text) == (422, True)
    trace = tmp_path / "rank0.json.gz"
    trace.write_bytes(b"\x1f\x8b trace")
    link = tmp_path / "rank1.json.gz"
    link.symlink_to("/etc/passwd")
    news = [RankNews(0, "done", artifact=str(trace)), RankNews(1, "done", artifact=str(link))]
    Profiles(full.control).tell(id_, news)
    fetched = client.get(f"/api/v1/profiles/{id_}/ranks/0/trace", headers=red)
    assert (fetched.status_code, fetched.content) == (200, b"\x1f\x8b trace")
    assert client.get(f"/api/v1/profiles/{id_}/ranks/1/trace", headers=red).status_code == 404
    assert client.get(f"/api/v1/profiles/{id_}/ranks/0/trace", headers=blue).status_code == 404
    assert str(tmp_path) not in client.get(f"/api/v1/profiles/{id_}", headers=red).text
    assert client.post(f"/api/v1/profiles/{id_}/stop", headers=red, json={}).status_code == 409  # it has ended


def test_status_and_ingest(full: Site) -> None:
    header = full.token(Role.VIEWER)
    assert get(full, "/status", header)["cluster"] == "lab"
    assert get(full, "/ingest", header)["lag_seconds"] == 0.0
