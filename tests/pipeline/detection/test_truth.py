"""What is known to have happened, read from a file and compared with findings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from flightwatch.core.errors import BadRecord, ConfigError
from flightwatch.core.vocabulary import FindingKind, FindingScope, FindingState, Severity
from flightwatch.detectors.contract import Finding
from flightwatch.pipeline.detection.truth import Truth, grade, read_truth

SLOW = Finding(
    "slow", "1", FindingKind.SLOW, FindingScope.RANK, "Slow.", 9.0, Severity.P3, 1_760_000_100_000, node="n1", rank=11,
    device=3, job="j", targets=("rank 11 (n1 device 3)",), detected_step=70,
)  # fmt: skip
HOT = Finding(
    "overheat", "1", FindingKind.OVERHEAT, FindingScope.DEVICE, "Hot.", 9.0, Severity.P3, 1_760_000_100_000, node="n2",
    device=0,
)  # fmt: skip


def written(folder: Path, text: str) -> Path:
    path = folder / "truth.csv"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("target", ["n1", "11", "rank 11", "n1/3", "n1 device 3", "rank 11 (n1 device 3)", "j"])
def test_a_target_may_be_named_in_each_of_its_ways(target: str) -> None:
    assert Truth(FindingKind.SLOW, None, target, 60, None).is_told_by(SLOW)
    assert not Truth(FindingKind.SLOW, None, "1", 60, None).is_told_by(SLOW)


def test_other_scopes_and_what_was_said_too_early_do_not_count() -> None:
    assert not Truth(FindingKind.SLOW, FindingScope.NODE, "n1", None, None).is_told_by(SLOW)
    assert not Truth(FindingKind.SLOW, None, "n1", 71, None).is_told_by(SLOW)
    assert not Truth(FindingKind.SLOW, None, "n1", None, 1_760_000_100_001).is_told_by(SLOW)
    assert Truth(FindingKind.SLOW, None, "n1", None, 1_760_000_100_000).is_told_by(SLOW)


def test_counts_and_shares(tmp_path: Path) -> None:
    path = written(tmp_path, "kind,scope,target,first_step\nslow,rank,11,60\nslow,,n7,5\n")
    elsewhere = replace(SLOW, node="n3", rank=25, device=1, targets=("rank 25",), id="")
    cleared = replace(SLOW, state=FindingState.CLEARED)
    got = grade([SLOW, elsewhere, HOT, cleared], read_truth(path))
    assert (got["truths"], got["findings"], got["right"], got["false"], got["missed"], got["not_graded"]) == (
        2, 2, 1, 1, 1, 1,
    )  # fmt: skip
    assert (got["precision"], got["recall"], got["f1"]) == (0.5, 0.5, 0.5)
    assert got["missed_targets"] == ["slow n7"]


def test_a_clean_recording_is_graded_by_a_truth_without_rows(tmp_path: Path) -> None:
    truths = read_truth(written(tmp_path, "kind,target\n"))
    assert grade([], truths)["precision"] is None
    told = grade([HOT, replace(SLOW, severity=Severity.INFO)], truths)
    assert (told["false"], told["precision"], told["recall"], told["not_graded"]) == (1, 0.0, None, 1)


def test_times_may_be_text(tmp_path: Path) -> None:
    (truth,) = read_truth(written(tmp_path, "target,first_ts,kind\nn2/0,2025-10-09T08:55:00Z,overheat\n"))
    assert (truth.first_ts, truth.target, truth.scope) == (1_760_000_100_000, "n2/0", None)
    assert truth.is_told_by(HOT)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "scope,target\n",
        "kind,target\nslowly,n1\n",
        "kind,target\nslow,\n",
        "kind,target,scope\nslow,n1,planet\n",
        "kind,target,first_step\nslow,n1,soon\n",
        "kind,target,first_ts\nslow,n1,yesterday\n",
    ],
)
def test_what_cannot_be_read_is_said_with_its_place(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadRecord, match=r"truth\.csv"):
        read_truth(written(tmp_path, text))
    with pytest.raises(ConfigError, match="cannot read"):
        read_truth(tmp_path / "absent.csv")
