"""Incident: what, where, since when, how sure, what it costs, what to do; the evidence; what was done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlencode
from zoneinfo import ZoneInfo

from dash import Dash, Input, Output, State, dcc, html, no_update

from flightwatch.core.clock import SystemClock
from flightwatch.core.errors import NotFound
from flightwatch.core.incident import AlertReason, Incident
from flightwatch.dashboard.components import acts, graphs
from flightwatch.dashboard.components.incident_acts import act_bar
from flightwatch.dashboard.components.incident_evidence import causes, evidence_figure
from flightwatch.dashboard.components.incident_lists import action_list, delivery_list, finding_tree, timeline
from flightwatch.dashboard.components.incident_reads import IncidentReads
from flightwatch.dashboard.components.panels import empty, panel, severity, waiting
from flightwatch.dashboard.components.remembered import Remembered
from flightwatch.dashboard.components.request import link, viewer
from flightwatch.dashboard.components.safely import safely
from flightwatch.dashboard.components.text import age_text, amount_text
from flightwatch.dashboard.components.view import View
from flightwatch.dashboard.i18n import known, language, t
from flightwatch.dashboard.services import Services
from flightwatch.incidents.contract import Disclosure
from flightwatch.incidents.facts import Facts
from flightwatch.incidents.text import incident_alert
from flightwatch.pipeline.control.incident_rows import IncidentFilter, IncidentNote

PATH = "/incidents/<id>"
NAME = "page.incident"
IN_MENU = False
KEY = ""

MOST_RELATED = 12


def layout(view: View, services: Services) -> Any:
    """Return the page."""
    return html.Div(
        [
            html.Div(html.Div(id="incident-head"), className="fw-title"),
            dcc.Store(id="incident-seen"),
            html.Div(id="incident-acts"),
            html.Div(
                [
                    html.Div(
                        [
                            panel(t("incident.summary"), waiting("incident-summary", 110)),
                            panel(
                                t("incident.evidence"),
                                graphs.graph("incident-evidence", height_px=420),
                                note="incident-evidence-note",
                                tools=html.Span(id="incident-evidence-tools"),
                            ),
                            panel(
                                t("incident.findings"),
                                html.Div(id="incident-findings"),
                                tools=html.Span(id="incident-findings-tools"),
                            ),
                            panel(t("incident.causes"), html.Div(id="incident-causes")),
                        ]
                    ),
                    html.Div(
                        [
                            panel(t("incident.actions"), html.Div(id="incident-actions")),
                            panel(t("incident.notes"), html.Div(id="incident-notes")),
                            panel(
                                t("incident.timeline"),
                                html.Div(id="incident-timeline", className="fw-scroll", tabIndex="0"),
                            ),
                            panel(
                                t("incident.deliveries"),
                                html.Div(id="incident-deliveries", className="fw-scroll", tabIndex="0"),
                            ),
                            panel(
                                t("incident.related"),
                                html.Div(id="incident-related", className="fw-scroll", tabIndex="0"),
                            ),
                        ]
                    ),
                ],
                className="fw-side",
            ),
        ]
    )


def register(app: Dash, services: Services) -> None:
    """Add the page's callbacks."""
    reads, store, remembered = IncidentReads(services), services.store, Remembered(2.0)
    shown_form = Remembered(3600.0)

    def facts_of(one: Incident) -> Facts:
        return remembered.get((one.id, one.revision), lambda: reads.facts.read(one), 15.0)

    @app.callback(
        Output("incident-head", "children"), Output("incident-seen", "data"), Input("view", "data"),
        Input("beat", "data"), State("incident-seen", "data"),
    )  # fmt: skip
    @safely(2, 0)
    def head(data: Any, _: Any, seen: Any) -> tuple[Any, Any]:
        one = reads.get(View.of(data).captured.get("id", ""))
        actions = reads.actions.page(incident=one.id, limit=20)
        now = [one.id, one.state.value, *(f"{item.id}:{item.state}" for item in actions)]
        return _head(one, SystemClock().now_ms()), no_update if now == seen else now

    @app.callback(
        Output("incident-summary", "children"), Input("view", "data"), Input("beat", "data"),
    )  # fmt: skip
    @safely(1, 0)
    def summary(data: Any, _: Any) -> Any:
        view = View.of(data)
        one, now_ms = reads.get(view.captured.get("id", "")), SystemClock().now_ms()
        reason = AlertReason.RESOLVED if one.closed else AlertReason.OPENED
        text = incident_alert(
            one, facts_of(one), reason, now_ms=now_ms, zone=ZoneInfo(view.zone_name), language=language(),
            disclosure=Disclosure.FULL,
        )  # fmt: skip
        pairs = [part for name, value in text.facts for part in (html.Dt(name), html.Dd(value, **{"data-raw": "1"}))]
        return [html.P(text.lead, className="fw-lead", **{"data-raw": "1"}), html.Dl(pairs, className="fw-pairs")]

    # The forms change only with the incident: a refresh must not take away what somebody is typing.
    @app.callback(Output("incident-acts", "children"), Input("incident-seen", "data"), prevent_initial_call=True)
    @safely(1, 0)
    def forms(seen: Any) -> Any:
        one = reads.get(str(seen[0]) if isinstance(seen, list) and seen else "")
        known_actions = reads.actions.page(incident=one.id, limit=20)
        return act_bar(one, facts_of(one), known_actions)

    @app.callback(
        Output("incident-evidence", "figure"),
        Output("incident-evidence", "style"),
        Output("incident-evidence-note", "children"),
        Output("incident-evidence-tools", "children"),
        Input("view", "data"),
        Input("beat", "data"),
    )
    @safely(4, 2)
    def evidence(data: Any, _: Any) -> tuple[Any, Any, Any, Any]:
        view = View.of(data)
        one = reads.get(view.captured.get("id", ""))
        return evidence_figure(store, one, facts_of(one), view, SystemClock().now_ms())

    @app.callback(
        Output("incident-findings", "children"),
        Output("incident-findings-tools", "children"),
        Output("incident-causes", "children"),
        Input("view", "data"),
        Input("beat", "data"),
    )
    @safely(3, 0)
    def findings(data: Any, _: Any) -> tuple[Any, Any, Any]:
        view = View.of(data)
        one = reads.get(view.captured.get("id", ""))
        found = reads.records.findings(one.id)
        ids = ", ".join(f"'{item.finding}'" for item in found)
        sql = " ".join(("SELECT * FROM flightwatch.findings WHERE id IN", f"({ids})", "ORDER BY ts"))
        looked = shown_form.get(
            ("causes", one.id, one.revision, language()), lambda: causes(store, one.cluster, one, found)
        )
        return finding_tree(found, view), acts.copy_button(t("incident.copy_sql"), sql), looked

    @app.callback(
        Output("incident-actions", "children"),
        Output("incident-notes", "children"),
        Output("incident-timeline", "children"),
        Output("incident-deliveries", "children"),
        Output("incident-related", "children"),
        Input("view", "data"),
        Input("beat", "data"),
    )
    @safely(5, 0)
    def beside(data: Any, _: Any) -> tuple[Any, ...]:
        view = View.of(data)
        one = reads.get(view.captured.get("id", ""))
        notes = reads.records.notes(one.id)
        deliveries = reads.alerts.deliveries(incident=one.id, limit=100)
        actions = reads.actions.page(incident=one.id, limit=50)
        return (
            action_list(actions, view),
            _notes(one, notes, view),
            timeline(reads.records.history(one.id), deliveries, actions, view),
            delivery_list(deliveries, view),
            _related(reads, one, view),
        )


def _head(one: Incident, now_ms: int) -> Any:
    until = one.closed_at_ms or now_ms
    state = html.Span(t(f"incidents.{one.state.value}"), className=f"fw-state {one.state.value}")
    progress = html.Span(t(f"progress.{one.progress.value}"), className="fw-dim")
    parts: list[Any] = [
        html.H1([severity(one.severity.value), html.Span(one.title, **{"data-raw": "1"})]),
        html.Div(
            [
                state,
                progress,
                html.Span(t("incident.for", age=age_text((until - one.opened_at_ms) / 1000))),
                html.Span([t("col.lost"), " ", html.B(amount_text(one.lost_gpu_hours))]),
                html.Span(known("kind", one.kind), className="fw-dim"),
                *([html.Span(t("incident.assigned", who=one.assignee))] if one.assignee else []),
                *([html.Span(t("incident.quiet"), className="fw-warn")] if one.silenced_by or one.inhibited_by else []),
                *([html.Span(t("incident.stale"), className="fw-warn")] if one.stale else []),
            ],
            className="fw-facts",
        ),
    ]
    return html.Div(parts)


def _notes(one: Incident, notes: Sequence[IncidentNote], view: View) -> Any:
    items = [
        html.Li(
            [
                html.Div(f"{note.author} · {view.clock(note.at_ms)}", className="fw-dim", **{"data-raw": "1"}),
                html.Div(note.text, **{"data-raw": "1"}),
            ]
        )
        for note in reversed(notes)
    ]
    return html.Ul(items, className="fw-list") if items else empty(t("incident.no_notes"))


def _related(reads: IncidentReads, one: Incident, view: View) -> Any:
    tenants = viewer().tenants
    scope = None if tenants is None else sorted(tenants)
    found: dict[str, Incident] = {}
    if one.node:
        page = reads.records.page(IncidentFilter(nodes=(one.node,), tenants=scope), limit=MOST_RELATED)
        found |= {item.id: item for item in page.items}
    if one.job:
        page = reads.records.page(IncidentFilter(jobs=(one.job,), tenants=scope), limit=MOST_RELATED)
        found |= {item.id: item for item in page.items}
    if one.inhibited_by:
        try:
            found[one.inhibited_by] = reads.get(one.inhibited_by)
        except NotFound:
            pass
    found.pop(one.id, None)
    if not found:
        return empty(t("incident.no_related"))
    newest = sorted(found.values(), key=lambda item: item.opened_at_ms, reverse=True)[:MOST_RELATED]
    items = [
        html.Li(
            [
                severity(item.severity.value),
                html.A(item.title, href=link(f"/incidents/{quote(item.id, safe='')}"), **{"data-raw": "1"}),
                html.Div(
                    [t(f"incidents.{item.state.value}"), " · ", view.clock(item.opened_at_ms)], className="fw-dim"
                ),
            ]
        )
        for item in newest
    ]
    if one.node:
        query = urlencode({"state": "all", "node": one.node})
        items.append(html.Li(html.A(t("incident.all_of_node"), href=link(f"/incidents?{query}"))))
    return html.Ul(items, className="fw-list")
