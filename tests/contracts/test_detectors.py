"""The contract every detector keeps: total, deterministic, blind to order, units and holes."""

from __future__ import annotations

import dataclasses
import re
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from flightwatch.core.catalogue import TABLES
from flightwatch.core.vocabulary import FindingKind, FindingScope, FindingState, Severity
from flightwatch.detectors.contract import Detector, Finding
from flightwatch.detectors.registry import DETECTORS, all_detectors
from flightwatch.simulator.cluster import Cluster, Job
from flightwatch.simulator.scenarios import START_MS, build
from flightwatch.simulator.timing import CHANNELS
from tests.contracts.detector_stage import JOB, SLOW_GPU, SPEAKING, speaking_frames, timing

DETECTOR_IDS = [detector.name for detector in all_detectors()]


def timing_frames(steps: int = 120) -> dict[str, pd.DataFrame]:
    return timing(JOB, SLOW_GPU, steps=steps)


@pytest.fixture(params=DETECTORS, ids=DETECTOR_IDS)
def detector(request: pytest.FixtureRequest) -> Detector:
    made = request.param()
    assert isinstance(made, Detector)
    return made


def key(finding: Finding) -> tuple[object, ...]:
    return (finding.kind, finding.class_, finding.scope, finding.node, finding.rank, finding.device, finding.targets,
            finding.detected_step, finding.detected_at, finding.state)  # fmt: skip


def keys(findings: list[Finding]) -> list[str]:
    return sorted(str(key(finding)) for finding in findings)


def test_names_are_unique_and_documented() -> None:
    names = [made.name for made in all_detectors()]
    assert len(set(names)) == len(names)
    pages = Path(__file__).parents[2] / "docs" / "detectors"
    for name in names:
        page = (pages / f"{name}.md").read_text(encoding="utf-8")
        for heading in ("## Idea", "## Formula", "## Defaults", "## Blind spots"):
            assert heading in page, f"docs/detectors/{name}.md lacks {heading}"


def test_documented_defaults_are_the_ones_in_force() -> None:
    pages = Path(__file__).parents[2] / "docs" / "detectors"
    for made in all_detectors():
        text = (pages / f"{made.name}.md").read_text(encoding="utf-8")
        documented = dict(re.findall(r"^\| `([a-z_.]+)` \| `(.*)` \|$", text, re.MULTILINE))
        thresholds = getattr(made, "thresholds", None)
        assert documented == (dict(flat(thresholds)) if thresholds is not None else {}), made.name


def flat(thresholds: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    for field in dataclasses.fields(thresholds):
        value = getattr(thresholds, field.name)
        if dataclasses.is_dataclass(value):
            yield from flat(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, str(value)


def test_needs_name_real_columns(detector: Detector) -> None:
    for table, columns in detector.needs.tables.items():
        known = set(TABLES[table].column_names)
        assert set(columns) - {"*"} <= known, f"{detector.name} reads unknown columns of {table}"


def test_no_rows_no_findings(detector: Detector) -> None:
    assert detector.score({}) == []
    empty = {name: pd.DataFrame(columns=list(TABLES[name].column_names)) for name in TABLES}
    assert detector.score(empty) == []


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_few_ranks_are_no_error_and_blame_nobody_healthy(detector: Detector, ranks: int) -> None:
    frames = timing(Job(dp=ranks, step_ms=500))
    assert not [one for one in detector.score(frames) if one.blames_hardware]


def test_every_detector_finds_something_in_the_rows_made_for_it(detector: Detector) -> None:
    assert detector.score(speaking_frames(detector.name))


def test_rows_made_for_another_detector_are_no_error(detector: Detector) -> None:
    for name in SPEAKING:
        for finding in detector.score(speaking_frames(name)):
            assert np.isfinite(finding.score)


def test_any_missing_column_is_no_error(detector: Detector) -> None:
    frames = speaking_frames(detector.name)
    for table in detector.needs.tables:
        if table not in frames:
            continue
        for column in frames[table].columns:
            detector.score({**frames, table: frames[table].drop(columns=column)})


def test_all_null_columns_are_no_error(detector: Detector) -> None:
    frames = dict(speaking_frames(detector.name))
    for table, rows in frames.items():
        blank = rows.copy()
        for column in blank.columns:
            if blank[column].dtype.kind == "f" and column not in ("step", "rank", "ts"):
                blank[column] = np.nan
        frames[table] = blank
    blamed = [one for one in detector.score(frames) if one.blames_hardware]
    # A dead node is told by rows that are absent, an error of a driver by its code: no number is needed.
    wordless = {
        "dead_node": [FindingKind.DEAD_NODE], "device_errors": [FindingKind.ECC], "crash": [FindingKind.CRASH],
    }  # fmt: skip
    assert [one.kind for one in blamed] == wordless.get(detector.name, [])


def test_row_order_and_repetition_change_nothing(detector: Detector) -> None:
    frames = speaking_frames(detector.name)
    first = keys(detector.score(frames))
    shuffled = {name: rows.sample(frac=1.0, random_state=7) for name, rows in frames.items()}
    assert keys(detector.score(shuffled)) == first
    doubled = {name: pd.concat([rows, rows.iloc[::9]], ignore_index=True) for name, rows in frames.items()}
    assert keys(detector.score(doubled)) == first


def test_scoring_twice_gives_the_same_ids(detector: Detector) -> None:
    frames = speaking_frames(detector.name)
    assert [one.id for one in detector.score(frames)] == [one.id for one in detector.score(frames)]


def test_findings_have_the_shape_of_their_table(detector: Detector) -> None:
    for finding in detector.score(speaking_frames(detector.name)):
        row = finding.to_row()
        assert list(row) == list(TABLES["findings"].column_names)
        assert finding.kind in FindingKind
        assert finding.scope in FindingScope
        assert finding.state in FindingState
        assert finding.severity in Severity
        assert np.isfinite(finding.score)
        assert finding.summary.endswith(".")
        assert finding.detected_at is not None
        assert '"id": ' in finding.to_json()


def slow_only(frames: dict[str, pd.DataFrame]) -> list[Finding]:
    return [one for made in all_detectors() for one in made.score(frames) if one.kind == FindingKind.SLOW]


def test_units_of_time_do_not_matter() -> None:
    frames = timing_frames()
    scaled = frames["rank_steps"].copy()
    for column in scaled.columns:
        if column in CHANNELS or column.startswith("comm_by_axis_us"):
            scaled[column] = scaled[column] * 1024.0
    found = [(one.class_, one.targets, one.detected_step, one.expected_gain) for one in slow_only(frames)]
    again = slow_only({**frames, "rank_steps": scaled})
    assert [(one.class_, one.targets, one.detected_step, one.expected_gain) for one in again] == found != []


def test_renamed_ranks_rename_the_finding() -> None:
    frames = timing_frames()
    before = slow_only(frames)[0]
    renamed = {}
    for table in ("rank_steps", "placements"):
        rows = frames[table].copy()
        rows["rank"] = rows["rank"] * 3 + 100
        renamed[table] = rows
    after = slow_only({**frames, **renamed})[0]
    assert before.rank is not None
    assert (after.rank, after.node, after.device) == (before.rank * 3 + 100, before.node, before.device)


def test_ragged_runs_with_lost_rows_and_late_ranks_still_name_the_rank() -> None:
    frames = timing_frames(steps=150)
    rows = frames["rank_steps"]
    lost = np.random.default_rng(1).random(len(rows)) < 0.03
    late = (rows["rank"] == 17) & (rows["step"] < 90)
    gone = (rows["rank"] == 20) & (rows["step"] > 100)
    found = slow_only({**frames, "rank_steps": rows[~(lost | late | gone)]})
    assert {one.rank for one in found} == {11}


def test_clocks_that_differ_between_nodes_change_nothing() -> None:
    frames = timing_frames()
    rows = frames["rank_steps"].copy()
    rows.loc[rows["node"] == "n0002", "ts"] += 2000.0
    before = [(one.rank, one.detected_step) for one in slow_only(frames)]
    assert [(one.rank, one.detected_step) for one in slow_only({**frames, "rank_steps": rows})] == before


def test_memory_stays_in_proportion_to_the_rows() -> None:
    frames = build("test", Cluster(nodes=32), Job(tp=4, pp=2, dp=32), [], 1, 200).frames
    rows = frames["rank_steps"]
    tracemalloc.start()
    try:
        for made in all_detectors():
            made.score(frames)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 600 * len(rows)


def test_start_of_the_simulation_is_inside_the_findings_times() -> None:
    found = slow_only(timing_frames())
    assert found
    assert all(one.detected_at is not None and one.detected_at > START_MS for one in found)
