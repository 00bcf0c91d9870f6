"""The report of one incident, for Friday's meeting: what happened, the evidence, the queries to look again.

Markdown, HTML and JSON say the same. Times are UTC. What is unknown is said to be unknown.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jinja2

from flightwatch.core.clock import iso_utc
from flightwatch.core.incident import Incident
from flightwatch.pipeline.control.action_model import Action
from flightwatch.pipeline.control.alert_rows import StoredDelivery
from flightwatch.pipeline.control.incident_rows import HistoryEntry, IncidentFinding, IncidentNote

FORMATS = ("md", "html", "json")
_TEMPLATES = Path(__file__).parent / "templates"
_UNKNOWN = "unknown"
_BEFORE_MS, _AFTER_MS = 1_800_000, 600_000


@dataclass(frozen=True, slots=True)
class Record:
    """Everything a report is made of."""

    incident: Incident
    findings: Sequence[IncidentFinding]
    history: Sequence[HistoryEntry]
    notes: Sequence[IncidentNote]
    actions: Sequence[Action]
    deliveries: Sequence[StoredDelivery]


def report(record: Record, form: str) -> str:
    """Return the report.

    Parameters
    ----------
    form: md, html or json.
    """
    if form == "json":
        return json.dumps(_document(record), ensure_ascii=False, indent=2)
    values = {"i": record.incident, "r": record, "queries": queries(record), "facts": _facts(record.incident)}
    return _ENVIRONMENT.get_template(f"post_mortem.{form}.j2").render(**values)


def queries(record: Record) -> list[tuple[str, str]]:
    """Return the queries that bring back what the report says: name and SQL. They are shown, never run here."""
    one = record.incident
    start, end = one.opened_at_ms - _BEFORE_MS, (one.closed_at_ms or one.evidence_at_ms) + _AFTER_MS
    between = f"BETWEEN fromUnixTimestamp64Milli({start}) AND fromUnixTimestamp64Milli({end})"
    identity = _text(one.id)
    found = [
        ("This incident, all its versions", _select("incidents", f"id = {identity}", "version")),
        ("Evidence that was pinned", _select("incident_evidence", f"incident = {identity}", "moment, role, ts")),
    ]
    ids = ", ".join(_text(item.finding) for item in record.findings[:200])
    if ids:
        found.append(("Its findings", _select("findings", f"id IN ({ids})", "ts")))
    if one.job:
        where = f"job = {_text(one.job)} AND started_at {between}"
        found.append(("Steps of the job", _select("v_step_times", where, "step")))
    if one.node:
        node = f"node = {_text(one.node)}"
        device = "" if one.device is None else f" AND device = {one.device}"
        what = "Telemetry of the device" if device else "Telemetry of the node"
        found.append((what, _select("device_samples", f"{node}{device} AND ts {between}", "ts")))
        found.append(("Everything that happened to the node", _select("v_node_history", node, "ts DESC LIMIT 200")))
    theirs = [one for one in record.findings[:20] if one.evidence.get("sql")]
    return found + [(f"Evidence of {item.detector}", str(item.evidence["sql"])) for item in theirs]


def _select(table: str, where: str, order: str) -> str:
    return " ".join(("SELECT * FROM", f"flightwatch.{table}", "WHERE", where, "ORDER BY", order))


def _facts(one: Incident) -> list[tuple[str, str]]:
    minutes = None if one.closed_at_ms is None else (one.closed_at_ms - one.opened_at_ms) / 60_000
    return [
        ("Severity", one.severity.value),
        ("State", one.state.value.replace("_", " ")),
        ("Opened", iso_utc(one.opened_at_ms) or _UNKNOWN),
        ("Closed", iso_utc(one.closed_at_ms) or "still open"),
        ("Duration", "still open" if minutes is None else f"{minutes:,.0f} min"),
        ("Job", one.job or "none known"),
        ("Node", one.node or "no single node"),
        ("Device", _UNKNOWN if one.device is None else str(one.device)),
        ("Job during it", one.progress.value),
        ("GPUs affected", _UNKNOWN if one.gpus_affected is None else f"{one.gpus_affected:,}"),
        ("GPU-hours lost", _UNKNOWN if one.lost_gpu_hours is None else f"{one.lost_gpu_hours:,.2f}"),
        ("Confidence", _UNKNOWN if one.confidence is None else f"{100 * one.confidence:.0f} %"),
        ("Runner-up", one.runner_up or "none"),
        ("Acknowledged", "nobody" if one.acknowledged_by is None
         else f"{one.acknowledged_by}, {iso_utc(one.acknowledged_at_ms)}"),
    ]  # fmt: skip


def _document(record: Record) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        shown = asdict(value)
        # Every time is also there as people write it.
        return shown | {name[:-3]: iso_utc(at) for name, at in shown.items() if name.endswith("_at_ms")}

    return {
        "incident": plain(record.incident),
        "findings": [plain(one) for one in record.findings],
        "history": [plain(one) for one in record.history],
        "notes": [plain(one) for one in record.notes],
        "actions": [plain(one) for one in record.actions],
        "deliveries": [plain(one) for one in record.deliveries],
        "queries": [{"name": name, "sql": sql} for name, sql in queries(record)],
    }


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _cell(value: object) -> str:
    """Return a text that Markdown takes as a cell of a table."""
    return " ".join(str(value).split()).replace("|", "\\|").replace("<", "&lt;").replace("`", "'")


def _figure(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:,.1f}"


def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), undefined=jinja2.StrictUndefined,
        autoescape=lambda name: name is not None and ".html." in name, keep_trailing_newline=True,
    )  # fmt: skip
    made.filters |= {"utc": iso_utc, "cell": _cell, "figure": _figure}
    return made


_ENVIRONMENT = _environment()
