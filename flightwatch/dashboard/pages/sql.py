"""SQL: one SELECT through the guard, its result as a table and a chart, with a link that holds the query."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html

from flightwatch.core.catalogue import TABLES
from flightwatch.core.errors import FlightwatchError
from flightwatch.dashboard.access.control import AccessControl
from flightwatch.dashboard.access.settings import AccessSettings
from flightwatch.dashboard.api.parts import Parts
from flightwatch.dashboard.api.sql import audited
from flightwatch.dashboard.components import controls, graphs, grids
from flightwatch.dashboard.components.canvas import SqlEditor
from flightwatch.dashboard.components.panels import empty, failure, panel
from flightwatch.dashboard.components.request import viewer
from flightwatch.dashboard.components.text import amount_text
from flightwatch.dashboard.components.view import View
from flightwatch.dashboard.i18n import t
from flightwatch.dashboard.pages.sql_examples import EXAMPLES
from flightwatch.dashboard.services import Services
from flightwatch.pipeline.control.roles import Role
from flightwatch.pipeline.store import schema_reads
from flightwatch.pipeline.store.guard import ADMIN_TABLES, VIEWER_TABLES
from flightwatch.pipeline.store.people import People
from flightwatch.pipeline.store.row_scope import TENANT_TABLES, scope_of

PATH = "/sql"
NAME = "page.sql"
IN_MENU = True
KEY = "s"

FIRST_QUERY = """SELECT node, device, temp_c, power_w, round(age_s, 1) AS age_s
FROM flightwatch.v_device_latest
ORDER BY temp_c DESC NULLS LAST
LIMIT 50"""
#: Rows that a page draws; downloads have them all.
MOST_ROWS = 5000
CHARTS = ("none", "line", "bar")


def layout(view: View, services: Services) -> Any:
    """Return the page."""
    schema = schema_reads.columns(services.store, _tables())
    actions = html.Div(
        [
            html.Button(t("sql.run"), id="sql-run", className="fw-button primary", n_clicks=0),
            html.Span([html.Kbd("Ctrl"), html.Kbd("Enter")], className="fw-dim"),
            *[
                html.Button(words, className="fw-button", **{"data-action": "sql-download", "data-format": form})
                for form, words in (("csv", "CSV"), ("parquet", "Parquet"))
            ],
            html.Button(t("copy_link"), className="fw-button", **{"data-action": "copy-link"}),
            html.Span(id="sql-note", className="fw-note", role="status"),
        ],
        className="fw-tools",
        style={"marginTop": "8px"},
    )
    return html.Div(
        [
            html.Div([html.H1(t("page.sql")), html.Span(t("sql.dialect"), className="fw-dim")], className="fw-title"),
            html.Div(
                [
                    html.Div(
                        [
                            panel(
                                t("sql.query"),
                                SqlEditor(
                                    id="sql-editor",
                                    value=view.get("query", FIRST_QUERY),
                                    schema=schema,
                                    label=t("sql.query"),
                                ),
                                actions,
                            ),
                            panel(
                                t("sql.result"),
                                html.Div(id="sql-failure"),
                                dcc.Loading(html.Div(id="sql-result"), delay_show=400, type="dot"),
                                tools=controls.segments(
                                    view, "chart", [(name, t(f"sql.chart.{name}")) for name in CHARTS], t("sql.chart")
                                ),
                            ),
                        ]
                    ),
                    html.Div([panel(t("sql.examples"), _examples()), panel(t("sql.schema"), _tree(schema))]),
                ],
                className="fw-side",
            ),
            dcc.Store(id="sql-query", data=view.get("query") or None),
        ]
    )


def register(app: Dash, services: Services) -> None:
    """Add the page's callbacks."""
    runner = audited(
        Parts(services, services.access or AccessControl(AccessSettings(), services.control, loopback_only=True))
    )

    # What is run goes into the address and into the store that the query is read from.
    app.clientside_callback(
        ClientsideFunction("flightwatch_sql", "run"),
        Output("sql-query", "data"),
        Input("sql-run", "n_clicks"),
        Input("sql-editor", "run"),
        State("sql-editor", "value"),
        prevent_initial_call=True,
    )

    @app.callback(
        Output("sql-result", "children"),
        Output("sql-note", "children"),
        Output("sql-failure", "children"),
        Input("sql-query", "data"),
        Input("view", "data"),
    )
    def show(query: str | None, data: Any) -> tuple[Any, Any, Any]:
        if not query:
            return empty(t("sql.nothing"), t("sql.nothing_hint")), "", None
        view = View.of(data)
        try:
            rows = _run(runner, query)
        except FlightwatchError as error:
            return None, "", failure(str(error))
        note = t("sql.rows", n=amount_text(len(rows)))
        if len(rows) > MOST_ROWS:
            note = t("sql.rows_cut", n=amount_text(len(rows)), shown=amount_text(MOST_ROWS))
        return _result(rows[:MOST_ROWS], view.choice("chart", CHARTS, "none")), note, None


def _tables() -> frozenset[str]:
    person = viewer()
    tables = ADMIN_TABLES if person.may(Role.ADMIN) else VIEWER_TABLES
    return tables if person.tenants is None else tables & TENANT_TABLES


def _run(runner: People, query: str) -> list[dict[str, Any]]:
    """Run one SELECT of whoever asks; the one way from this page to the store."""
    person = viewer()
    answer = runner.run(query, "json", _tables(), who=person.subject, scope=scope_of(person.tenants))
    return [json.loads(line) for line in answer.splitlines() if line.strip()]


def _result(rows: Sequence[Mapping[str, Any]], chart: str) -> Any:
    if not rows:
        return empty(t("sql.no_rows"))
    columns = [_column(name, rows) for name in rows[0]]
    shown = [{name: _cell(value) for name, value in row.items()} for row in rows]
    table = grids.grid(
        "sql-grid",
        columns,
        rows=shown,
        height_px=460,
        filters=True,
        options={"pagination": True, "paginationPageSize": 100, "paginationPageSizeSelector": False},
    )
    drawn = _chart(rows, chart)
    return html.Div([*([drawn] if drawn is not None else []), table])


def _column(name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    numeric = all(isinstance(row[name], (int, float)) or row[name] is None for row in rows[:200])
    shown = "params.value == null ? '—' : params.value"
    return {
        "field": name.replace(".", "·"),
        "headerName": name,
        "minWidth": 110,
        "valueFormatter": {"function": shown},
        **({"type": "rightAligned", "filter": "agNumberColumnFilter"} if numeric else {}),
    }


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, (list, dict)) else value


def _chart(rows: Sequence[Mapping[str, Any]], chart: str) -> Any:
    """Draw numeric columns over the first column that is none (or over the first one)."""
    if chart == "none":
        return None
    names = list(rows[0])
    numeric = [
        n for n in names if any(isinstance(row[n], (int, float)) and not isinstance(row[n], bool) for row in rows)
    ]
    over = next((name for name in names if name not in numeric), names[0])
    drawn = [name for name in numeric if name != over][:6]
    if not drawn:
        return empty(t("sql.no_chart"))
    values = {name: [row[name] if isinstance(row[name], (int, float)) else None for row in rows] for name in drawn}
    axis = [row[over] for row in rows]
    if chart == "bar":
        return graphs.drawn(
            graphs.bars(
                [str(value) for value in axis[:60]], {n: v[:60] for n, v in values.items()}, unit="", stacked=False
            ),
            260,
        )
    dates = isinstance(axis[0], str) and re.match(r"\d{4}-\d\d-\d\d", axis[0]) is not None
    kind = "date" if dates else "category" if isinstance(axis[0], str) else "linear"
    figure = graphs.lines({name: (axis, series) for name, series in values.items()}, unit="", zero=False, axis=kind)
    return graphs.drawn(figure, 260)


def _examples() -> Any:
    """Return the recipes of docs/sql.md; a click puts one into the editor and runs it."""
    return html.Ul(
        [
            html.Li(
                html.Button(
                    t(f"example.{key}"),
                    className="fw-chip",
                    title=query,
                    **{"data-action": "sql-example", "data-text": query},
                )
            )
            for key, query in EXAMPLES
        ],
        className="fw-list fw-scroll fw-examples",
    )


def _tree(schema: Mapping[str, Sequence[str]]) -> Any:
    def entry(table: str) -> Any:
        meaning = TABLES[table].meaning if table in TABLES else ""
        columns = [html.Li(name, className="fw-mono") for name in schema[table]]
        head = html.Summary(table, className="fw-mono", title=meaning)
        return html.Details([head, html.Ul(columns, className="fw-columns-of")], **{"data-raw": "1"})

    first = [name for name in schema if name.startswith("v_")]
    rest = [name for name in schema if not name.startswith("v_")]
    return html.Div([entry(name) for name in sorted(rest) + sorted(first)], className="fw-scroll fw-tree", tabIndex="0")
