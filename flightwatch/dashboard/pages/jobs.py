"""Jobs: which train, how fast, and which need a look."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from dash import Dash, Input, Output, html

from flightwatch.dashboard.components import controls, grids
from flightwatch.dashboard.components.panels import empty, panel, quality
from flightwatch.dashboard.components.remembered import Remembered
from flightwatch.dashboard.components.request import link
from flightwatch.dashboard.components.safely import safely
from flightwatch.dashboard.components.scope import visible
from flightwatch.dashboard.components.text import age_text
from flightwatch.dashboard.components.view import View
from flightwatch.dashboard.i18n import known, t
from flightwatch.dashboard.services import Services
from flightwatch.pipeline.store import jobs_reads

PATH = "/jobs"
NAME = "page.jobs"
IN_MENU = True
KEY = "j"

#: A rank so many times as slow as its role is marked.
SPREAD_WARNS = 1.1
#: A job that stepped so lately runs.
RUNS_SECONDS = 300
#: How long the slowest ranks are remembered: they are read from steps.
SPREAD_SECONDS = 15.0
_SPREAD = "params.value == null ? '—' : d3.format('.2f')(params.value) + ' × · rank ' + params.data.slowest"


def layout(view: View, services: Services) -> Any:
    """Return the page."""
    columns = [
        grids.link_column("job", t("page.job"), flex=2, minWidth=160),
        {"field": "state", "headerName": t("jobs.state"), "width": 104, "minWidth": 104},
        grids.number_column("ranks", t("jobs.ranks"), 0, width=76, minWidth=72),
        {
            "field": "coverage",
            "headerName": t("jobs.coverage"),
            "width": 108,
            "minWidth": 100,
            "type": "rightAligned",
            "cellClassRules": {"fw-warn": "params.data.short"},
        },
        grids.number_column("nodes", t("jobs.nodes"), 0, width=76, minWidth=72),
        grids.number_column("step", t("col.step"), 0, width=100, minWidth=76),
        grids.number_column("step_ms", t("jobs.step_ms"), 1, width=100, minWidth=88),
        {
            "field": "spread",
            "headerName": t("jobs.spread"),
            "headerTooltip": t("jobs.spread_how"),
            "width": 160,
            "minWidth": 150,
            "type": "rightAligned",
            "valueFormatter": {"function": _SPREAD},
            "cellClassRules": {"fw-warn": f"params.value > {SPREAD_WARNS}"},
        },
        grids.number_column("tokens_per_s", t("jobs.tokens"), 0, width=104, minWidth=96),
        grids.number_column("attempts", t("jobs.attempts"), 0, width=96, minWidth=88),
        grids.number_column("findings", t("jobs.findings"), 0, width=92, minWidth=88),
        {"field": "started", "headerName": t("jobs.started"), "width": 142, "minWidth": 142},
        {"field": "age", "headerName": t("reading.age"), "width": 90, "minWidth": 80, "type": "rightAligned"},
    ]
    return html.Div(
        [
            html.Div(
                [
                    html.H1(t("page.jobs")),
                    html.Div(controls.search(view, label=t("jobs.search")), className="fw-tools"),
                ],
                className="fw-title",
            ),
            panel(
                t("jobs.all"),
                html.Div(id="jobs-empty"),
                grids.grid("jobs-grid", columns, height_px=560, row_id="params.data.key"),
                note="jobs-note",
            ),
        ]
    )


def register(app: Dash, services: Services) -> None:
    """Add the page's callbacks."""
    remembered = Remembered(2.0)

    @app.callback(
        Output("jobs-grid", "rowData"),
        Output("jobs-note", "children"),
        Output("jobs-empty", "children"),
        Output("jobs-grid", "style"),
        Input("view", "data"),
        Input("beat", "data"),
    )
    @safely(4, 2)
    def show(data: Any, _: Any) -> tuple[Any, Any, Any, Any]:
        view = View.of(data)
        rows = visible(services.store, remembered.get("jobs", lambda: jobs_reads.jobs(services.store)))
        wanted = view.get("q").lower()
        running = [row for row in rows if row["age_seconds"] < RUNS_SECONDS]
        key = ("slowest", *((row["cluster"], row["job"]) for row in running))
        slowest = remembered.get(key, lambda: jobs_reads.slowest_ranks(services.store, running), SPREAD_SECONDS)
        shown = [
            _row(row, view, slowest.get((row["cluster"], row["job"]))) for row in rows if wanted in row["job"].lower()
        ]
        ages = [row["age_seconds"] for row in rows]
        note = quality(min(ages), len(rows), None, t("jobs.unit")) if rows else None
        if rows:
            return shown, note, None, {"height": f"{min(700, 66 + 30 * max(2, len(shown)))}px"}
        hint = [
            html.P(t("jobs.hint")),
            html.Pre("flightwatch run -- torchrun --nproc-per-node 8 train.py", className="fw-code"),
            html.A(t("page.setup"), href=link("/setup")),
        ]
        return [], None, empty(t("jobs.none"), html.Div(hint)), {"display": "none"}


def _row(row: Mapping[str, Any], view: View, slowest: tuple[int, float] | None) -> dict[str, Any]:
    middle = row["step_us"]
    expected = row["expected"]
    return {
        "key": f"{row['cluster']}|{row['job']}",
        "job": grids.link(row["job"], link(f"/jobs/{quote(row['job'], safe='')}")),
        "state": known("phase", row["phase"])
        if row["age_seconds"] < RUNS_SECONDS and row["phase"]
        else t("jobs.stepping")
        if row["age_seconds"] < RUNS_SECONDS
        else t("jobs.ended"),
        "ranks": row["ranks"],
        "coverage": f"{row['reporting']:,} / {expected:,}" if expected else f"{row['reporting']:,}",
        "short": bool(expected and row["reporting"] < expected),
        "nodes": row["nodes"],
        "step": row["step"],
        "step_ms": None if middle is None else middle / 1000,
        "spread": None if slowest is None else slowest[1],
        "slowest": None if slowest is None else slowest[0],
        "tokens_per_s": row["tokens_per_s"],
        "attempts": row["attempts"],
        "findings": row["findings"],
        "started": view.clock(row["started"])[:16],
        "age": age_text(row["age_seconds"]),
    }
