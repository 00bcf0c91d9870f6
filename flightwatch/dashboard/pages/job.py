"""Job: how it steps, what its time goes into, which ranks are slow, and what is not hardware."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from dash import Dash, Input, Output, html

from flightwatch.core.clock import SystemClock
from flightwatch.dashboard.components import controls, graphs, job_figures, rank_view
from flightwatch.dashboard.components.absent import absent
from flightwatch.dashboard.components.canvas import RankHeat
from flightwatch.dashboard.components.finding_list import finding_list
from flightwatch.dashboard.components.job_reads import ChannelView, JobView, channel_view, job_view, step_rows
from flightwatch.dashboard.components.panels import empty, figure_tile, panel, quality, tiles, unknown, waiting_tiles
from flightwatch.dashboard.components.remembered import Remembered
from flightwatch.dashboard.components.request import link
from flightwatch.dashboard.components.safely import safely
from flightwatch.dashboard.components.text import age_text, ago_text, amount_text, micros_text, percent_text
from flightwatch.dashboard.components.view import View
from flightwatch.dashboard.i18n import known, t
from flightwatch.dashboard.services import Services
from flightwatch.pipeline.store import jobs_reads
from flightwatch.pipeline.store.client import Store

PATH = "/jobs/<id>"
NAME = "page.job"
IN_MENU = False
KEY = ""

HEAT_ROWS = 96
#: Values of one scalar that are drawn at most.
MOST_SCALARS = 400
#: The longest step of a rank is drawn where it is so many times the median.
SAME = 1.005
#: A rank so many times as slow as its role is marked.
SLOW = 1.1
_SLOWEST = Remembered(10.0)
PHASE_COLOURS = {
    "train": "#22a57a",
    "init": "#7d8898",
    "rendezvous": "#a08026",
    "compile": "#c25aa2",
    "restore": "#e07f1f",
    "evaluate": "#3d83f0",
    "checkpoint": "#1aa0bb",
}


def layout(view: View, services: Services) -> Any:
    """Return the page."""
    name = view.captured["id"]
    nobody = absent(services.store, "job", name)
    if nobody is not None:
        return nobody
    query = urlencode({"job": name})
    links = [
        html.A(t("page.ranks"), href=link(f"/ranks?{query}"), className="fw-chip"),
        html.A(t("page.profiler"), href=link(f"/profiler?{query}"), className="fw-chip"),
    ]
    return html.Div(
        [
            html.Div(
                [
                    html.H1(name, **{"data-raw": "1"}),
                    html.Div(id="job-attempts", className="fw-tools"),
                    html.Div(links, className="fw-tools"),
                ],
                className="fw-title",
            ),
            html.Div(waiting_tiles(7), id="job-tiles"),
            html.Div(
                [
                    html.Div(
                        [
                            panel(t("job.steps"), graphs.graph("job-steps", height_px=200), note="job-steps-note"),
                            panel(t("job.parts"), graphs.graph("job-parts", height_px=200)),
                            panel(
                                t("job.heat"),
                                RankHeat(id="job-heat", height=220, href=f"/ranks?{query}&focus={{}}"),
                                html.Div(id="job-heat-legend", className="fw-legend"),
                                note="job-heat-note",
                            ),
                        ]
                    ),
                    html.Div(
                        [
                            panel(t("job.findings"), html.Div(id="job-findings", className="fw-scroll", tabIndex="0")),
                            panel(t("job.stages"), html.Div(id="job-stages")),
                            panel(t("job.phases"), html.Div(id="job-phases")),
                        ]
                    ),
                ],
                className="fw-side",
            ),
            panel(t("job.scalars"), html.Div(id="job-scalars")),
        ]
    )


def _heat_legend(found: ChannelView) -> list[Any]:
    return [
        *ratio_ramp(found),
        html.Span(t("job.heat_how")),
        html.Span([html.Span(className="fw-key"), t("js.not_measured")]),
    ]


def ratio_ramp(found: ChannelView) -> list[Any]:
    """Return the legend of the colours of a heat map of ratios."""
    half = rank_view.half_scale(found.ratios_RS)
    ramp = html.Span(className="fw-ramp", **{"data-ramp": "around"})
    return [html.Span([f"{1 - half:.1f} ×", ramp, f"{1 + half:.1f} ×"], **{"data-raw": "1"})]


def register(app: Dash, services: Services) -> None:
    """Add the page's callbacks."""
    _register_steps(app, services)
    _register_ranks(app, services.store)
    _register_told(app, services.store)


def _register_steps(app: Dash, services: Services) -> None:
    store = services.store

    @app.callback(
        Output("job-tiles", "children"),
        Output("job-attempts", "children"),
        Output("job-steps", "figure"),
        Output("job-parts", "figure"),
        Output("job-steps-note", "children"),
        Output("job-scalars", "children"),
        Input("view", "data"),
        Input("beat", "data"),
    )
    @safely(6, 0)
    def steps(data: Any, _: Any) -> tuple[Any, ...]:
        view = View.of(data)
        shown = job_view(store, view, view.captured.get("id", ""))
        if shown is None or not shown.steps:
            nothing = graphs.lines({}, unit="", empty_text=t("job.no_steps"))
            return empty(t("job.no_steps")), [], nothing, nothing, "", empty(t("job.no_scalars"))
        rows = step_rows(store, shown)
        scalars = jobs_reads.scalars(store, shown.job, shown.attempt, shown.steps[0], shown.steps[-1], MOST_SCALARS)
        figures = job_figures.figures_of(shown, rows, scalars, services.expectations)
        note = quality(shown.attempt.age_seconds, len(rows), len(shown.steps), t("job.steps_shown"))
        return (
            _tiles(shown, figures, _slowest(store, shown), jobs_reads.goodput(store, shown.job)),
            _attempts(shown),
            _step_figure(view, rows),
            _parts_figure(view, rows),
            note,
            _scalars(scalars, rows),
        )


def _slowest(store: Store, shown: JobView) -> tuple[int, float] | None:
    """Return the rank whose compute is longest against its role, and how many times its role's."""
    one = shown.attempt
    row = {"cluster": one.cluster, "job": shown.job, "run": one.run, "step": one.newest_step}
    key = (id(store), one.cluster, shown.job, one.run)
    return _SLOWEST.get(key, lambda: jobs_reads.slowest_ranks(store, [row])).get((one.cluster, shown.job))


def _register_ranks(app: Dash, store: Store) -> None:
    @app.callback(
        Output("job-heat", "data"),
        Output("job-heat-note", "children"),
        Output("job-stages", "children"),
        Output("job-heat-legend", "children"),
        Input("view", "data"),
        Input("beat", "data"),
    )
    @safely(4, 2)
    def ranks(data: Any, _: Any) -> tuple[Any, Any, Any, Any]:
        view = View.of(data)
        shown = job_view(store, view, view.captured.get("id", ""))
        if shown is None or not shown.steps:
            return None, "", empty(t("job.no_steps")), []
        found = channel_view(store, shown, "compute_us")
        note = quality(
            shown.attempt.age_seconds, len(found.found.ranks), len(found.roles.ranks) or None, t("unit.ranks")
        )
        return heat(view, found), note, _stages(found), _heat_legend(found)


def _register_told(app: Dash, store: Store) -> None:
    @app.callback(
        Output("job-findings", "children"),
        Output("job-phases", "children"),
        Input("view", "data"),
        Input("beat", "data"),
    )
    @safely(2, 0)
    def told(data: Any, _: Any) -> tuple[Any, Any]:
        view = View.of(data)
        shown = job_view(store, view, view.captured.get("id", ""), 1)
        now_ms = SystemClock().now_ms()
        name = view.captured.get("id", "")
        findings = jobs_reads.findings_of(store, name, view.window(now_ms).start_ms) if shown is not None else []
        phases = jobs_reads.phases(store, name) if shown is not None else []
        return (
            finding_list(findings, view, now_ms) if findings else empty(t("job.no_findings")),
            _phases(phases, view, now_ms) if phases else empty(t("job.no_phases")),
        )


def heat(view: View, found: ChannelView) -> dict[str, Any]:
    """Return the heat strip of all ranks: each row the worst of neighbouring ranks, against their cohort."""
    values, firsts = rank_view.heat_rows(found.ratios_RS, HEAT_ROWS)
    ranks = found.found.ranks.tolist()
    ends = [*firsts[1:], len(ranks)]
    labels = [
        str(ranks[first]) if end - first == 1 else f"{ranks[first]}–{ranks[end - 1]}"
        for first, end in zip(firsts, ends, strict=True)
    ]
    times = [view.clock(ts, date=False) for ts in found.found.starts_ms.tolist()]
    titles = [
        f"{t('col.step')} {step:,} · {time}" for step, time in zip(found.found.steps.tolist(), times, strict=True)
    ]
    return rank_view.heat_payload(
        values,
        labels,
        [str(ranks[first]) for first in firsts],
        times,
        titles,
        t(f"channel.{found.channel}"),
        row_px=3,
        half=rank_view.half_scale(found.ratios_RS),
    )


def _tiles(
    shown: JobView, found: job_figures.Figures, slowest: tuple[int, float] | None, goodput: Mapping[str, Any] | None
) -> Any:
    stale = shown.attempt.age_seconds > 300
    return tiles(
        [
            figure_tile(t("channel.step_us"), micros_text(found.step_us), t("job.step_note")),
            figure_tile(
                t("job.slowest"),
                unknown(t("job.no_compute")) if slowest is None else f"rank {slowest[0]}",
                t("job.no_compute") if slowest is None else t("job.slowest_note", times=f"{slowest[1]:.2f}"),
                tone="warn" if slowest is not None and slowest[1] > SLOW else "",
                href=""
                if slowest is None
                else link(f"/ranks?{urlencode({'job': shown.job, 'focus': str(slowest[0])})}"),
            ),
            figure_tile(
                t("jobs.tokens"),
                unknown(t("job.no_tokens")) if found.tokens_per_s is None else amount_text(round(found.tokens_per_s)),
                t(found.tokens_why),
            ),
            figure_tile(
                t("job.goodput"),
                unknown(t("job.no_phases")) if goodput is None else percent_text(goodput["ratio"]),
                t("job.no_phases") if goodput is None else t("job.goodput_note", wall=age_text(goodput["wall_s"])),
            ),
            figure_tile(
                "MFU",
                unknown(t("job.no_mfu")) if found.mfu is None else percent_text(found.mfu),
                t(found.mfu_why),
            ),
            figure_tile(
                t("job.newest"),
                f"{shown.attempt.newest_step:,}",
                ago_text(shown.attempt.age_seconds),
                tone="warn" if stale else "",
            ),
            figure_tile(
                t("jobs.ranks"),
                amount_text(shown.attempt.ranks),
                t("job.attempt", n=len(shown.attempts), run=shown.attempt.run),
            ),
        ]
    )


def _attempts(shown: JobView) -> Any:
    if len(shown.attempts) < 2:
        return []
    chosen = [
        controls.set_button(
            one.run or "—",
            f'{{"run": {json.dumps(one.run)}}}',
            pressed=one.run == shown.attempt.run,
            **{"data-raw": "1"},
        )
        for one in shown.attempts[:8]
    ]
    return [html.Span(t("jobs.attempts"), className="fw-dim"), *chosen]


def _step_figure(view: View, rows: Sequence[Mapping[str, Any]]) -> Any:
    times = [view.local(row["at"]) for row in rows]

    def milli(name: str) -> list[float | None]:
        return [None if row[name] is None else row[name] / 1000 for row in rows]

    middle, longest = milli("step_us"), milli("longest_us")
    series = {t("job.median"): (times, middle)}
    if any(one and two and two > SAME * one for one, two in zip(middle, longest, strict=True)):
        # In synchronous training all ranks' steps are equally long: one line says it.
        series[t("job.longest")] = (times, longest)
    return graphs.lines(series, unit="ms", zero=False, empty_text=t("job.no_steps"))


def _parts_figure(view: View, rows: Sequence[Mapping[str, Any]]) -> Any:
    times = [view.local(row["at"]) for row in rows]
    series = {
        t(f"part.{name}"): (times, [None if row[name] is None else row[name] / 1000 for row in rows])
        for name in jobs_reads.PARTS
        if any(row[name] for row in rows)
    }
    return graphs.areas(series, unit="ms", empty_text=t("job.no_parts"))


def _scalars(scalars: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> Any:
    found: dict[str, tuple[list[Any], list[float | None]]] = {}
    for row in scalars:
        steps, values = found.setdefault(row["name"], ([], []))
        steps.append(row["step"])
        values.append(row["value"])
    for name in ("loss", "grad_norm"):
        if name not in found and any(row[name] is not None for row in rows):
            found[name] = ([row["step"] for row in rows], [row[name] for row in rows])
    if not found:
        return empty(t("job.no_scalars"), t("job.no_scalars_hint"))
    order = sorted(found, key=lambda name: ({"loss": 0, "grad_norm": 1, "lr": 2}.get(name, 3), name))[:6]
    return html.Div([scalar_chart(name, found[name]) for name in order], className="fw-columns three")


def scalar_chart(name: str, points: tuple[list[Any], list[float | None]]) -> Any:
    """Return the chart of one scalar over steps."""
    words = known("scalar", name)
    figure = graphs.lines({words: points}, unit="", zero=False, axis="linear")
    told = [value for value in points[1] if value is not None and math.isfinite(value)]
    most = max(map(abs, told), default=0.0)
    # Learning rates are written as powers; without a format, plotly counts in micro.
    tiny = 0 < most < 0.01
    layout = figure["layout"]
    layout["xaxis"] |= {"title": {"text": t("col.step"), "standoff": 2, "font": {"size": 10}}, "tickformat": ",d"}
    layout["yaxis"] |= {"tickformat": ".1e" if tiny else "~g", "nticks": 5, "hoverformat": ".4~g"}
    if most and max(told) - min(told) < 1e-6 * most:
        # A flat line has no scale of its own: plotly would show its last digits.
        layout["yaxis"] |= {"range": sorted((0.0, 1.2 * told[0])), "tickformat": ".0e" if tiny else "~s"}
    return html.Div([html.H3(words, className="fw-note", **{"data-raw": "1"}), graphs.drawn(figure, 190)])


def _stages(found: ChannelView) -> Any:
    stages, medians = rank_view.stage_medians(found.found, found.roles)
    if len(stages) < 2:
        return empty(t("job.one_stage"))
    middle = sorted(medians)[len(medians) // 2]
    spread = (max(medians) - min(medians)) / middle if middle else 0.0
    names = [t("job.stage", n=stage) for stage in stages]
    figure = graphs.bars(names, {t(f"channel.{found.channel}"): [value / 1000 for value in medians]}, unit="ms")
    tone = "fw-warn" if spread > 0.1 else "fw-dim"
    return html.Div([html.P(t("job.spread", spread=percent_text(spread)), className=tone), graphs.drawn(figure, 170)])


def _phases(phases: Sequence[Mapping[str, Any]], view: View, now_ms: int) -> Any:
    first = phases[0]["started"]
    last = max(now_ms if row["ended"] is None else row["ended"] for row in phases)
    whole = max(1, last - first)
    bars, at = [], first
    for row in phases:
        end = now_ms if row["ended"] is None else row["ended"]
        if row["started"] > at:
            bars.append(html.Span(style={"width": f"{100 * (row['started'] - at) / whole:.3f}%"}))
        width = max(0.0, 100 * (end - max(row["started"], at)) / whole)
        took = age_text((end - row["started"]) / 1000)
        words = f"{row['run']} · {known('phase', row['phase'])} · {view.clock(row['started'])} · {took}"
        bars.append(
            html.Span(
                title=words, style={"width": f"{width:.3f}%", "background": PHASE_COLOURS.get(row["phase"], "#7d8898")}
            )
        )
        at = max(at, end)
    seen = sorted({row["phase"] for row in phases})
    legend = [
        html.Span(
            [
                html.Span(className="fw-swatch", style={"background": PHASE_COLOURS.get(name, "#7d8898")}),
                known("phase", name),
            ]
        )
        for name in seen
    ]
    ends = html.Div([html.Span(view.clock(first)), html.Span(" – "), html.Span(view.clock(last))], className="fw-dim")
    return html.Div([html.Div(bars, className="fw-timeline"), html.Div(legend, className="fw-legend"), ends])
