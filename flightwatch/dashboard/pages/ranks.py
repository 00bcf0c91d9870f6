"""Ranks: the distribution of one channel over all ranks, step by step, and the worst against their cohort."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

import numpy as np
from dash import Dash, Input, Output, html

from flightwatch.dashboard.components import controls, graphs, rank_view
from flightwatch.dashboard.components.canvas import RankHeat
from flightwatch.dashboard.components.job_reads import ChannelView, JobView, channel_view, job_view
from flightwatch.dashboard.components.panels import empty, panel, quality, table
from flightwatch.dashboard.components.remembered import Remembered
from flightwatch.dashboard.components.request import link
from flightwatch.dashboard.components.safely import safely
from flightwatch.dashboard.components.scope import visible
from flightwatch.dashboard.components.text import micros_text
from flightwatch.dashboard.components.view import View
from flightwatch.dashboard.i18n import t
from flightwatch.dashboard.pages.job import ratio_ramp
from flightwatch.dashboard.services import Services
from flightwatch.pipeline.store import jobs_reads, step_reads

PATH = "/ranks"
NAME = "page.ranks"
IN_MENU = True
KEY = "r"

WORST = 40
#: Rows around a rank that the address points at.
FOCUS_ROWS = 40


def layout(view: View, services: Services) -> Any:
    """Return the page."""
    channels = [(name, t(f"channel.{name}")) for name in step_reads.CHANNELS]
    tools = [
        html.Div(id="ranks-job", className="fw-tools"),
        controls.select(view, "channel", channels, t("ranks.channel")),
    ]
    return html.Div(
        [
            html.Div([html.H1(t("page.ranks")), html.Div(tools, className="fw-tools")], className="fw-title"),
            html.Div(id="ranks-empty"),
            panel(t("ranks.density"), graphs.graph("ranks-density", height_px=300), note="ranks-note"),
            panel(
                t("ranks.worst"),
                RankHeat(id="ranks-heat", height=200, href="{}"),
                html.Div(id="ranks-legend", className="fw-legend"),
                note="ranks-worst-note",
            ),
            panel(t("ranks.table"), html.Div(id="ranks-table")),
        ]
    )


def register(app: Dash, services: Services) -> None:
    """Add the page's callbacks."""
    store, remembered = services.store, Remembered(3.0)

    def names() -> list[str]:
        return [row["job"] for row in visible(store, remembered.get("jobs", lambda: jobs_reads.jobs(store)))]

    @app.callback(
        Output("ranks-job", "children"),
        Output("ranks-density", "figure"),
        Output("ranks-note", "children"),
        Output("ranks-heat", "data"),
        Output("ranks-worst-note", "children"),
        Output("ranks-table", "children"),
        Output("ranks-empty", "children"),
        Output("ranks-legend", "children"),
        Input("view", "data"),
        Input("beat", "data"),
    )
    @safely(8, 6)
    def show(data: Any, _: Any) -> tuple[Any, ...]:
        view = View.of(data)
        jobs = names()
        job = view.get("job") or (jobs[0] if jobs else "")
        chooser = job_chooser(view, jobs, job)
        shown = job_view(store, view, job) if job else None
        if shown is None or not shown.steps:
            blank = graphs.lines({}, unit="", empty_text=t("job.no_steps"))
            return chooser, blank, "", None, "", None, empty(t("job.no_steps") if job else t("jobs.none")), []
        found = channel_view(store, shown, view.choice("channel", step_reads.CHANNELS, "compute_us"))
        note = quality(
            shown.attempt.age_seconds, len(found.found.ranks), len(found.roles.ranks) or None, t("unit.ranks")
        )
        rows = _rows(view, found)
        return (
            chooser,
            _density(view, found),
            note,
            _heat(view, found, rows),
            _method(found),
            _table(shown, found, rows),
            None,
            [*ratio_ramp(found), html.Span(t("ranks.worst_how"))],
        )


def job_chooser(view: View, jobs: list[str], job: str) -> list[Any]:
    """Return the menu of jobs and a link to the page of the one shown."""
    if not jobs:
        return []
    known = jobs if job in jobs else [job, *jobs]
    chosen = View(view.path, {**view.params, "job": job})
    return [
        controls.select(chosen, "job", [(name, name) for name in known], t("page.job"), jobs[0]),
        html.A(t("page.job"), href=link(f"/jobs/{quote(job, safe='')}"), className="fw-chip"),
    ]


def _density(view: View, found: ChannelView) -> Any:
    drawn = rank_view.density(found.found, 1 / 1000)
    if not drawn.edges:
        return graphs.lines({}, unit="", empty_text=t("ranks.no_channel"))
    times = [view.local(ts) for ts in found.found.starts_ms.tolist()]
    return graphs.density(times, drawn.edges, drawn.counts, unit="ms", x_title="")


def _rows(view: View, found: ChannelView) -> list[int]:
    """Return the rows shown: the worst, or those around the rank that the address points at."""
    focus = view.number("focus")
    if focus is not None:
        at = int(np.searchsorted(found.found.ranks, focus))
        first = max(0, min(at, len(found.found.ranks) - FOCUS_ROWS))
        return list(range(first, min(len(found.found.ranks), first + FOCUS_ROWS)))
    return [int(row) for row in rank_view.worst(found.ratios_RS, WORST)]


def _heat(view: View, found: ChannelView, rows: list[int]) -> dict[str, Any] | None:
    if not rows:
        return None
    place = {int(rank): index for index, rank in enumerate(found.roles.ranks)}
    labels, keys = [], []
    for row in rows:
        rank = int(found.found.ranks[row])
        labels.append(f"rank {rank}")
        at = place.get(rank)
        device = None if at is None else found.roles.devices[at]
        tail = "" if device is None else f"?device={device}"
        keys.append("/jobs" if at is None else f"/nodes/{quote(found.roles.nodes[at], safe='')}{tail}")
    times = [view.clock(ts, date=False) for ts in found.found.starts_ms.tolist()]
    titles = [
        f"{t('col.step')} {step:,} · {time}" for step, time in zip(found.found.steps.tolist(), times, strict=True)
    ]
    return rank_view.heat_payload(
        found.ratios_RS[rows],
        labels,
        keys,
        times,
        titles,
        t(f"channel.{found.channel}"),
        row_px=14,
        half=rank_view.half_scale(found.ratios_RS),
    )


def _method(found: ChannelView) -> Any:
    groups = len(np.unique(found.cohort_of))
    return html.Span(t("ranks.cohorts", n=groups, channel=t(f"channel.{found.channel}")), className="fw-note")


def _table(shown: JobView, found: ChannelView, rows: list[int]) -> Any:
    if not rows:
        return empty(t("ranks.no_channel"))
    place = {int(rank): index for index, rank in enumerate(found.roles.ranks)}
    steps = max(1, round(found.ratios_RS.shape[1] * rank_view.RECENT_SHARE))
    lines = []
    for row in rows[:WORST]:
        rank, at = int(found.found.ranks[row]), place.get(int(found.found.ranks[row]))
        values, ratios = found.found.values_RS[row], found.ratios_RS[row, -steps:]
        told = ratios[~np.isnan(ratios)]
        known = values[~np.isnan(values)]
        role = (
            ""
            if at is None
            else " ".join(
                f"{axis}{int(found.roles.axes[axis][at])}"
                for axis in step_reads.AXES
                if found.roles.axes[axis][at] >= 0
            )
        )
        node = "" if at is None else found.roles.nodes[at]
        device = None if at is None else found.roles.devices[at]
        query = urlencode({"job": shown.job, "ranks": str(rank)})
        lines.append(
            [
                rank,
                html.A(
                    node + ("" if device is None else f" · {device}"),
                    **{"data-raw": "1"},
                    href=link(f"/nodes/{quote(node, safe='')}" + ("" if device is None else f"?device={device}")),
                ),
                html.Span(role, **{"data-raw": "1"}),
                f"{told.mean():.3f} ×" if len(told) else "—",
                micros_text(float(np.median(known))) if len(known) else "—",
                f"{len(known)} / {len(values)}",
                html.A(t("ranks.profile"), href=link(f"/profiler?{query}")),
            ]
        )
    heads = [t("col.rank"), t("page.node"), t("ranks.role"), t("ranks.ratio"), t("job.median"), t("ranks.steps"), ""]
    return table(heads, lines, numeric=(0, 3, 4, 5), label=t("ranks.table"))
