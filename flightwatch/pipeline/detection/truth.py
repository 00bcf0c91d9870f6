"""What is known to have happened, from a file, and how findings compare with it."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flightwatch.core.clock import parse_iso_utc
from flightwatch.core.errors import BadRecord, ConfigError
from flightwatch.core.vocabulary import FindingKind, FindingScope, FindingState, Severity
from flightwatch.detectors.contract import Finding


@dataclass(frozen=True)
class Truth:
    """One thing that was wrong: what, about which target, since when (step, milliseconds, or unknown)."""

    kind: FindingKind
    scope: FindingScope | None
    target: str
    first_step: int | None
    first_ts: int | None

    def is_told_by(self, finding: Finding) -> bool:
        """Say whether a finding is about this: kind, scope and target are the same, and it was not said before."""
        if finding.kind != self.kind or self.scope not in (None, finding.scope) or self.target not in _names(finding):
            return False
        if self.first_step is not None and finding.detected_step is not None:
            return finding.detected_step >= self.first_step
        if self.first_ts is not None and finding.detected_at is not None:
            return finding.detected_at >= self.first_ts
        return True


def read_truth(path: Path) -> list[Truth]:
    """Read a CSV with the columns kind, target and, where known, scope, first_step, first_ts.

    Raises
    ------
    ConfigError: the file cannot be opened. BadRecord: a column is missing, or a cell says nothing known.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream)
            missing = [name for name in ("kind", "target") if name not in (reader.fieldnames or ())]
            if missing:
                raise BadRecord(f"needs the column {' and '.join(missing)}", str(path))
            return [_truth(row, f"{path}:{reader.line_num}") for row in reader]
    except OSError as error:
        raise ConfigError(f"--truth {path}: cannot read the file: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadRecord(f"is no readable CSV: {error}", str(path)) from error


def grade(findings: Sequence[Finding], truths: Sequence[Truth]) -> dict[str, Any]:
    """Compare findings with the truth.

    Each finding counts once, by its first statement. Graded are findings of the kinds that the truth names; without
    any truth all but those of severity info, so that a clean recording can be graded too. Several findings may tell
    one truth.

    Returns
    -------
    counts, precision, recall and f1 (None where nothing can be divided), and the targets missed.
    """
    kinds = {truth.kind for truth in truths}
    first: dict[str, Finding] = {}
    for finding in findings:
        if finding.state != FindingState.CLEARED:
            first.setdefault(finding.id, finding)
    graded = [one for one in first.values() if (one.kind in kinds if truths else one.severity != Severity.INFO)]
    right = [one for one in graded if any(truth.is_told_by(one) for truth in truths)]
    missed = [truth for truth in truths if not any(truth.is_told_by(one) for one in graded)]
    precision = len(right) / len(graded) if graded else None
    recall = (len(truths) - len(missed)) / len(truths) if truths else None
    f1 = None
    if precision is not None and recall is not None:
        f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return {
        "truths": len(truths),
        "findings": len(graded),
        "right": len(right),
        "false": len(graded) - len(right),
        "missed": len(missed),
        "not_graded": len(first) - len(graded),
        "precision": _rounded(precision),
        "recall": _rounded(recall),
        "f1": _rounded(f1),
        "missed_targets": [f"{truth.kind.value} {truth.target}" for truth in missed[:32]],
    }


def _names(finding: Finding) -> set[str]:
    """Return every way in which a truth file may name a finding's target."""
    names = {text for text in (finding.node, finding.job) if text is not None}
    if finding.rank is not None:
        names |= {str(finding.rank), f"rank {finding.rank}"}
    if finding.node is not None and finding.device is not None:
        names |= {f"{finding.node}/{finding.device}", f"{finding.node} device {finding.device}"}
    if finding.node is not None and finding.hca is not None:
        names |= {f"{finding.node}/{finding.hca}", f"{finding.node}/{finding.hca}/{finding.port}"}
    # "rank 11 (n0001 device 3)" is rank 11.
    return names | set(finding.targets) | {target.split(" (")[0] for target in finding.targets}


def _truth(row: dict[str | None, Any], where: str) -> Truth:
    cells = {name: (row.get(name) or "").strip() for name in ("kind", "scope", "target", "first_step", "first_ts")}
    if not cells["target"]:
        raise BadRecord("target is empty", where)
    if cells["kind"] not in list(FindingKind):
        raise BadRecord(f"there is no kind {cells['kind']!r}", where)
    if cells["scope"] and cells["scope"] not in list(FindingScope):
        raise BadRecord(f"there is no scope {cells['scope']!r}", where)
    try:
        step = int(float(cells["first_step"])) if cells["first_step"] else None
        ts = parse_iso_utc(cells["first_ts"]) if cells["first_ts"] else None
    except (ValueError, OverflowError) as error:
        raise BadRecord("first_step is no number, or first_ts neither ISO-8601 nor milliseconds", where) from error
    scope = FindingScope(cells["scope"]) if cells["scope"] else None
    return Truth(FindingKind(cells["kind"]), scope, cells["target"], step, ts)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
