"""Incident: what, where, since when, how sure, what it costs, what to do; the evidence; what was done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlencode
from zoneinfo import ZoneInfo

from dash import Dash, Input, Output, State, dcc, html, no_update

from flightwatch.core.clock import SystemClock
from flightwatch.core.errors import FlightwatchError, NotFound
from flightwatch.core.incident import Incident
from flightwatch.dashboard.components import acts, graphs
from flightwatch.dashboard.components.absent import calm
from flightwatch.dashboard.components.action_words import mode_line, why_none
from flightwatch.dashboard.components.incident_acts import act_bar
from flightwatch.dashboard.components.incident_evidence import causes, evidence_figure
from flightwatch.dashboard.components.incident_lists import action_list, delivery_list, finding_tree, timeline
from flightwatch.dashboard.components.incident_reads import IncidentReads
from flightwatch.dashboard.components.panels import empty, failure, panel, severity, waiting, zone_note
from flightwatch.dashboard.components.remembered import Remembered
from flightwatch.dashboard.components.request import link, viewer
from flightwatch.dashboard.components.safely import safely
from flightwatch.dashboard.components.sentences import title_of
from flightwatch.dashboard.components.text import age_text, hours_text
from flightwatch.dashboard.components.view import View
from flightwatch.dashboard.i18n import language, t
from flightwatch.dashboard.services import Services
from flightwatch.incidents.facts import Facts
from flightwatch.incidents.text import incident_sheet
from flightwatch.pipeline.control.incident_rows import IncidentFilter, IncidentNote

PATH = "/incidents/<id>"
NAME = "page.incident"
IN_MENU = False
KEY = ""

MOST_RELATED = 12


def layout(view: View, services: Services) -> Any:
    """Return the page; where there is no such incident, a page that says only that."""
    name = view.captured.get("id", "")
    try:
        IncidentReads(services).get(name)
    except NotFound:
        back = html.A(t("page.incidents"), href=link("/incidents"))
        return calm(t("incident.absent", id=name[:80]), html.P(t("incident.absent_hint")), back)
    except FlightwatchError as error:
        return failure(str(error))
    return html.Div(
        [
            html.Div(html.Div(id="incident-head"), className="fw-title"),
            dcc.Store(id="incident-seen"),
            html.Div(id="incident-acts"),
            html.Div([html.Div(_left()), html.Div(_right(view))], className="fw-side"),
        ]
    )


def _left() -> list[Any]:
    return [
        panel(t("incident.summary"), waiting("incident-summary", 110)),
        panel(
            t("incident.evidence"),
            graphs.graph("incident-evidence", height_px=420),
            html.Div(t("incident.legend"), className="fw-legend"),
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


def _right(view: View) -> list[Any]:
    def scrolled(part: str) -> Any:
        inside = html.Div(id=f"incident-{part}", className="fw-scroll", tabIndex="0")
        return panel(t(f"incident.{part}"), inside, note=zone_note(view))

    return [
        panel(t("incident.actions"), html.Div(id="incident-actions")),
        panel(t("incident.notes"), html.Div(id="incident-notes")),
        *(scrolled(part) for part in ("timeline", "deliveries", "related")),
    ]


class _Parts:
    """What the callbacks of the page share."""

    def __init__(self, services: Services) -> None:
        self.services, self.reads, self.store = services, IncidentReads(services), services.store
        self._facts = Remembered(15.0)
        self.causes = Remembered(3600.0)

    def incident(self, data: Any) -> tuple[View, Incident]:
        """Return the view and its incident. Raises NotFound."""
        view = View.of(data)
        return view, self.reads.get(view.captured.get("id", ""))

    def facts(self, one: Incident) -> Facts:
        """Return what is known beside an incident."""
        return self._facts.get((one.id, one.revision), lambda: self.reads.facts.read(one))


def register(app: Dash, services: Services) -> None:
    """Add the page's callbacks."""
    parts = _Parts(services)
    _register_head(app, parts)
    _register_summary(app, parts)
    _register_evidence(app, parts)
    _register_beside(app, parts)


def _register_head(app: Dash, parts: _Parts) -> None:
    reads = parts.reads

    @app.callback(
        Output("incident-head", "children"), Output("incident-seen", "data"), Input("view", "data"),
        Input("beat", "data"), State("incident-seen", "data"),
    )  # fmt: skip
    @safely(2, 0)
    def head(data: Any, _: Any, seen: Any) -> tuple[Any, Any]:
        _view, one = parts.incident(data)
        actions = reads.actions.page(incident=one.id, limit=20)
        now = [one.id, one.state.value, *(f"{item.id}:{item.state}" for item in actions)]
        return _head(one, SystemClock().now_ms()), no_update if now == seen else now

    # The forms change only with the incident: a refresh must not take away what somebody is typing.
    @app.callback(Output("incident-acts", "children"), Input("incident-seen", "data"), prevent_initial_call=True)
    @safely(1, 0)
    def forms(seen: Any) -> Any:
        one = reads.get(str(seen[0]) if isinstance(seen, list) and seen else "")
        known_actions = reads.actions.page(incident=one.id, limit=20)
        return act_bar(one, parts.facts(one), known_actions)


def _register_summary(app: Dash, parts: _Parts) -> None:
    @app.callback(Output("incident-summary", "children"), Input("view", "data"), Input("beat", "data"))
    @safely(1, 0)
    def summary(data: Any, _: Any) -> Any:
        view, one = parts.incident(data)
        lines = incident_sheet(
            one, parts.facts(one), now_ms=SystemClock().now_ms(), zone=ZoneInfo(view.zone_name), language=language()
        )
        pairs = [part for name, label, words in lines if label for part in (html.Dt(label), _line(name, words))]
        lead = next((words for name, _label, words in lines if name == "headline"), "")
        return [html.P(lead, className="fw-lead", **{"data-raw": "1"}), html.Dl(pairs, className="fw-pairs")]


def _line(name: str, words: str) -> html.Dd:
    """Return one line of the summary; the command to paste has a button that copies it."""
    if name != "next":
        return html.Dd(words, className="fw-cause" if name == "cause" else "", **{"data-raw": "1"})
    return html.Dd([html.Code(words, className="fw-command", **{"data-raw": "1"}), acts.copy_button(t("copy"), words)])


def _register_evidence(app: Dash, parts: _Parts) -> None:
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
        view, one = parts.incident(data)
        return evidence_figure(parts.store, one, parts.facts(one), view, SystemClock().now_ms())

    @app.callback(
        Output("incident-findings", "children"),
        Output("incident-findings-tools", "children"),
        Output("incident-causes", "children"),
        Input("view", "data"),
        Input("beat", "data"),
    )
    @safely(3, 0)
    def findings(data: Any, _: Any) -> tuple[Any, Any, Any]:
        view, one = parts.incident(data)
        found = parts.reads.records.findings(one.id)
        ids = ", ".join(f"'{item.finding}'" for item in found)
        sql = " ".join(("SELECT * FROM flightwatch.findings WHERE id IN", f"({ids})", "ORDER BY ts"))
        looked = parts.causes.get(
            ("causes", one.id, one.revision, language()), lambda: causes(parts.store, one.cluster, one, found)
        )
        return finding_tree(found, view), acts.copy_button(t("incident.copy_sql"), sql), looked


def _register_beside(app: Dash, parts: _Parts) -> None:
    reads = parts.reads

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
        view, one = parts.incident(data)
        deliveries = reads.alerts.deliveries(incident=one.id, limit=100)
        actions = reads.actions.page(incident=one.id, limit=50)
        why = None
        if not actions:
            found = reads.records.findings(one.id)
            why = why_none(one, found, parts.facts(one), parts.services, SystemClock().now_ms())
        return (
            action_list(actions, view, mode_line(parts.services, reads), why),
            _notes(reads.records.notes(one.id), view),
            timeline(reads.records.history(one.id), deliveries, actions, view),
            delivery_list(deliveries, view),
            _related(reads, one, view),
        )


def _head(one: Incident, now_ms: int) -> Any:
    until = one.closed_at_ms or now_ms
    state = html.Span(t(f"incidents.{one.state.value}"), className=f"fw-state {one.state.value}")
    heading = html.H1([severity(one.severity.value), html.Span(title_of(one), **{"data-raw": "1"})])
    facts = [
        state,
        html.Span(t("incident.for", age=age_text((until - one.opened_at_ms) / 1000))),
        html.Span([html.Span(t("col.lost"), className="fw-dim"), html.B(hours_text(one.lost_gpu_hours))]),
        *([html.Span(t("incident.assigned", who=one.assignee))] if one.assignee else []),
        *([html.Span(t("incident.quiet"), className="fw-warn")] if one.silenced_by or one.inhibited_by else []),
        *([html.Span(t("incident.stale"), className="fw-warn")] if one.stale else []),
    ]
    return html.Div([heading, html.Div(facts, className="fw-facts")], className="fw-headline")


def _notes(notes: Sequence[IncidentNote], view: View) -> Any:
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
                html.A(title_of(item), href=link(f"/incidents/{quote(item.id, safe='')}"), **{"data-raw": "1"}),
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
