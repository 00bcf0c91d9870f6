"""Fleet: every accelerator on one map, what is wrong, what changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import Dash, Input, Output, State, html, no_update

from flightwatch.core.clock import SystemClock
from flightwatch.dashboard.components import controls, fleet_view
from flightwatch.dashboard.components.canvas import FleetMap
from flightwatch.dashboard.components.finding_list import change_list, finding_list
from flightwatch.dashboard.components.panels import empty, figure_tile, panel, quality, tiles, unknown
from flightwatch.dashboard.components.remembered import Remembered
from flightwatch.dashboard.components.request import link
from flightwatch.dashboard.components.safely import safely
from flightwatch.dashboard.components.text import age_text, amount_text
from flightwatch.dashboard.components.view import View
from flightwatch.dashboard.i18n import t
from flightwatch.dashboard.services import Services
from flightwatch.pipeline.store import reads_fleet

PATH = "/"
NAME = "page.fleet"
IN_MENU = True
KEY = "f"

GROUPS = ("rack", "cooling_zone", "power_zone", "leaf_switch", "job", "cluster")
#: Metrics beside the map's title; the others are in the menu.
FIRST = ("temp_c", "power_w", "util_pct", "slowness", "findings", "ecc_per_h")
CHANGES_SECONDS = 3600
MAP_HEIGHT_PX = 560
#: The roster changes rarely; what pages ask for within a refresh is read once.
ROSTER_SECONDS, VALUES_SECONDS = 30.0, 1.5


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
            html.Div(tiles([]), id="fleet-tiles"),
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
                            panel(t("fleet.findings"), html.Div(id="fleet-findings", className="fw-scroll"),
                                  note="fleet-findings-note"),
                            panel(t("fleet.changes"), html.Div(id="fleet-changes", className="fw-scroll")),
                        ]
                    ),
                ],
                className="fw-side",
            ),
        ]
    )  # fmt: skip


def register(app: Dash, services: Services) -> None:
    """Add the page's callbacks."""
    fleet = FleetReads(services)

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
        values = fleet.values(metric, arrangement)
        same = present is not None and present.get("key") == arrangement.payload["key"]
        chips = [
            controls.set_button(t(f"metric.{name}"), f'{{"metric": "{name}"}}', pressed=metric == name)
            for name in FIRST
        ]
        known = values.devices - values.unknown
        note = quality(values.oldest_of_fresh_s, known, values.devices, t("unit.targets"))
        return no_update if same else arrangement.payload, values.payload, note, _legend(metric, values), chips

    @app.callback(Output("fleet-map", "search"), Input("view", "data"))
    def search(data: Any) -> str:
        return View.of(data).get("q")

    @app.callback(
        Output("fleet-tiles", "children"),
        Output("fleet-first", "children"),
        Input("view", "data"),
        Input("beat", "data"),
    )
    @safely(2, 0)
    def figures(data: Any, _: Any) -> tuple[Any, Any]:
        status = services.status()
        return _tiles(status, fleet.findings(), fleet.jobs()), _first_steps(status)

    @app.callback(
        Output("fleet-findings", "children"), Output("fleet-changes", "children"),
        Output("fleet-findings-note", "children"), Input("view", "data"), Input("beat", "data"),
    )  # fmt: skip
    @safely(3, 0)
    def beside(data: Any, _: Any) -> tuple[Any, Any, str]:
        view = View.of(data)
        findings = fleet.findings()
        changes = fleet.remembered.get("changes", lambda: reads_fleet.recent_changes(services.store, CHANGES_SECONDS))
        now_ms = SystemClock().now_ms()
        shown = finding_list(findings[:40], view, now_ms) if findings else empty(t("fleet.no_findings"))
        changed = change_list(changes, view) if changes else empty(t("fleet.no_changes"))
        return shown, changed, amount_text(len(findings)) if findings else ""


class FleetReads:
    """Reads of the fleet, shared by all who look at it."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.remembered = Remembered(VALUES_SECONDS)
        self._slow = Remembered(ROSTER_SECONDS)

    def roster(self) -> reads_fleet.Roster:
        """Return who belongs to the fleet, at most half a minute old; at most 3 s while it is empty."""
        read = lambda: reads_fleet.roster(self._services.store, SystemClock().now_ms())  # noqa: E731
        found = self._slow.get("roster", read)
        return found if len(found.keys) else self._slow.get("roster", read, 3.0)

    def arrangement(self, place: str) -> fleet_view.Arrangement:
        """Return the fleet in blocks."""
        roster = self.roster()
        unknown_words = t("place.no_job") if place == "job" else t("place.unknown")
        return self._slow.get(
            (place, id(roster), unknown_words), lambda: fleet_view.arrange(roster, place, unknown_words)
        )

    def findings(self) -> list[dict[str, Any]]:
        """Return open findings."""
        return self.remembered.get("findings", lambda: reads_fleet.open_findings(self._services.store))

    def jobs(self) -> int:
        """Return how many jobs stepped in the last minutes."""
        return self.remembered.get("jobs", lambda: reads_fleet.running_jobs(self._services.store))

    def values(self, metric: str, arrangement: fleet_view.Arrangement) -> fleet_view.Drawn:
        """Return what the map draws for a metric."""
        found = self.remembered.get(("values", metric), lambda: self._read(metric))
        severities = fleet_view.worst_by_target(self.findings()) if metric == "findings" else {}
        return fleet_view.drawn(self.roster(), arrangement, metric, t(f"metric.{metric}"), found, severities)

    def _read(self, metric: str) -> reads_fleet.DeviceValues:
        store = self._services.store
        if metric in reads_fleet.DEVICE_METRICS:
            return reads_fleet.newest_values(store, metric)
        if metric in reads_fleet.COUNTER_METRICS:
            return reads_fleet.counter_growth(store, metric)
        if metric == "slowness":
            return reads_fleet.step_slowness(store)
        if metric == "cpu_pct":
            return reads_fleet.host_values(store)
        devices, hosts = reads_fleet.newest_values(store, "temp_c"), reads_fleet.host_values(store)
        return reads_fleet.joined(devices, hosts)


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
        items.append(html.Span([html.Span(className="fw-key frame"), t("fleet.outliers", n=amount_text(values.outliers))],
                               title=t("fleet.outliers_how")))  # fmt: skip
    return items


def _tiles(status: Mapping[str, Any], findings: list[dict[str, Any]], jobs: int) -> Any:
    cover = status["coverage"]
    by_severity = {word: sum(1 for one in findings if one["severity"] == word) for word in ("P1", "P2", "P3")}
    silent = cover["nodes_known"] - cover["nodes_reporting"]
    age = status["newest_row_age_seconds"]
    lag = status["lag_seconds"]
    return tiles(
        [
            figure_tile(t("tile.devices"), amount_text(cover["devices_reporting"]), t("tile.last_minute")),
            figure_tile(t("tile.nodes"), amount_text(cover["nodes_reporting"]),
                        t("tile.nodes_silent", n=amount_text(silent)) if silent else t("tile.nodes_all"),
                        tone="warn" if silent else ""),
            figure_tile("P1", amount_text(by_severity["P1"]), t("tile.open_findings"), tone="bad" if by_severity["P1"] else ""),
            figure_tile("P2", amount_text(by_severity["P2"]), t("tile.open_findings"), tone="warn" if by_severity["P2"] else ""),
            figure_tile(t("tile.jobs"), amount_text(jobs), t("tile.jobs_note"), href=link("/jobs")),
            figure_tile(t("tile.newest"), age_text(age) if age is not None else unknown(t("tile.no_rows")),
                        t("tile.behind", lag=age_text(lag)) if lag is not None else t("tile.behind_unknown"),
                        tone="bad" if age is not None and age > 60 else ""),
        ]
    )  # fmt: skip


def _first_steps(status: Mapping[str, Any]) -> Any:
    """Say what is missing while nothing reports; the page Setup says it in full."""
    cover = status["coverage"]
    parts = [html.Div(note, className="fw-warn", **{"data-raw": "1"}) for note in status["notices"]]
    if not cover["nodes_reporting"]:
        parts.append(html.Span([t("fleet.nobody"), " ", html.A(t("page.setup"), href=link("/setup"))]))
    elif not cover["devices_reporting"]:
        parts.append(html.Span([t("fleet.no_devices"), " ", html.A(t("page.setup"), href=link("/setup"))]))
    return html.Div(parts, className="fw-panel", role="note") if parts else None
