"""Node: its series over one axis of time, what runs on it, what happened to it, every reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from dash import Dash, Input, Output, html

from flightwatch.core.clock import SystemClock
from flightwatch.core.throttle import ThrottleReason
from flightwatch.dashboard.components import controls, graphs, grids
from flightwatch.dashboard.components.absent import absent
from flightwatch.dashboard.components.finding_list import change_list
from flightwatch.dashboard.components.panels import empty, failure, panel, quality, table, unknown, zone_note
from flightwatch.dashboard.components.remembered import Remembered
from flightwatch.dashboard.components.request import link
from flightwatch.dashboard.components.safely import safely
from flightwatch.dashboard.components.text import age_text, amount_text, bytes_text, micros_text
from flightwatch.dashboard.components.view import View
from flightwatch.dashboard.i18n import t
from flightwatch.dashboard.pages import node_series
from flightwatch.dashboard.pages.node_series import node_of
from flightwatch.dashboard.services import Services
from flightwatch.pipeline.store import machine_reads, node_reads
from flightwatch.pipeline.store.client import Store

PATH = "/nodes/<name>"
NAME = "page.node"
IN_MENU = False
KEY = ""

READINGS_PX = 420
#: How people write units that the tables write in letters.
SIGNS = {"C": "°C", "us": "µs", "C/s": "°C/s", "pct": "%"}
#: Events listed beside the series.
MOST_EVENTS = 200
IDLE = ThrottleReason.IDLE | ThrottleReason.APPLICATION_CLOCKS | ThrottleReason.SYNC_BOOST


def layout(view: View, services: Services) -> Any:
    """Return the page."""
    name = view.captured["name"]
    nobody = absent(services.store, "node", name)
    if nobody is not None:
        return nobody
    columns = [
        {"field": "source", "headerName": t("reading.source"), "width": 150},
        {"field": "label", "headerName": t("reading.label"), "flex": 2, "minWidth": 180, "tooltipField": "label"},
        {"field": "value", "headerName": t("reading.value"), "width": 130, "type": "rightAligned"},
        {"field": "unit", "headerName": t("reading.unit"), "width": 100},
        {"field": "status", "headerName": t("reading.status"), "width": 110},
        {"field": "age", "headerName": t("reading.age"), "width": 90, "type": "rightAligned"},
    ]
    return html.Div(
        [
            html.Div(
                [
                    html.H1(name, **{"data-raw": "1"}),
                    html.Div(id="node-facts", className="fw-facts"),
                    html.Div(id="node-devices-chips", className="fw-tools"),
                ],
                className="fw-title",
            ),
            html.Div(
                [
                    html.Div(
                        [
                            panel(
                                t("node.devices"),
                                graphs.graph("node-series", height_px=480),
                                note="node-series-note",
                                panel_id="node-series-panel",
                            ),
                            panel(t("node.host"), graphs.graph("node-host", height_px=420), note="node-host-note"),
                        ]
                    ),
                    html.Div(
                        [
                            panel(t("node.now"), html.Div(id="node-now")),
                            panel(t("node.ranks"), html.Div(id="node-ranks")),
                            panel(
                                t("node.history"),
                                html.Div(id="node-history", className="fw-scroll", tabIndex="0"),
                                note=zone_note(view),
                            ),
                        ]
                    ),
                ],
                className="fw-side",
            ),
            panel(
                t("node.readings"),
                html.Div(id="readings-failure"),
                grids.grid("readings", columns, height_px=READINGS_PX, row_id="params.data.key", filters=True),
                note="readings-note",
            ),
        ]
    )


def register(app: Dash, services: Services) -> None:
    """Add the page's callbacks."""
    store, remembered = services.store, Remembered(1.5)
    _register_now(app, store, remembered)
    _register_series(app, store)
    _register_host(app, store)
    _register_beside(app, store)

    @app.callback(
        Output("readings", "rowData"),
        Output("readings-note", "children"),
        Output("readings-failure", "children"),
        Output("readings", "style"),
        Input("view", "data"),
        Input("beat", "data"),
    )
    @safely(4, 2)
    def readings(data: Any, _: Any) -> tuple[Any, Any, Any, Any]:
        return _readings(store, node_of(store, View.of(data)))


def _register_now(app: Dash, store: Store, remembered: Remembered) -> None:
    @app.callback(
        Output("node-facts", "children"),
        Output("node-devices-chips", "children"),
        Output("node-now", "children"),
        Input("view", "data"),
        Input("beat", "data"),
    )
    @safely(3, 2)
    def now(data: Any, _: Any) -> tuple[Any, Any, Any]:
        view = View.of(data)
        name = node_of(store, view)
        found = remembered.get(("devices", name), lambda: node_reads.devices(store, name))
        facts = remembered.get(("facts", name), lambda: node_reads.facts(store, name, SystemClock().now_ms()), 30.0)
        return _facts(facts), _chips(view, found), _devices(found)


def _register_series(app: Dash, store: Store) -> None:
    @app.callback(
        Output("node-series", "figure"),
        Output("node-series", "style"),
        Output("node-series-note", "children"),
        Input("view", "data"),
        Input("beat", "data"),
    )
    @safely(3, 2)
    def series(data: Any, _: Any) -> tuple[Any, Any, Any]:
        view = View.of(data)
        window = view.window(SystemClock().now_ms())
        strips, age, count = node_series.device_strips(store, view, window)
        strips = node_series.step_strips(store, view, window) + strips
        if not strips:
            return graphs.lines({}, unit="", empty_text=t("node.no_devices")), {"height": "120px"}, ""
        marks = node_series.marks(store, view, window)
        figure = graphs.strips(strips, (view.local(window.start_ms), view.local(window.end_ms)), marks)
        return (
            figure,
            {"height": f"{max(160, 96 * len(strips) + 50)}px"},
            quality(age, count, None, t("unit.devices"), fixed=not window.live) if count else "",
        )


def _register_host(app: Dash, store: Store) -> None:
    @app.callback(
        Output("node-host", "figure"),
        Output("node-host", "style"),
        Output("node-host-note", "children"),
        Input("view", "data"),
        Input("beat", "data"),
    )
    @safely(3, 2)
    def host(data: Any, _: Any) -> tuple[Any, Any, Any]:
        view = View.of(data)
        window = view.window(SystemClock().now_ms())
        strips, age = node_series.host_strips(store, view, window)
        if not strips:
            return graphs.lines({}, unit="", empty_text=t("node.no_host")), {"height": "120px"}, ""
        figure = graphs.strips(
            strips,
            (view.local(window.start_ms), view.local(window.end_ms)),
            node_series.marks(store, view, window, words=False),
        )
        return figure, {"height": f"{max(160, 84 * len(strips) + 50)}px"}, quality(age, fixed=not window.live)


def _register_beside(app: Dash, store: Store) -> None:
    @app.callback(
        Output("node-ranks", "children"),
        Output("node-history", "children"),
        Input("view", "data"),
        Input("beat", "data"),
    )
    @safely(2, 0)
    def beside(data: Any, _: Any) -> tuple[Any, Any]:
        view = View.of(data)
        window = view.window(SystemClock().now_ms())
        ranks = node_series.ranks_of(store, view)
        events = node_series.history_of(store, view, window)[:MOST_EVENTS]
        shown = change_list(events, view) if events else empty(t("node.no_history"))
        return _ranks(ranks), shown


def _readings(store: Store, name: str) -> tuple[list[dict[str, Any]], Any, Any, Any]:
    rows = machine_reads.latest_readings(store, name)
    ages = [row["age_seconds"] for row in rows if row["age_seconds"] is not None]
    note = quality(min(ages) if ages else None, len(rows), None, t("unit.readings"))
    # Not taken away: the grid fits its columns to its width.
    style = {"height": f"{READINGS_PX}px"} if rows else {"height": "0", "visibility": "hidden"}
    return [_grid_row(row) for row in rows], note, None if rows else failure_or_hint(name), style


def failure_or_hint(name: str) -> Any:
    """Return what is said when a node told nothing in the last two minutes."""
    return empty(t("node.silent", name=name), html.A(t("page.setup"), href=link("/setup"))) if name else failure("")


def _grid_row(row: Mapping[str, Any]) -> dict[str, Any]:
    value, unit = row["value"], row["unit"]
    if unit == "bytes" and value is not None:
        shown, _, unit = bytes_text(value).rpartition(" ")
    else:
        shown = amount_text(value)
    return {
        "key": f"{row['source']}|{row['label']}|{row['unit']}",
        "source": row["source"],
        "label": row["label"],
        "value": shown,
        "unit": SIGNS.get(unit, unit),
        "status": row["status"] or "",
        "age": age_text(row["age_seconds"]),
    }


def _facts(facts: Mapping[str, Any]) -> list[Any]:
    if not facts["parts"]:
        return [html.Span(t("node.no_inventory"), className="fw-dim")]
    names = ("rack", "cooling_zone", "power_zone", "leaf_switch", "serial")
    return [
        html.Span([html.Span(t(f"fact.{name}"), className="fw-dim"), html.B(facts[name], **{"data-raw": "1"})])
        for name in names
        if facts[name]
    ]


def _chips(view: View, found: Sequence[Mapping[str, Any]]) -> list[Any]:
    if not found:
        return []
    chosen = view.number("device")
    chips = [controls.set_button(t("node.all_devices"), '{"device": null}', pressed=chosen is None)]
    return chips + [
        controls.set_button(
            str(row["device"]),
            f'{{"device": "{row["device"]}"}}',
            pressed=chosen == row["device"],
            **{"aria-label": t("js.device", n=row["device"])},
        )
        for row in found
    ]


def _devices(found: Sequence[Mapping[str, Any]]) -> Any:
    if not found:
        return empty(t("node.no_devices"), t("node.no_devices_hint"))
    never = unknown(t("js.not_measured"))
    rows = []
    for row in found:
        errors = [row[name] for name in ("ecc_corrected_total", "ecc_uncorrected_total")]
        held = ThrottleReason(row["throttle_reasons"] or 0) & ~IDLE
        rows.append(
            [
                row["device"],
                never if row["temp_c"] is None else f"{row['temp_c']:.0f}",
                never if row["power_w"] is None else f"{row['power_w']:.0f}",
                never if row["sm_clock_mhz"] is None else f"{row['sm_clock_mhz']:.0f}",
                never if errors == [None, None] else "/".join(amount_text(one) for one in errors),
                html.Span(", ".join(one.name or "" for one in held).lower().replace("_", " "), className="fw-warn"),
                html.Span(age_text(row["age_s"]), className="fw-stale" if row["age_s"] > 60 else "fw-dim"),
            ]
        )
    heads = [
        t("col.device"),
        html.Span("°C", title=t("metric.temp_c")),
        html.Span("W", title=t("metric.power_w")),
        html.Span("MHz", title=t("metric.sm_clock_mhz")),
        t("col.ecc"),
        t("col.held"),
        t("reading.age"),
    ]
    model = html.P(
        " · ".join(sorted({f"{row['vendor']} {row['model'] or ''}".strip() for row in found})),
        className="fw-dim",
        **{"data-raw": "1"},
    )
    return html.Div([model, table(heads, rows, numeric=(1, 2, 3, 4), label=t("node.now"))])


def _ranks(ranks: Sequence[Mapping[str, Any]]) -> Any:
    if not ranks:
        return empty(t("node.no_ranks"))
    rows = [
        [
            html.A(row["job"], href=link(f"/jobs/{quote(row['job'], safe='')}"), **{"data-raw": "1"}),
            row["rank"],
            unknown(t("rank.no_device")) if row["device"] is None else row["device"],
            f"{row['step']:,}",
            micros_text(row["step_us"]),
            html.Span(age_text(row["age_seconds"]), className="fw-dim"),
        ]
        for row in ranks[:64]
    ]
    heads = [t("page.job"), t("col.rank"), t("col.device"), t("col.step"), t("channel.step_us"), t("reading.age")]
    return table(heads, rows, numeric=(1, 2, 3, 4), label=t("node.ranks"))
