"""The first page: what this installation sees right now, as charts and as a live table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dash_ag_grid as dag
import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, dcc, html

from flightwatch.dashboard.components import graphs
from flightwatch.dashboard.components.text import age_text, amount_text, bytes_text
from flightwatch.dashboard.services import Services
from flightwatch.pipeline.store import page_reads

PATH = "/"
NAME = "This machine"
REFRESH_MS = 2000
STALE_SECONDS = 30.0

#: Chart id, title, unit, and the node columns drawn.
NODE_CHARTS: Sequence[tuple[str, str, str, Mapping[str, str]]] = (
    ("chart-cpu", "CPU busy", "%", {"cpu_pct": "CPU"}),
    ("chart-memory", "Memory in use", "GiB", {"mem_used_bytes": "memory"}),
    ("chart-load", "Load average, 1 min", "", {"load1": "load"}),
    ("chart-disk", "Slowest disk, time per operation", "ms", {"io_read_ms": "read", "io_write_ms": "write"}),
)
GIB = 2**30

COLUMNS: list[dict[str, Any]] = [
    {"field": "source", "headerName": "Source", "width": 130},
    {"field": "label", "headerName": "Reading", "flex": 1, "minWidth": 180},
    {"field": "value", "headerName": "Value", "width": 130, "type": "rightAligned"},
    {"field": "unit", "headerName": "Unit", "width": 110},
    {"field": "status", "headerName": "Says", "width": 110},
    {"field": "age", "headerName": "Age", "width": 90, "type": "rightAligned"},
]


def layout() -> dmc.MantineProvider:
    """Return the page before its first refresh."""
    return dmc.MantineProvider(
        id="theme",
        forceColorScheme="light",
        children=[
            dcc.Location(id="url", refresh=False),
            dcc.Store(id="chosen", data={"node": None, "minutes": 15, "dark": False}),
            dcc.Interval(id="tick", interval=REFRESH_MS),
            dmc.Container(size="xl", px="md", py="sm", children=[_header(), _body()]),
        ],
    )


def _header() -> dmc.Group:
    return dmc.Group(
        justify="space-between",
        mb="sm",
        children=[
            dmc.Group(gap="sm", children=[dmc.Title("Flightwatch", order=1, size="h3"), html.Span(id="live")]),
            dmc.Group(
                gap="xs",
                children=[
                    dmc.Select(id="node", data=[], allowDeselect=False, searchable=True, w=220,
                               **{"aria-label": "Node shown"}),
                    dmc.SegmentedControl(
                        id="minutes",
                        value="15",
                        data=[{"value": "5", "label": "5 min"}, {"value": "15", "label": "15 min"},
                              {"value": "60", "label": "1 h"}, {"value": "360", "label": "6 h"}],
                    ),
                    dmc.Switch(id="dark", label="Dark", checked=False),
                ],
            ),
        ],
    )  # fmt: skip


def _body() -> html.Div:
    charts = [
        dmc.Card(withBorder=True, padding="xs", children=[dmc.Text(title, fw=600, size="sm"), graphs.graph(chart_id)])
        for chart_id, title, _, _ in (*NODE_CHARTS, ("chart-temperature", "Warmest sensors", "C", {}),
                                      ("chart-devices", "Accelerator temperature", "C", {}))
    ]  # fmt: skip
    return html.Div(
        [
            dmc.SimpleGrid(id="figures", cols={"base": 2, "sm": 3, "lg": 6}, mb="sm", children=[]),
            dmc.SimpleGrid(cols={"base": 1, "sm": 2, "lg": 3}, mb="sm", children=charts),
            dmc.Text("Every reading, now", fw=600, size="sm", mb=4),
            dag.AgGrid(
                id="readings",
                columnDefs=COLUMNS,
                rowData=[],
                getRowId="params.data.key",
                defaultColDef={"sortable": True, "filter": True, "resizable": True},
                dashGridOptions={"animateRows": False, "domLayout": "normal"},
                style={"height": "420px"},
            ),
            html.Div(id="notices"),
        ]
    )


def register(app: Dash, services: Services) -> None:
    """Add the page's callbacks to `app`."""

    @app.callback(
        Output("chosen", "data"),
        Output("theme", "forceColorScheme"),
        Output("readings", "className"),
        Input("node", "value"),
        Input("minutes", "value"),
        Input("dark", "checked"),
    )
    def choose(node: str | None, minutes: str, dark: bool) -> tuple[dict[str, Any], str, str]:
        grid = "ag-theme-alpine-dark" if dark else "ag-theme-alpine"
        return {"node": node, "minutes": int(minutes), "dark": bool(dark)}, "dark" if dark else "light", grid

    @app.callback(Output("node", "data"), Output("node", "value"), Input("tick", "n_intervals"), State("node", "value"))
    def nodes(_: int | None, chosen: str | None) -> tuple[list[str], str | None]:
        names = page_reads.node_names(services.store)
        return names, chosen or (names[0] if names else None)

    @app.callback(
        [Output(chart_id, "figure") for chart_id, _, _, _ in NODE_CHARTS]
        + [Output("chart-temperature", "figure"), Output("chart-devices", "figure")],
        Input("tick", "n_intervals"),
        Input("chosen", "data"),
    )
    def charts(_: int | None, chosen: Mapping[str, Any]) -> list[Any]:
        return _charts(services, chosen)

    @app.callback(
        Output("readings", "rowData"),
        Output("figures", "children"),
        Output("live", "children"),
        Output("notices", "children"),
        Input("tick", "n_intervals"),
        Input("chosen", "data"),
    )
    def table(_: int | None, chosen: Mapping[str, Any]) -> tuple[list[dict[str, Any]], list[Any], Any, list[Any]]:
        readings = page_reads.latest_readings(services.store, chosen["node"]) if chosen["node"] else []
        status = services.status()
        return [_grid_row(row) for row in readings], _figures(status), _live(status), _notices(status, readings)


def _charts(services: Services, chosen: Mapping[str, Any]) -> list[Any]:
    node, minutes, dark = chosen["node"], chosen["minutes"], chosen["dark"]
    if not node:
        return [graphs.lines({}, unit="", dark=dark, empty_text="Waiting for the first rows") for _ in range(6)]
    columns = [column for _, _, _, wanted in NODE_CHARTS for column in wanted]
    times, values = page_reads.node_series(services.store, node, columns, minutes)
    figures = []
    for _, _, unit, wanted in NODE_CHARTS:
        series = {}
        for column, name in wanted.items():
            cells = values[column]
            if unit == "GiB":
                cells = [None if cell is None else cell / GIB for cell in cells]
            series[name] = (times, cells)
        figures.append(graphs.lines(series, unit=unit, dark=dark, empty_text="Not measured on this machine"))
    warmest = page_reads.warmest_sensors(services.store, node, minutes)
    figures.append(
        graphs.lines(warmest, unit="C", dark=dark, zero=False, empty_text="No temperature sensor on this machine")
    )
    devices = page_reads.device_temperatures(services.store, node, minutes)
    figures.append(graphs.lines(devices, unit="C", dark=dark, zero=False, empty_text="No accelerator on this machine"))
    return figures


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
        "unit": unit,
        "status": row["status"] or "",
        "age": age_text(row["age_seconds"]),
    }


def _figures(status: Mapping[str, Any]) -> list[Any]:
    lag = status["lag_seconds"]
    shown = (
        (
            "Nodes reporting",
            amount_text(status["coverage"]["nodes_reporting"]),
            f"of {status['coverage']['nodes_known']} known",
        ),
        ("Accelerators", amount_text(status["coverage"]["devices_reporting"]), "reporting in the last minute"),
        ("Rows per second", amount_text(status["rows_per_second"]), "stored, last minute"),
        ("Behind", "unknown" if lag is None else age_text(lag), "oldest row not stored yet"),
        ("Holes, 24 h", amount_text(status["data_gaps_24h"]), "batches known to be missing"),
        ("On disk", bytes_text(status["disk"]["used_bytes"]), f"{bytes_text(status['disk']['free_bytes'])} free"),
    )
    return [
        dmc.Card(
            withBorder=True,
            padding="xs",
            children=[
                dmc.Text(title, size="xs", c="dimmed"),
                dmc.Text(value, fw=700, size="xl"),
                dmc.Text(note, size="xs", c="dimmed"),
            ],
        )
        for title, value, note in shown
    ]


def _live(status: Mapping[str, Any]) -> Any:
    age = status["newest_row_age_seconds"]
    if age is None:
        return dmc.Badge("no rows yet", color="gray", variant="light")
    if age > STALE_SECONDS:
        return dmc.Badge(f"stale: newest row is {age_text(age)} old", color="red", variant="filled")
    return dmc.Badge(f"live, {age_text(age)} ago", color="teal", variant="light")


def _notices(status: Mapping[str, Any], readings: Sequence[Mapping[str, Any]]) -> list[Any]:
    texts = list(status["notices"])
    if not status["coverage"]["devices_reporting"]:
        texts.append(
            "No accelerator reports. On a node with accelerators, install the vendor's library beside the agent."
        )
    if not readings:
        texts.append("No readings from this node yet: the agent needs a few seconds after its start.")
    return [dmc.Alert(text, color="gray", variant="light", mt="xs") for text in texts]
