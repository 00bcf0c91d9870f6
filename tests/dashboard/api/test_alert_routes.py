"""Alertmanager's webhook on its way in."""

from __future__ import annotations

from typing import Any

from flightwatch.core.vocabulary import FindingState
from flightwatch.pipeline.control.roles import Role
from tests.dashboard.access_kit import Site

ALERT: dict[str, Any] = {
    "status": "firing", "labels": {"alertname": "GpuHot", "node": "n1", "gpu": "3", "severity": "critical"},
    "annotations": {"summary": "GPU 3 of n1 has 95 C"}, "startsAt": "2026-11-29T19:10:13.000Z",
    "endsAt": "0001-01-01T00:00:00Z", "fingerprint": "c1",
}  # fmt: skip


def post(site: Site, header: dict[str, str], body: Any) -> int:
    return site.client().post("/api/v1/alerts/alertmanager", headers=header, json=body).status_code


def test_alerts_become_findings(site: Site) -> None:
    header = site.token(Role.OPERATOR, "alerts", name="alertmanager")
    site.published.clear()
    assert post(site, header, {"version": "4", "receiver": "fw", "alerts": [ALERT]}) == 202
    assert post(site, header, {"version": "4", "alerts": [ALERT | {"status": "resolved"}]}) == 202
    raised, cleared = site.published
    assert (raised.node, raised.device, raised.cluster) == ("n1", 3, "lab")
    assert (raised.state, cleared.state) == (FindingState.RAISED, FindingState.CLEARED)
    assert ("token:alertmanager", "alerts.take", True) in site.audit()


def test_what_is_no_alert_is_refused_whole(site: Site) -> None:
    header = site.token(Role.OPERATOR, "alerts")
    site.published.clear()
    odd: list[Any] = [
        {}, {"alerts": {}}, {"alerts": [{}]}, {"alerts": [ALERT, {"labels": 1}]}, {"version": "9", "alerts": []},
        {"alerts": [ALERT | {"startsAt": "soon"}]},
    ]  # fmt: skip
    for body in odd:
        assert post(site, header, body) == 422
    assert site.published == []


def test_one_tenants_token_sends_no_alerts(site: Site) -> None:
    assert post(site, site.token(Role.OPERATOR, "alerts", tenant="red"), {"alerts": [ALERT]}) == 403
