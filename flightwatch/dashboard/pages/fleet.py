"""Fleet: every accelerator on one map, what is wrong, what changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from dash import Dash, Input, Output, State, html, no_update

from flightwatch.core.clock import SystemClock
from flightwatch.dashboard.components import controls, fleet_view
from flightwatch.dashboard.components.canvas import FleetMap
from flightwatch.dashboard.components.finding_list import change_list, finding_list
from flightwatch.dashboard.components.fleet_source import FleetSource, OpenIncidents
from flightwatch.dashboard.components.panels import (
    empty,
    figure_tile,
    panel,
    quality,
    severity,
    tiles,
    unknown,
    waiting_tiles,
    zone_note,
)
from flightwatch.dashboard.components.request import link
from flightwatch.dashboard.components.safely import safely
from flightwatch.dashboard.components.sentences import title_of
from flightwatch.dashboard.components.text import age_text, amount_text, percent_text
from flightwatch.dashboard.components.view import View
from flightwatch.dashboard.i18n import t
from flightwatch.dashboard.services import Services

PATH = "/"
NAME = "page.fleet"
IN_MENU = True
KEY = "f"

GROUPS = ("rack", "cooling_zone", "power_zone", "leaf_switch", "job", "cluster")
#: Metrics beside the map's title; the others are in the menu.
FIRST = ("temp_c", "power_w", "util_pct", "slowness", "findings", "ecc_per_h")
MAP_HEIGHT_PX = 560
#: Incidents or findings listed beside the map.
SHOWN = 40


def layout(view: View, services: Services) -> Any:
    """Return the page."""
    metrics = [(name, t(f"metric.{name}")) for name in FIRST]
    others = [(name, t(f"metric.{name}")) for name in fleet_view.METRICS]
    tools = [
        controls.select(view, "metric", others, t("fleet.metric"), "temp_c"),
        controls.select(view, "group", [(name, t(f"group.{name}")) for name in GROUPS], t("fleet.group")),
        controls.search(view, label=t("fleet.search")),
    ]
    chips = html.Div(
        [
            controls.set_button(words, f'{{"metric": "{name}"}}', pressed=view.get("metric", "temp_c") == name)
            for name, words in metrics
        ],
        className="fw-tools",
        id="fleet-chips",
    )
    return html.Div(
        [
            html.Div([html.H1(t("page.fleet")), chips, html.Div(tools, className="fw-tools")], className="fw-title"),
            html.Div(waiting_tiles(8), id="fleet-tiles"),
            html.Div(id="fleet-first"),
            html.Div(
                [
                    panel(
                        t("fleet.map"),
                        FleetMap(id="fleet-map", height=MAP_HEIGHT_PX, search=view.get("q")),
                        html.Div(id="fleet-legend", className="fw-legend"),
                        note="fleet-note",
                    ),
                    html.Div(
                        [
                            panel(
                                t("fleet.incidents") if services.control is not None else t("fleet.findings"),
                                html.Div(id="fleet-findings", className="fw-scroll", tabIndex="0"),
                                note="fleet-findings-note",
                            ),
                            panel(
                                t("fleet.changes"),
                                html.Div(id="fleet-changes", className="fw-scroll", tabIndex="0"),
                                note=zone_note(view),
                            ),
                        ]
                    ),
                ],
                className="fw-side fw-news-first",
            ),
        ]
    )


def register(app: Dash, services: Services) -> None:
    """Add the page's callbacks."""
    fleet = FleetSource(services)
    _register_map(app, fleet)
    _register_beside(app, fleet)

    @app.callback(
        Output("fleet-tiles", "children"),
        Output("fleet-first", "children"),
        Input("view", "data"),
        Input("beat", "data"),
    )
    @safely(2, 0)
    def figures(data: Any, _: Any) -> tuple[Any, Any]:
        status = services.status()
        cover = fleet.coverage(status["coverage"])
        return _tiles(status, cover, fleet), _first_steps(status, cover)


def _register_map(app: Dash, fleet: FleetSource) -> None:
    @app.callback(
        Output("fleet-map", "layout"),
        Output("fleet-map", "values"),
        Output("fleet-note", "children"),
        Output("fleet-legend", "children"),
        Output("fleet-chips", "children"),
        Input("view", "data"),
        Input("beat", "data"),
        State("fleet-map", "layout"),
    )
    @safely(5, 2)
    def draw(data: Any, _: Any, present: Mapping[str, Any] | None) -> tuple[Any, ...]:
        view = View.of(data)
        metric = view.choice("metric", fleet_view.METRICS, "temp_c")
        arrangement = fleet.arrangement(view.choice("group", GROUPS, "rack"))
        values = fleet.drawn(metric, arrangement)
        same = present is not None and present.get("key") == arrangement.payload["key"]
        chips = [
            controls.set_button(t(f"metric.{name}"), f'{{"metric": "{name}"}}', pressed=metric == name)
            for name in FIRST
        ]
        known = values.devices - values.unknown
        note = quality(values.oldest_of_fresh_s, known, values.devices, t("unit.targets"))
        return no_update if same else arrangement.payload, values.payload, note, _legend(metric, values), chips

    app.clientside_callback(
        "function(view) { return (view && view.params && view.params.q) || ''; }",
        Output("fleet-map", "search"),
        Input("view", "data"),
    )


def _register_beside(app: Dash, fleet: FleetSource) -> None:
    @app.callback(
        Output("fleet-findings", "children"),
        Output("fleet-changes", "children"),
        Output("fleet-findings-note", "children"),
        Input("view", "data"),
        Input("beat", "data"),
    )
    @safely(3, 0)
    def beside(data: Any, _: Any) -> tuple[Any, Any, str]:
        view, now_ms = View.of(data), SystemClock().now_ms()
        changes = fleet.changes()
        changed = change_list(changes, view) if changes else empty(t("fleet.no_changes"))
        incidents, findings = fleet.incidents(), fleet.findings()
        count = len(findings) if incidents is None else len(incidents.items)
        shown = None if incidents is None else _incidents(incidents, now_ms)
        if shown is None:
            shown = finding_list(findings[:SHOWN], view, now_ms) if findings else empty(t("fleet.no_findings"))
        return shown, changed, amount_text(count) if count else ""


def _incidents(found: OpenIncidents, now_ms: int) -> Any:
    """Return open incidents, the worst first."""
    if not found.items:
        return empty(t("fleet.no_incidents"))
    items = []
    for one in found.items[:SHOWN]:
        about = [t(f"incidents.{one.state.value}"), age_text((now_ms - one.opened_at_ms) / 1000)]
        about += [one.assignee] if one.assignee else []
        items.append(
            html.Li(
                [
                    severity(one.severity.value),
                    html.A(title_of(one), href=link(f"/incidents/{quote(one.id, safe='')}"), **{"data-raw": "1"}),
                    html.Div(" · ".join(about), className="fw-dim", **{"data-raw": "1"}),
                ]
            )
        )
    return html.Ul(items, className="fw-list")


def _legend(metric: str, values: fleet_view.Drawn) -> list[Any]:
    payload = values.payload
    unit = f" {payload['unit']}" if payload["unit"] else ""
    ends = (amount_text(round(payload["low"], 2)) + unit, amount_text(round(payload["high"], 2)) + unit)
    if metric == "findings":
        ends = (t("fleet.none"), "P1")
    items = [
        html.Span(
            [ends[0], html.Span(className="fw-ramp", **{"data-ramp": payload["ramp"]}), ends[1]],
            **{"data-raw": "1"},
        ),
        html.Span([html.Span(className="fw-key"), t("fleet.unknown", n=amount_text(values.unknown))]),
    ]
    if values.stale:
        items.append(html.Span([html.Span(className="fw-key hole"), t("fleet.stale", n=amount_text(values.stale))]))
    if fleet_view.METRICS[metric].spread:
        items.append(
            html.Span(
                [html.Span(className="fw-key frame"), t("fleet.outliers", n=amount_text(values.outliers))],
                title=t("fleet.outliers_how"),
            )
        )
    return items


def _tiles(status: Mapping[str, Any], cover: Mapping[str, int], fleet: FleetSource) -> Any:
    silent = cover["nodes_known"] - cover["nodes_reporting"]
    nodes_note = t("tile.nodes_silent", n=amount_text(silent)) if silent > 0 else t("tile.nodes_all")
    nodes_note = nodes_note if cover["nodes_known"] else t("tile.nodes_none")
    share, lost = fleet.goodput(), fleet.lost_today()
    return tiles(
        [
            figure_tile(t("tile.devices"), amount_text(cover["devices_reporting"]), t("tile.last_minute")),
            figure_tile(
                t("tile.nodes"), amount_text(cover["nodes_reporting"]), nodes_note, tone="warn" if silent > 0 else ""
            ),
            *_severity_tiles(fleet),
            figure_tile(t("tile.jobs"), amount_text(fleet.jobs()), t("tile.jobs_note"), href=link("/jobs")),
            figure_tile(
                t("tile.goodput"),
                unknown(t("tile.no_goodput")) if share is None else percent_text(share),
                t("tile.no_goodput") if share is None else t("tile.goodput_note"),
            ),
            figure_tile(
                t("tile.lost"),
                unknown(t("tile.no_lost")) if lost is None else amount_text(round(lost, 1)),
                t("tile.no_lost") if lost is None else t("tile.lost_note"),
            ),
            _newest_tile(status),
        ]
    )


def _severity_tiles(fleet: FleetSource) -> list[Any]:
    incidents = fleet.incidents()
    if incidents is None:
        findings = fleet.findings()
        counts = {word: sum(1 for one in findings if one["severity"] == word) for word in ("P1", "P2")}
        note, href = t("tile.open_findings"), ""
    else:
        counts, note, href = incidents.by_severity, t("tile.open_incidents"), "/incidents?severity="
    return [
        figure_tile(
            word,
            amount_text(counts.get(word, 0)),
            note,
            tone=tone if counts.get(word) else "",
            href=link(f"{href}{word}") if href else "",
        )
        for word, tone in (("P1", "bad"), ("P2", "warn"))
    ]


def _newest_tile(status: Mapping[str, Any]) -> Any:
    age, lag = status["newest_row_age_seconds"], status["lag_seconds"]
    return figure_tile(
        t("tile.newest"),
        age_text(age) if age is not None else unknown(t("tile.no_rows")),
        t("tile.behind", lag=age_text(lag)) if lag is not None else t("tile.behind_unknown"),
        tone="bad" if age is not None and age > fleet_view.STALE_SECONDS else "",
    )


def _first_steps(status: Mapping[str, Any], cover: Mapping[str, int]) -> Any:
    """Say what is missing while nothing reports; the page Setup says it in full."""
    parts = [html.Div(note, className="fw-warn", **{"data-raw": "1"}) for note in status["notices"]]
    if not cover["nodes_reporting"]:
        parts.append(html.Span([t("fleet.nobody"), " ", html.A(t("page.setup"), href=link("/setup"))]))
    elif not cover["devices_reporting"]:
        parts.append(html.Span([t("fleet.no_devices"), " ", html.A(t("page.setup"), href=link("/setup"))]))
    return html.Div(parts, className="fw-panel", role="note") if parts else None
