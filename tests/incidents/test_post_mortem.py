from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from flightwatch.core.incident import Incident, IncidentState, Progress
from flightwatch.core.vocabulary import Severity
from flightwatch.incidents.post_mortem import FORMATS, Record, queries, report
from flightwatch.pipeline.control.action_model import Action
from flightwatch.pipeline.control.incident_rows import HistoryEntry, IncidentFinding, IncidentNote
from flightwatch.pipeline.store.client import Store, open_store
from flightwatch.pipeline.store.guard import check
from flightwatch.pipeline.store.settings import StoreSettings

AT = 1_764_460_800_000
ODD = "n1 <script>alert(1)</script> | `x` 'q'"
INCIDENT = Incident(
    id="i'1",
    revision=3,
    cluster="c",
    state=IncidentState.RESOLVED,
    severity=Severity.P2,
    kind="slow",
    scope="device",
    title=ODD,
    summary="It is slow.",
    opened_at_ms=AT,
    updated_at_ms=AT,
    evidence_at_ms=AT,
    closed_at_ms=AT + 3_600_000,
    node="n1",
    device=3,
    job="it's",
    progress=Progress.SLOWED,
)
FINDING = IncidentFinding(
    finding="f1",
    incident="i'1",
    detector="slow",
    detector_version="1",
    kind="slow",
    class_="compute",
    scope="device",
    cluster="c",
    node="n1",
    device=3,
    rank=5,
    hca=None,
    port=None,
    job="it's",
    run=None,
    targets=(ODD,),
    state="cleared",
    severity="P2",
    score=7.0,
    threshold=4.0,
    blames_hardware=True,
    confidence=0.9,
    expected_gain=0.1,
    summary=ODD,
    evidence={"sql": "SELECT count() FROM flightwatch.rank_steps"},
    first_seen_at_ms=AT,
    detected_at_ms=AT,
    stated_at_ms=AT,
    cleared_at_ms=AT + 1,
    parent=None,
    why="",
)
ACTION = Action(
    "a1",
    "i'1",
    3,
    "drain",
    "n1",
    "dry_run",
    "done",
    "rule:slow",
    "slow",
    AT,
    AT,
    outcome="dry run: would drain n1",
    cost={"loss_gpu_hours": 4800.0, "restart_gpu_hours": None},
)
RECORD = Record(
    INCIDENT,
    [FINDING],
    [HistoryEntry(1, "i'1", 1, AT, "engine", "opened", {})],
    [IncidentNote(1, "i'1", AT, "ann", ODD)],
    [ACTION],
    [],
)


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_says_what_was_found_done_and_lost(form: str) -> None:
    text = report(RECORD, form)
    for words in ("It is slow.", "dry run: would drain n1", "v_node_history", "ann", "2025-11-30T00:00:00.000Z"):
        assert words in text, (form, words)


def test_the_page_runs_nothing_that_a_title_holds() -> None:
    page = report(RECORD, "html")
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_a_title_breaks_no_table() -> None:
    lines = report(RECORD, "md").splitlines()
    row = next(line for line in lines if line.startswith("| 2025") and "slow" in line)
    assert row.replace("\\|", "").count("|") == 7
    assert not any("<script" in line for line in lines)


def test_what_is_unknown_is_said_so_and_never_zero() -> None:
    text = report(RECORD, "md")
    assert "| GPU-hours lost | unknown |" in text
    assert "restart unknown GPU-hours" in text
    document = json.loads(report(replace_incident(lost_gpu_hours=None), "json"))
    assert document["incident"]["lost_gpu_hours"] is None
    assert document["incident"]["closed_at"] == "2025-11-30T01:00:00.000Z"


def replace_incident(**values: Any) -> Record:
    return replace(RECORD, incident=replace(INCIDENT, **values))


def test_the_queries_pass_the_guard(post_mortem_store: Store) -> None:
    for _, sql in queries(RECORD):
        check(post_mortem_store, sql)


@pytest.fixture
def post_mortem_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    store = open_store(f"chdb://{tmp_path_factory.mktemp('store') / 'data'}", StoreSettings())
    yield store
    store.close()
