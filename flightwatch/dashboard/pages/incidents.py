"""Incidents: what is wrong now and what was, filtered by the address, changed many at a time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html

from flightwatch.core.clock import SystemClock
from flightwatch.core.errors import ConfigError
from flightwatch.core.incident import Incident
from flightwatch.core.vocabulary import FindingKind
from flightwatch.dashboard.access.viewer import Viewer
from flightwatch.dashboard.components import acts, controls, grids
from flightwatch.dashboard.components.incident_reads import STATES, IncidentReads, filter_of
from flightwatch.dashboard.components.panels import empty, panel, severity
from flightwatch.dashboard.components.request import link, viewer
from flightwatch.dashboard.components.safely import safely
from flightwatch.dashboard.components.sentences import title_of
from flightwatch.dashboard.components.text import age_text, amount_text, hours_text
from flightwatch.dashboard.components.view import View
from flightwatch.dashboard.i18n import known, t
from flightwatch.dashboard.services import Services
from flightwatch.pipeline.control.roles import Role
from flightwatch.pipeline.control.saved import SavedItems

PATH = "/incidents"
NAME = "page.incidents"
IN_MENU = True
KEY = "i"

PAGE_ROWS = 200
SEVERITIES = ("P1", "P2", "P3", "P4")


def layout(view: View, services: Services) -> Any:
    """Return the page."""
    kinds = [("", t("incidents.any_kind")), *((kind.value, known("kind", kind.value)) for kind in FindingKind)]
    quiet = [("", t("incidents.quiet_all")), ("no", t("incidents.quiet_no")), ("yes", t("incidents.quiet_yes"))]
    filters = [
        controls.segments(view, "state", [(state, t(f"incidents.{state}")) for state in STATES], t("col.state")),
        controls.select(
            view,
            "severity",
            [("", t("incidents.any_severity")), *((one, one) for one in SEVERITIES)],
            t("col.severity"),
        ),
        controls.select(view, "kind", kinds, t("col.kind")),
        controls.select(view, "quiet", quiet, t("incidents.quiet")),
        controls.search(view, label=t("incidents.search")),
    ]
    return html.Div(
        [
            html.Div([html.H1(t(NAME)), html.Div(filters, className="fw-tools")], className="fw-title"),
            html.Div(id="incidents-views", className="fw-acts"),
            html.Div(_bulk() if viewer().may_somewhere(Role.OPERATOR) else [], className="fw-only-wide"),
            panel(
                t("incidents.list"),
                html.Div(id="incidents-problem"),
                html.Div(
                    grids.grid(
                        "incidents-grid",
                        _columns(),
                        height_px=560,
                        row_id="params.data.id",
                        options={"rowSelection": {"mode": "multiRow"}},
                    ),
                    className="fw-only-wide",
                ),
                html.Div(id="incidents-cards", className="fw-cards"),
                html.Div(id="incidents-more"),
                note="incidents-note",
            ),
            panel(t("silences.title"), html.Div(id="incidents-silences")),
        ]
    )


def _columns() -> list[dict[str, Any]]:
    return [
        {
            "field": "severity",
            "headerName": t("col.severity"),
            "width": 92,
            "minWidth": 84,
            "pinned": "left",
            "cellClassRules": {f"fw-sev-{one.lower()}": f"params.value == '{one}'" for one in SEVERITIES},
        },
        grids.link_column("title", t("col.incident"), flex=3, minWidth=360, tooltipField="said"),
        {"field": "state", "headerName": t("col.state"), "width": 116, "minWidth": 100},
        {"field": "kind", "headerName": t("col.kind"), "width": 120, "minWidth": 110},
        {"field": "node", "headerName": t("page.node"), "width": 110, "minWidth": 96},
        {"field": "job", "headerName": t("page.job"), "width": 120, "minWidth": 104},
        {"field": "gpus", "headerName": "GPU", "width": 76, "minWidth": 64, "type": "rightAligned"},
        {"field": "lost", "headerName": t("col.lost"), "width": 130, "minWidth": 120, "type": "rightAligned"},
        {"field": "age", "headerName": t("col.opened"), "width": 96, "minWidth": 88, "type": "rightAligned"},
        {"field": "assignee", "headerName": t("col.assignee"), "width": 104, "minWidth": 92},
    ]


def _bulk() -> list[Any]:
    each: dict[str, Any] = {"data_each": "incidents-grid"}
    one = "/api/v1/incidents/{each}"
    return [
        html.Div(
            [
                html.Span(id="incidents-selected", className="fw-dim", role="status"),
                acts.act_form(f"{one}/acknowledge", [], t("act.acknowledge"), shortcut="a", **each),
                acts.drop_down(
                    t("act.assign"),
                    acts.act_form(
                        f"{one}/assign", [acts.field("assignee", t("col.assignee"))], t("act.assign"), **each
                    ),
                ),
                acts.drop_down(
                    t("act.note"),
                    acts.act_form(f"{one}/notes", [acts.note_field("text", t("act.note"))], t("act.note"), **each),
                ),
                acts.drop_down(
                    t("act.silence"),
                    acts.act_form(
                        "/api/v1/silences",
                        [matcher_fields(viewer()), acts.field("reason", t("act.reason")), acts.hours_field()],
                        t("act.silence"),
                    ),
                    note=t("silences.how"),
                ),
                acts.drop_down(
                    t("act.resolve"),
                    acts.act_form(f"{one}/resolve", [acts.note_field("note", t("act.note"))], t("act.resolve"), **each),
                ),
                acts.drop_down(
                    t("act.save_view"),
                    acts.act_form(
                        "/api/v1/saved",
                        [acts.field("name", t("act.name")), html.Span(id="incidents-view-body")],
                        t("act.save_view"),
                        body={"kind": "view", "shared": False},
                    ),
                ),
            ],
            className="fw-acts",
        )
    ]


def matcher_fields(asking: Viewer) -> Any:
    """Return the fields that say what is silenced; those left empty match everything.

    Who may act for some tenants only says for which: a silence without a tenant is one of everybody's incidents.
    """
    kinds = [("", t("incidents.any_kind")), *((kind.value, known("kind", kind.value)) for kind in FindingKind)]
    fields = [
        acts.choice_field("kind", t("col.kind"), kinds, ""),
        *(
            acts.field(name, words, required=False, placeholder="*")
            for name, words in (("node", t("page.node")), ("rack", t("silences.rack")), ("job", t("page.job")))
        ),
    ]
    if not asking.may(Role.OPERATOR):
        own = sorted({one.tenant for one in asking.grants if one.tenant and one.role.covers(Role.OPERATOR)})
        fields.append(acts.choice_field("tenant", t("silences.tenant"), [(one, one) for one in own], own[0], raw=True))
    return html.Div(fields, className="fw-act", **{"data-into": "matchers"})


def register(app: Dash, services: Services) -> None:
    """Add the page's callbacks."""
    reads = IncidentReads(services)
    app.clientside_callback(
        ClientsideFunction("flightwatch_writes", "select"),
        Output("incidents-selected", "children"),
        Input("incidents-grid", "selectedRows"),
        State("incidents-grid", "id"),
    )

    @app.callback(
        Output("incidents-grid", "rowData"),
        Output("incidents-grid", "style"),
        Output("incidents-cards", "children"),
        Output("incidents-note", "children"),
        Output("incidents-more", "children"),
        Output("incidents-problem", "children"),
        Input("view", "data"),
        Input("beat", "data"),
    )
    @safely(6, 5)
    def rows(data: Any, _: Any) -> tuple[Any, ...]:
        view, now_ms = View.of(data), SystemClock().now_ms()
        try:
            page = reads.records.page(filter_of(view), view.get("cursor") or None, PAGE_ROWS)
        except ConfigError:
            page = reads.records.page(filter_of(view), None, PAGE_ROWS)
        found = sorted(page.items, key=lambda one: one.severity.value) if not _over(view) else list(page.items)
        nothing = None if found else _nothing(view)
        note = t("incidents.shown", n=len(found))
        more = _older(view, page.next_cursor) if page.next_cursor else None
        height = {"height": f"{min(640, 64 + 31 * max(2, len(found)))}px"}
        return [_row(one, now_ms) for one in found], height, _cards(found, now_ms), note, more, nothing

    @app.callback(
        Output("incidents-silences", "children"),
        Output("incidents-views", "children"),
        Input("view", "data"),
        Input("beat", "data"),
    )
    @safely(2, 0)
    def beside(data: Any, _: Any) -> tuple[Any, Any]:
        return _silences(reads, View.of(data)), _views(services)

    @app.callback(Output("incidents-view-body", "children"), Input("view", "data"))
    def body(data: Any) -> Any:
        kept = {name: value for name, value in View.of(data).params.items() if name in KEPT}
        return html.Span(
            dcc.Input(name="body", type="hidden", value=json.dumps({"params": kept})), **{"data-as": "json"}
        )


#: Parts of the address that a saved view keeps.
KEPT = ("state", "severity", "kind", "quiet", "q", "node", "job", "assignee")


def _over(view: View) -> bool:
    """Say whether the list shows what is over too: then the newest come first, else the gravest."""
    return view.choice("state", STATES, "active") in ("closed", "all")


def _nothing(view: View) -> Any:
    if any(view.get(name) for name in ("severity", "kind", "quiet", "q", "node", "job", "assignee")):
        return empty(t("incidents.none_match"))
    if view.choice("state", STATES, "active") == "active":
        return empty(t("incidents.none"), t("incidents.none_hint"))
    return empty(t("incidents.none_ever"))


def _older(view: View, cursor: str) -> Any:
    query = urlencode({name: value for name, value in view.params.items() if name != "cursor"} | {"cursor": cursor})
    return html.A(t("incidents.older"), href=link(f"{PATH}?{query}"), className="fw-chip")


def _row(one: Incident, now_ms: int) -> dict[str, Any]:
    address = link(f"{PATH}/{quote(one.id, safe='')}")
    state = t(f"incidents.{one.state.value}")
    if one.silenced_by or one.inhibited_by:
        state += f" · {t('incidents.quiet_short')}"
    return {
        "id": one.id,
        "severity": one.severity.value,
        "said": title_of(one),
        "title": grids.link(title_of(one), address),
        "state": state,
        "kind": known("kind", one.kind),
        "node": one.node or "",
        "job": one.job or "",
        "gpus": amount_text(one.gpus_affected),
        "lost": hours_text(one.lost_gpu_hours),
        "age": age_text((now_ms - one.opened_at_ms) / 1000),
        "assignee": one.assignee or "",
    }


def _cards(found: Sequence[Incident], now_ms: int) -> Any:
    return html.Ul(
        [
            html.Li(
                [
                    severity(one.severity.value),
                    html.A(title_of(one), href=link(f"{PATH}/{quote(one.id, safe='')}"), **{"data-raw": "1"}),
                    html.Div(
                        [
                            t(f"incidents.{one.state.value}"),
                            " · ",
                            age_text((now_ms - one.opened_at_ms) / 1000),
                            *([" · ", one.job] if one.job else []),
                            *([" · ", one.assignee] if one.assignee else []),
                        ],
                        className="fw-dim",
                        **{"data-raw": "1"},
                    ),
                ]
            )
            for one in found
        ],
        className="fw-list",
    )


def _silences(reads: IncidentReads, view: View) -> Any:
    found = [one for one in reads.records.silences() if _mine(one.matchers)]
    if not found:
        return empty(t("silences.none"))
    items = []
    for one in found:
        what = ", ".join(f"{name} = {value}" for name, value in one.matchers.items())
        kind = t(f"silences.{one.kind}")
        head = [html.Strong(kind), " ", html.Span(what, **{"data-raw": "1"})]
        tail = html.Div(
            f"{one.author}: {one.reason} · {t('silences.until', at=view.clock(one.expires_at_ms))}",
            className="fw-dim",
            **{"data-raw": "1"},
        )
        end = acts.act_form(f"/api/v1/silences/{one.id}", [], t("act.end"), data_method="DELETE")
        items.append(html.Li([*head, tail, *([end] if viewer().may_somewhere(Role.OPERATOR) else [])]))
    return html.Ul(items, className="fw-list")


def _mine(matchers: Mapping[str, str]) -> bool:
    tenants = viewer().tenants
    return tenants is None or matchers.get("tenant") in tenants


def _views(services: Services) -> Any:
    if services.control is None:
        return []
    saved = SavedItems(services.control).list("view", viewer().subject)
    shown = [one for one in saved if isinstance(one.body.get("params"), Mapping)]
    return [
        html.A(one.name, href=link(f"{PATH}?{urlencode(one.body['params'])}"), className="fw-chip", **{"data-raw": "1"})
        for one in shown
    ]
