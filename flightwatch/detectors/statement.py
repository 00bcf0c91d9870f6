"""How telemetry detectors turn spells into findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from flightwatch.core.vocabulary import FindingKind, FindingScope, FindingState, Severity
from flightwatch.detectors.contract import Finding
from flightwatch.detectors.series import Grid, Spell


@dataclass(frozen=True)
class About:
    """What one statement says, beyond when: everything a finding needs that the spell does not know."""

    kind: FindingKind
    scope: FindingScope
    summary: str
    score: float
    severity: Severity = Severity.P3
    class_: str | None = None
    node: str | None = None
    device: int | None = None
    hca: str | None = None
    port: int | None = None
    targets: tuple[str, ...] = ()
    threshold: float | None = None
    blames_hardware: bool = True
    confidence: float = 0.9
    evidence: Mapping[str, Any] | None = None
    aspect: str = ""


def state_findings(detector: str, version: str, grid: Grid, spell: Spell, about: About) -> list[Finding]:
    """Return the raised finding of one spell and, where it ended, the cleared one."""
    raised = Finding(
        detector=detector,
        detector_version=version,
        kind=about.kind,
        class_=about.class_,
        scope=about.scope,
        summary=about.summary,
        score=round(float(about.score), 3),
        threshold=about.threshold,
        severity=about.severity,
        detected_at=int(grid.times_T[spell.said]),
        first_seen_at=int(grid.times_T[spell.begin]),
        cluster=grid.cluster,
        node=about.node,
        device=about.device,
        hca=about.hca,
        port=about.port,
        targets=about.targets or tuple(text for text in (about.node,) if text),
        blames_hardware=about.blames_hardware,
        confidence=about.confidence,
        evidence=dict(about.evidence or {}),
        aspect=about.aspect,
    )
    if spell.over is None or spell.over >= len(grid.times_T):
        return [raised]
    over = replace(
        raised,
        state=FindingState.CLEARED,
        detected_at=int(grid.times_T[spell.over]),
        summary=about.summary.split(";")[0].split(":")[0].rstrip(".") + ": over.",
    )
    return [raised, over]


def place(node: object, device: object = None) -> str:
    """Return how sentences name a node or device."""
    return str(node) if device is None else f"{node} device {device}"
