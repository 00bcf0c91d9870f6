"""`flightwatch backtest --set` and `--compare`: other thresholds, and several sets of them side by side."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from flightwatch.core.errors import ConfigError
from flightwatch.core.vocabulary import FindingState
from flightwatch.detectors.contract import Detector, Finding, Frames
from flightwatch.detectors.tuning import parse_override, tuned
from flightwatch.pipeline.detection.run import run_detectors
from flightwatch.pipeline.detection.truth import Truth, grade

_COLUMNS = ("version", "findings", "hardware", "P1", "P2", "P3", "P4", "info", "only_here", "precision", "recall", "f1",
            "detect_seconds")  # fmt: skip


@dataclass(frozen=True)
class Version:
    """A name and the detectors with its thresholds."""

    name: str
    detectors: list[Detector]


def with_thresholds(detectors: Sequence[Detector], texts: Iterable[str]) -> list[Detector]:
    """Return the detectors with thresholds changed as `DETECTOR.NAME=NUMBER` says.

    Raises
    ------
    ConfigError: written in another way, no such detector among those chosen, no such threshold.
    """
    overrides: dict[str, dict[str, float]] = {}
    for text in texts:
        detector, name, value = parse_override(text)
        overrides.setdefault(detector, {})[name] = value
    known = {one.name for one in detectors}
    for name in overrides:
        if name not in known:
            raise ConfigError(f"--set {name}: there is no such detector here; known: {', '.join(sorted(known))}")
    return [tuned(one, overrides.get(one.name, {})) for one in detectors]


def versions_of(detectors: Sequence[Detector], texts: Sequence[str]) -> list[Version]:
    """Read `NAME=DETECTOR.NAME=NUMBER[,...]`; the thresholds without changes come first, as "now".

    Raises
    ------
    ConfigError: written in another way, or two versions have one name.
    """
    versions = [Version("now", list(detectors))]
    for text in texts:
        name, equals, rest = text.partition("=")
        if not equals or not rest or "." in name or any(name == one.name for one in versions):
            raise ConfigError(f"--compare {text}: write NAME=DETECTOR.THRESHOLD=NUMBER,... with a name of its own")
        versions.append(Version(name, with_thresholds(detectors, rest.split(","))))
    return versions


def compared(
    versions: Sequence[Version], frames: Frames, truths: Sequence[Truth] | None
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Run every version over the same frames; return one row per version, and what failed.

    A row counts findings by severity, those that blame hardware, those that no other version states, and where a truth
    is given precision, recall, F1 and the median time from the begin of the evidence to the statement.
    """
    stated: dict[str, dict[str, Finding]] = {}
    failures: dict[str, str] = {}
    for version in versions:
        outcome = run_detectors(version.detectors, frames)
        failures |= {f"{version.name}: {name}": why for name, why in outcome.failures.items()}
        first: dict[str, Finding] = {}
        for finding in outcome.findings:
            if finding.state != FindingState.CLEARED:
                first.setdefault(finding.id, finding)
        stated[version.name] = first
    rows = []
    for version in versions:
        others = set().union(*(found for name, found in stated.items() if name != version.name))
        rows.append(_row(version.name, stated[version.name], others, truths))
    return rows, failures


def _row(
    name: str, found: dict[str, Finding], others: set[str], truths: Sequence[Truth] | None
) -> dict[str, Any]:  # fmt: skip
    severities = Counter(one.severity.value for one in found.values())
    waits = [
        (one.detected_at - one.first_seen_at) / 1000
        for one in found.values()
        if one.detected_at is not None and one.first_seen_at is not None
    ]
    graded = grade(list(found.values()), truths) if truths is not None else {}
    return {
        "version": name,
        "findings": len(found),
        "hardware": sum(one.blames_hardware for one in found.values()),
        **{word: severities.get(word, 0) for word in ("P1", "P2", "P3", "P4", "info")},
        "only_here": len(set(found) - others),
        **{word: graded.get(word) for word in ("precision", "recall", "f1")},
        "detect_seconds": round(median(waits), 1) if waits else None,
    }


def rendered(rows: Sequence[dict[str, Any]], form: str) -> list[str]:
    """Return the lines to print: a table, or one JSON object a line."""
    if form == "json":
        return [json.dumps(row, ensure_ascii=False) for row in rows]
    cells = [_COLUMNS, *[tuple("-" if row[name] is None else str(row[name]) for name in _COLUMNS) for row in rows]]
    widths = [max(len(row[at]) for row in cells) for at in range(len(_COLUMNS))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
