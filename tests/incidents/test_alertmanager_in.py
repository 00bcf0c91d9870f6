"""Alertmanager's webhook in: places, severities, beginnings and ends."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flightwatch.core.errors import BadRecord
from flightwatch.core.vocabulary import FindingKind, FindingScope, FindingState, Severity
from flightwatch.incidents.alertmanager_in import findings_of

NOW_MS = 1_796_000_000_000


def request(*alerts: dict[str, Any]) -> dict[str, Any]:
    return {"version": "4", "groupKey": "{}", "status": "firing", "receiver": "flightwatch", "alerts": list(alerts)}


def firing(**labels: str) -> dict[str, Any]:
    return {
        "status": "firing", "labels": {"alertname": "GpuHot", "severity": "warning"} | labels,
        "annotations": {"summary": "GPU is hot"}, "startsAt": "2026-11-30T00:00:00Z",
        "endsAt": "0001-01-01T00:00:00Z", "generatorURL": "http://p/", "fingerprint": "abc",
    }  # fmt: skip


def test_a_firing_alert_is_a_finding() -> None:
    [one] = findings_of(request(firing(instance="gpu-0007:9400", gpu="3", job="dcgm")), "blue", NOW_MS)
    assert (one.node, one.device, one.scope, one.severity) == ("gpu-0007", 3, FindingScope.DEVICE, Severity.P3)
    assert (one.kind, one.state, one.cluster) == (FindingKind.ANOMALY, FindingState.RAISED, "blue")
    assert one.summary == "GpuHot: GPU is hot"
    # Prometheus' own label `job` names a scrape, not a training job.
    assert one.job is None
    assert not one.blames_hardware


def test_the_end_has_the_id_of_the_beginning() -> None:
    [begun] = findings_of(request(firing(node="n1")), "blue", NOW_MS)
    [over] = findings_of(
        request(firing(node="n1") | {"status": "resolved", "endsAt": "2026-12-02T00:00:00Z"}), "blue", NOW_MS
    )
    assert over.id == begun.id
    assert over.state is FindingState.CLEARED


def test_labels_decide() -> None:
    [one] = findings_of(
        request(firing(rack="R1", severity="critical", flightwatch_kind="cooling", cluster="red", job_name="llm")),
        "blue", NOW_MS,
    )  # fmt: skip
    assert (one.scope, one.targets, one.severity) == (FindingScope.RACK, ("R1",), Severity.P2)
    assert (one.kind, one.cluster, one.job) == (FindingKind.COOLING, "red", "llm")


@pytest.mark.parametrize(
    "body",
    [None, [], {}, {"alerts": {}}, {"alerts": ["x"]}, {"alerts": [{"labels": {}}]}, {"alerts": [{"labels": "x"}]},
     {"alerts": [{"labels": {"alertname": "a"}, "startsAt": "yesterday"}]}, {"version": "3", "alerts": []},
     {"alerts": [{}] * 5000}],
)  # fmt: skip
def test_other_requests_are_refused(body: Any) -> None:
    with pytest.raises(BadRecord):
        findings_of(body, "blue", NOW_MS)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["labels", "annotations", "startsAt", "endsAt", "status", "fingerprint"]), JSON))
def test_whatever_comes_it_is_a_finding_or_refused(alert: dict[str, Any]) -> None:
    try:
        findings_of({"alerts": [alert]}, "blue", NOW_MS)
    except BadRecord:
        return
