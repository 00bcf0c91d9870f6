"""Lists on an incident's page: findings as a tree, the timeline of what was done, deliveries, actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from dash import html

from flightwatch.dashboard.components import acts
from flightwatch.dashboard.components.finding_list import target_link
from flightwatch.dashboard.components.panels import empty, severity
from flightwatch.dashboard.components.request import link, viewer
from flightwatch.dashboard.components.sentences import told, words_of
from flightwatch.dashboard.components.text import amount_text
from flightwatch.dashboard.components.view import View
from flightwatch.dashboard.i18n import known, t
from flightwatch.pipeline.control.action_model import Action
from flightwatch.pipeline.control.alert_rows import INTENT, WAITING, StoredDelivery
from flightwatch.pipeline.control.incident_rows import HistoryEntry, IncidentFinding
from flightwatch.pipeline.control.roles import Role

#: Consequences shown; an incident can hold thousands.
MOST_SHOWN = 40


def finding_tree(found: Sequence[IncidentFinding], view: View) -> Any:
    """Return the roots with what follows from each."""
    if not found:
        return empty(t("incident.no_findings"))
    roots = [one for one in found if one.parent is None]
    rest = [one for one in found if one.parent is not None]
    items = [_finding(one, view, root=True) for one in roots[:MOST_SHOWN]]
    items += [_finding(one, view, root=False) for one in rest[:MOST_SHOWN]]
    hidden = max(0, len(roots) - MOST_SHOWN) + max(0, len(rest) - MOST_SHOWN)
    more = [html.P(t("incident.more_findings", n=hidden), className="fw-dim")] if hidden else []
    return html.Div([html.Ul(items, className="fw-list"), *more])


def _finding(one: IncidentFinding, view: View, *, root: bool) -> html.Li:
    row = {"node": one.node, "device": one.device, "job": one.job}
    role = t("incident.root") if root else f"{t('incident.follows')}: {known('why', one.why)}"
    sql = one.evidence.get("sql")
    confidence = t("incident.confidence", p=f"{100 * one.confidence:.0f}") if one.confidence is not None else ""
    figures = [t("incident.score", score=amount_text(one.score))]
    if one.threshold is not None:
        figures.append(f"{t('incident.threshold')} {amount_text(one.threshold)}")
    tail = " · ".join(
        part
        for part in (*figures, confidence, f"{one.detector} {one.detector_version}", view.clock(one.detected_at_ms))
        if part
    )
    return html.Li(
        [
            severity(one.severity),
            html.Strong(known("kind", one.kind)),
            " ",
            target_link(row),
            " ",
            html.Span(role, className="fw-dim"),
            told(one.summary),
            html.Div(
                [
                    html.Span(tail, **{"data-raw": "1"}),
                    " ",
                    *([acts.copy_button(t("incident.copy_sql"), str(sql))] if sql else []),
                ],
                className="fw-dim",
            ),
        ],
        className="" if root else "fw-consequence",
    )


def timeline(
    history: Sequence[HistoryEntry], deliveries: Sequence[StoredDelivery], actions: Sequence[Action], view: View
) -> Any:
    """Return what happened to the incident, its messages and actions among it, the newest first."""
    rows: list[tuple[int, str, Any]] = []
    for entry in history:
        if entry.event == "changed" and not _is_telling(entry):
            continue
        rows.append((entry.at_ms, known("history", entry.event), _entry(entry)))
    for one in deliveries:
        if one.state not in (WAITING, INTENT):
            words = t("incident.message", channel=one.channel)
            rows.append((one.updated_at_ms, words, known("delivery", one.state)))
    for action in actions:
        words = f"{known('action', action.kind)} {action.node}"
        said = words_of(action.outcome or action.reason)
        rows.append((action.updated_at_ms, words, f"{known('actstate', action.state)} · {said}"))
    if not rows:
        return empty(t("incident.no_history"))
    rows.sort(key=lambda row: row[0], reverse=True)
    return html.Ul(
        [
            html.Li(
                [
                    html.Span(view.clock(at), className="fw-dim"),
                    " ",
                    html.Strong(words),
                    html.Div(detail, className="fw-dim", **{"data-raw": "1"}),
                ]
            )
            for at, words, detail in rows
        ],
        className="fw-list",
    )


def _entry(entry: HistoryEntry) -> Any:
    """Return who changed what; ids of findings say nothing to people, those of incidents are links."""
    detail, parts = entry.detail, [entry.actor]
    into = detail.get("into")
    if isinstance(into, str):
        return [f"{entry.actor} · ", html.A(into, href=link(f"/incidents/{quote(into, safe='')}"))]
    if "from" in detail and "to" in detail and entry.event != "root_finding":
        parts.append(f"{detail['from'] or '—'} → {detail['to'] or '—'}")
    parts += [f"{name}: {value}" for name, value in detail.items() if name not in _UNSAID and _is_plain(value)]
    return " · ".join(parts)


#: Details of a change that are said otherwise, or only to the engine.
_UNSAID = ("from", "to", "root", "ids", "into", "finding")


def _is_telling(entry: HistoryEntry) -> bool:
    """Say whether a change of figures has anything for people to read."""
    return any(name not in _UNSAID and _is_plain(value) for name, value in entry.detail.items())


def _is_plain(value: Any) -> bool:
    return value is not None and not isinstance(value, (dict, list))


def delivery_list(deliveries: Sequence[StoredDelivery], view: View) -> Any:
    """Return the messages about the incident: where, whether it arrived, how long the service took."""
    if not deliveries:
        return empty(t("incident.no_deliveries"), t("incident.no_deliveries_hint"))
    items = []
    for one in deliveries:
        at = one.updated_at_ms
        took = f" · {one.latency_ms:.0f} ms" if one.latency_ms is not None else ""
        items.append(
            html.Li(
                [
                    html.Strong(one.channel, **{"data-raw": "1"}),
                    " ",
                    known("reason", one.reason.value),
                    " ",
                    html.Span(
                        known("delivery", one.state), className=f"fw-state {'done' if one.state == 'sent' else ''}"
                    ),
                    html.Div(view.clock(at) + took, className="fw-dim"),
                    *([html.Div(one.error, className="fw-warn", **{"data-raw": "1"})] if one.error else []),
                ]
            )
        )
    return html.Ul(items, className="fw-list")


def action_list(actions: Sequence[Action], view: View, mode: Any = None, why: str | None = None) -> Any:
    """Return what was proposed and done, with the figures behind it.

    Parameters
    ----------
    mode: how far actions may go here. why: why nothing is proposed, where that is known.
    """
    head = [mode] if mode is not None else []
    if not actions:
        reason = t("incident.why_none", why=why) if why else t("incident.no_actions_hint")
        return html.Div([*head, html.P(t("incident.no_actions")), html.P(reason, **{"data-raw": "1"})])
    items = []
    for one in actions:
        loss, restart = one.cost.get("loss_gpu_hours"), one.cost.get("restart_gpu_hours")
        figures = t("action.figures", loss=amount_text(loss), restart=amount_text(restart)) if loss is not None else ""
        waits = (
            [html.Div(t("action.waits", what=known("waits", one.waits_for)), className="fw-warn")]
            if one.waits_for
            else []
        )
        refuse = one.state in ("proposed", "approved") and viewer().may(Role.OPERATOR, one.tenant)
        items.append(
            html.Li(
                [
                    html.Strong(f"{known('action', one.kind)} {one.node}", **{"data-raw": "1"}),
                    " ",
                    html.Span(
                        known("actstate", one.state), className=f"fw-state {'done' if one.state == 'done' else ''}"
                    ),
                    html.Span(f" {known('actmode', one.mode)}", className="fw-dim"),
                    html.Div(words_of(one.reason), **{"data-raw": "1"}),
                    html.Div(figures, className="fw-dim"),
                    *waits,
                    html.Div(one.outcome or "", className="fw-dim", **{"data-raw": "1"}),
                    html.Div(f"{one.actor} · {view.clock(one.updated_at_ms)}", className="fw-dim", **{"data-raw": "1"}),
                    *(
                        [
                            acts.drop_down(
                                t("act.reject"),
                                acts.act_form(
                                    f"/api/v1/actions/{one.id}/reject",
                                    [acts.field("reason", t("act.reason"))],
                                    t("act.reject"),
                                ),
                            )
                        ]
                        if refuse
                        else []
                    ),
                ]
            )
        )
    return html.Div([*head, html.Ul(items, className="fw-list")])
