"""What Flightwatch may do about an incident, and why it does nothing: the engine's own rules, asked again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import html

from flightwatch.core.errors import FlightwatchError
from flightwatch.core.incident import Incident
from flightwatch.dashboard.components.incident_reads import IncidentReads
from flightwatch.dashboard.components.remembered import Remembered
from flightwatch.dashboard.components.sentences import words_of
from flightwatch.dashboard.i18n import known, t
from flightwatch.dashboard.services import Services
from flightwatch.incidents import policy
from flightwatch.incidents.action_settings import ActionSettings
from flightwatch.incidents.facts import Facts
from flightwatch.pipeline.control.incident_rows import IncidentFinding
from flightwatch.pipeline.store.capacity_reads import known_nodes

_DAY_MS = 86_400_000
_INVENTORY = Remembered(30.0)


def mode_line(services: Services, reads: IncidentReads) -> Any:
    """Return how far actions may go here, as settings and the stop switch say."""
    switch = reads.actions.stop_switch()
    if switch.is_on:
        words = t("actions.stopped", who=switch.actor, reason=switch.reason)
        return html.P(words, className="fw-warn", **{"data-raw": "1"})
    if services.actions is None:
        return html.P(t("actions.unknown"), className="fw-dim")
    mode = services.actions.mode
    words = t(f"actions.{mode}")
    kinds = services.actions.automatic_kinds
    if mode == "automatic" and kinds:
        words += " " + t("actions.kinds", kinds=", ".join(kinds))
    if mode in ("approve", "automatic") and not services.actions.scheduler:
        words += " " + t("actions.no_scheduler")
    return html.P([html.Span(known("actmode", mode), className="fw-state"), " ", words], className="fw-dim")


def why_none(
    one: Incident, found: Sequence[IncidentFinding], facts: Facts, services: Services, now_ms: int
) -> str | None:
    """Return why the engine proposes nothing about an incident; None where it would, or where nobody can say."""
    settings = services.actions
    if settings is None:
        return None
    statements = [policy.Statement(item.kind, item.node, item.state, item.evidence) for item in found]
    try:
        inventory = _INVENTORY.get((id(services.store), one.cluster), lambda: known_nodes(services.store, one.cluster))
    except FlightwatchError:
        return None
    decision = policy.decide(one, statements, _facts(one, facts, settings, inventory, now_ms), settings)
    if decision.mode is not None:
        return None
    words = words_of(decision.why)
    return words if words == decision.why else words.replace(one.kind, known("kind", one.kind))


def _facts(
    one: Incident, facts: Facts, settings: ActionSettings, inventory: frozenset[str], now_ms: int
) -> policy.Facts:
    """Return what the policy asks for. Without a scheduler nobody says which spare nodes are usable."""
    hangs = [item for item in facts.earlier if item.kind in ("hang", "crash") and item.opened_at_ms > now_ms - _DAY_MS]
    return policy.Facts(
        now_ms=now_ms, known_nodes=inventory, spares=facts.spares if settings.scheduler else None,
        job_gpus=facts.job_gpus or one.gpus_affected, checkpoint_at_ms=facts.checkpoint_at_ms,
        hangs_in_a_day=len(hangs),
    )  # fmt: skip
