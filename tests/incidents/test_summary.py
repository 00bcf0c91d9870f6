from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pandas as pd
import pytest

from flightwatch.cli import main
from flightwatch.core.vocabulary import FindingKind as Kind
from flightwatch.core.vocabulary import FindingScope, Severity
from flightwatch.detectors.contract import Finding
from flightwatch.incidents.grouping import incident_id
from flightwatch.incidents.summary import summarise
from tests.incidents.engine_kit import cleared
from tests.incidents.grouping_kit import MINUTE, T0, finding

HOUR = 60 * MINUTE


def frames() -> dict[str, pd.DataFrame]:
    nodes = [f"n{number}" for number in range(16)]
    return {
        "inventory": pd.DataFrame(
            [{"ts": 1.0, "node": node, "rack": "r0", "cooling_zone": "z0", "device": float(d)}
             for node in nodes for d in range(4)]
        ),
        "placements": pd.DataFrame(
            [{"job": "llm", "run": "a", "node": node, "rank": float(4 * n + d)}
             for n, node in enumerate(nodes) for d in range(4)]
        ),
    }  # fmt: skip


def anonymous(one: Finding) -> Finding:
    return dataclasses.replace(one, cluster=None)


def test_incidents_of_a_recording_with_root_consequences_and_loss() -> None:
    zone = finding(Kind.COOLING, at_ms=T0, scope=FindingScope.COOLING_ZONE, targets=("z0",), severity=Severity.P2)
    slow = finding(Kind.SLOW, "n3", 1, T0 + MINUTE, class_="compute", job="llm", expected_gain=0.25)
    other = finding(Kind.ECC, "n9", 2, T0 + 5 * HOUR)
    statements = [slow, zone, cleared(zone, T0 + HOUR), cleared(slow, T0 + HOUR), other]
    first, second = summarise(statements, frames())
    assert (first.id, first.opened_at_ms, first.closed_at_ms) == (incident_id("lab", zone.id), T0, T0 + HOUR)
    assert (first.columns["kind"], first.columns["severity"]) == ("cooling", "P2")
    assert [(one["finding"], one["why"]) for one in first.consequences] == [(slow.id, "its rack or zone warms")]
    # 64 ranks of which a quarter of the time is lost, for an hour.
    assert first.lost_gpu_hours == pytest.approx(16.0)
    assert (second.columns["kind"], second.closed_at_ms) == ("ecc", None)
    document = json.loads(json.dumps(first.as_json()))
    assert (document["root"], document["findings"]) == (zone.id, [zone.id, slow.id])
    assert document["closed_at"] == "2025-11-29T08:10:00.000Z"
    assert first.as_text().startswith("P2 cooling zone z0: cooling fails")


def test_flapping_is_one_incident_and_a_later_day_is_another() -> None:
    statements = []
    for at in (T0, T0 + 20 * MINUTE, T0 + 5 * HOUR):
        one = finding(Kind.THROTTLE, "n1", 0, at, aspect=str(at))
        statements += [one, cleared(one, at + MINUTE)]
    assert [len(one.findings) for one in summarise(statements, {})] == [2, 1]


def test_information_alone_is_no_incident() -> None:
    assert summarise([finding(Kind.IMBALANCE, at_ms=T0, job="llm", severity=Severity.INFO)], {}) == []


def test_the_command_prints_incidents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "events.csv"
    lines = ["ts,cluster,node,device,source,code,severity,message"]
    lines += [f"{T0},lab,n1,3,kernel,xid:79,critical,gone", f"{T0 + 1000},lab,n1,3,kernel,xid:154,error,reset"]
    path.write_text("\n".join(lines) + "\n")
    words = ["backtest", "--table", f"events={path}", "--summary"]
    assert main([*words, "--format", "json"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    incident = json.loads(line)
    assert (incident["kind"], incident["node"], incident["device"]) == ("device_error", "n1", 3)
    assert main(words) == 0
    assert "n1 device 3: device error" in capsys.readouterr().out
    assert main([*words, "--explain", "x"]) == 2
