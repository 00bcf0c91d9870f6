"""Profiler: ask for the same steps of chosen ranks, watch them come, see where a rank loses its time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import dash_mantine_components as dmc
import numpy as np
from dash import Dash, Input, Output, State, dcc, html

from flightwatch.core.errors import ConfigError, NotFound
from flightwatch.dashboard.access.control import AccessControl
from flightwatch.dashboard.access.settings import AccessSettings
from flightwatch.dashboard.access.viewer import Viewer
from flightwatch.dashboard.api.parts import Parts
from flightwatch.dashboard.components import rank_view
from flightwatch.dashboard.components.actions import action, button
from flightwatch.dashboard.components.job_reads import channel_view, job_view
from flightwatch.dashboard.components.panels import empty, panel, table
from flightwatch.dashboard.components.remembered import Remembered
from flightwatch.dashboard.components.request import link
from flightwatch.dashboard.components.safely import safely
from flightwatch.dashboard.components.scope import check_job, visible
from flightwatch.dashboard.components.text import bytes_text
from flightwatch.dashboard.components.view import View
from flightwatch.dashboard.i18n import t
from flightwatch.dashboard.pages import profiler_result
from flightwatch.dashboard.pages.ranks import job_chooser
from flightwatch.dashboard.services import Services
from flightwatch.pipeline.control.roles import Role
from flightwatch.pipeline.profiles.limits import MOST_RANKS, check_size
from flightwatch.pipeline.profiles.records import REQUEST_ENDED, Profiles, Wanted
from flightwatch.pipeline.store import jobs_reads, list_reads
from flightwatch.pipeline.store.client import Store

PATH = "/profiler"
NAME = "page.profiler"
IN_MENU = True
KEY = "p"

SHOWN, SUGGESTED = 30, 12
TIMEOUT_SECONDS = 120
_RANGE = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?")


def layout(view: View, services: Services) -> Any:
    """Return the page."""
    if services.control is None:
        return html.Div([html.H1(t("page.profiler")), empty(t("profiler.no_control"))])
    return html.Div(
        [
            html.Div(
                [html.H1(t("page.profiler")), html.Div(id="profiler-job", className="fw-tools")], className="fw-title"
            ),
            html.Div(
                [
                    panel(t("profiler.start"), _form(view, services), html.Div(id="profiler-said", role="status")),
                    panel(t("profiler.list"), html.Div(id="profiler-list", className="fw-scroll", tabIndex="0")),
                ],
                className="fw-columns",
            ),
            html.Div(id="profiler-one"),
            *profiler_result.layout(view),
        ]
    )


def _form(view: View, services: Services) -> Any:
    limits = services.profile_limits
    options = [
        dmc.Checkbox(label=t(f"profiler.{name}"), value=name, size="xs") for name in ("stacks", "shapes", "memory")
    ]
    return html.Div(
        [
            html.Div(
                [
                    html.Label(t("profiler.ranks"), htmlFor="profiler-ranks"),
                    dcc.Input(
                        id="profiler-ranks",
                        value=view.get("ranks"),
                        placeholder="3,7-9",
                        className="fw-input",
                        debounce=True,
                        style={"width": "200px"},
                    ),
                    html.Label(t("profiler.steps"), htmlFor="profiler-steps"),
                    dcc.Input(
                        id="profiler-steps",
                        type="text",
                        inputMode="numeric",
                        value="5",
                        className="fw-input",
                        style={"width": "72px"},
                    ),
                    dmc.CheckboxGroup(
                        dmc.Group(options, gap="sm"),
                        id="profiler-options",
                        value=[],
                        **{"aria-label": t("profiler.options")},
                    ),
                    button(t("profiler.go"), "profiler-go", Role.OPERATOR, primary=True),
                ],
                className="fw-tools",
            ),
            html.P(t("profiler.limits", ranks=limits.most_ranks, steps=limits.most_steps), className="fw-dim"),
            html.Div(id="profiler-suggested"),
        ]
    )


def register(app: Dash, services: Services) -> None:
    """Add the page's callbacks."""
    store, remembered = services.store, Remembered(2.0)
    access = services.access or AccessControl(AccessSettings(), services.control, loopback_only=True)
    parts = Parts(services, access)
    profiler_result.register(app, services)
    _register_show(app, store, remembered, parts)
    app.clientside_callback(
        "function(value) { window.flightwatch.set({ranks: value || null}); return window.dash_clientside.no_update; }",
        Output("profiler-ranks", "n_submit"),
        Input("profiler-ranks", "value"),
        prevent_initial_call=True,
    )
    _register_actions(app, services, parts)


def _register_show(app: Dash, store: Store, remembered: Remembered, parts: Parts) -> None:
    @app.callback(
        Output("profiler-job", "children"),
        Output("profiler-suggested", "children"),
        Output("profiler-list", "children"),
        Output("profiler-one", "children"),
        Input("view", "data"),
        Input("beat", "data"),
    )
    @safely(4, 2)
    def show(data: Any, _: Any) -> tuple[Any, ...]:
        view = View.of(data)
        jobs = [row["job"] for row in visible(store, remembered.get("jobs", lambda: jobs_reads.jobs(store)))]
        job = view.get("job") or (jobs[0] if jobs else "")
        suggested = (
            remembered.get(("suggested", job), lambda: _suggested(store, view, job), 10.0) if job in jobs else []
        )
        found = visible(store, remembered.get("profiles", lambda: Profiles(parts.control).newest(SHOWN)))
        one = next((row for row in found if row["id"] == view.get("id")), None)
        return (
            job_chooser(view, jobs, job),
            _chips(suggested),
            _list(view, found),
            None if one is None else _progress(one),
        )


def _register_actions(app: Dash, services: Services, parts: Parts) -> None:
    store = services.store
    states = [
        State("view", "data"),
        State("profiler-ranks", "value"),
        State("profiler-steps", "value"),
        State("profiler-options", "value"),
    ]

    @action(app, "profiler-go", "profiler-said", Role.OPERATOR, states)
    def start(person: Viewer, data: Any, ranks: str | None, steps: Any, options: Sequence[str]) -> Any:
        view = View.of(data)
        jobs = [row["job"] for row in visible(store, jobs_reads.jobs(store))]
        job = view.get("job") or (jobs[0] if jobs else "")
        if not job:
            raise NotFound(t("jobs.none"))
        check_job(store, job)
        if not person.may(Role.OPERATOR, list_reads.job_tenant(store, job)):
            raise NotFound(t("action.denied", role=t("role.operator")))
        return _start(services, parts, person, job, ranks or "", steps, options)

    @action(app, "profiler-stop", "profiler-stopped", Role.OPERATOR, [State("view", "data")])
    def stop(person: Viewer, data: Any) -> Any:
        name = View.of(data).get("id")
        found = Profiles(parts.control).get(name)
        check_job(store, found["job"])
        Profiles(parts.control).stop(name)
        parts.done(person, "profile.stop", name)
        return t("profiler.stopping")


def _start(
    services: Services, parts: Parts, person: Viewer, job: str, ranks_text: str, steps: Any, options: Sequence[str]
) -> Any:
    limits = services.profile_limits
    ranks = ranks_of(ranks_text)
    count = int(steps) if str(steps).isascii() and str(steps).isdigit() else 0
    check_size(
        limits, ranks=len(ranks), steps=count, max_bytes=limits.most_bytes, seconds=TIMEOUT_SECONDS, override=False
    )
    chosen = {name: name in options for name in ("stacks", "shapes", "memory")}
    wanted = Wanted(job, "", ranks, count, chosen, limits.most_bytes, TIMEOUT_SECONDS, person.subject, "")
    name = Profiles(parts.control).create(wanted)
    parts.done(person, "profile.start", name, f"{job}: {count} steps of {len(ranks)} ranks")
    href = link(f"/profiler?job={quote(job, safe='')}&ranks={quote(ranks_text, safe=',-')}&id={name}")
    return html.P([t("profiler.started"), " ", html.A(name, href=href, **{"data-raw": "1"})])


def ranks_of(text: str) -> list[int]:
    """Read "3,7-9". Raises ConfigError when it is no list of ranks."""
    ranks: set[int] = set()
    for part in text.replace(" ", "").split(","):
        match = _RANGE.fullmatch(part)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise ConfigError(t("profiler.which"))
        ranks.update(range(int(match[1]), min(int(match[2] or match[1]), int(match[1]) + MOST_RANKS) + 1))
    return sorted(ranks)


def _suggested(store: Store, view: View, job: str) -> list[tuple[int, float, list[int]]]:
    """Return the slowest ranks of a job: rank, ratio to its cohort, two peers of the same role to compare with."""
    shown = job_view(store, View(view.path, {**view.params, "job": job}), job, 40)
    if shown is None or not shown.steps:
        return []
    found = channel_view(store, shown, "compute_us")
    steps = max(1, round(found.ratios_RS.shape[1] * rank_view.RECENT_SHARE))
    recent = found.ratios_RS[:, -steps:]
    with np.errstate(invalid="ignore"):
        told = ~np.isnan(recent)
        mean_R = np.where(told.any(axis=1), np.nansum(recent, axis=1) / np.maximum(told.sum(axis=1), 1), np.nan)
    suggested = []
    for row in rank_view.worst(found.ratios_RS, SUGGESTED):
        same = np.flatnonzero((found.cohort_of == found.cohort_of[row]) & ~np.isnan(mean_R))
        nearest = same[np.argsort(np.abs(mean_R[same] - 1.0), kind="stable")]
        peers = [int(found.found.ranks[one]) for one in nearest if one != row][:2]
        suggested.append((int(found.found.ranks[row]), float(mean_R[row]), peers))
    return suggested


def _chips(suggested: Sequence[tuple[int, float, list[int]]]) -> Any:
    if not suggested:
        return html.P(t("profiler.no_ranks"), className="fw-dim")
    chips = [
        html.Button(
            f"{rank} · {ratio:.2f} ×",
            className="fw-chip" + (" hot" if ratio > 1.05 else ""),
            title=t("profiler.with_peers", rank=rank, peers=", ".join(map(str, peers))),
            **{"data-action": "fill-ranks", "data-text": ",".join(map(str, [rank, *peers])), "data-raw": "1"},
        )
        for rank, ratio, peers in suggested
    ]
    return html.Div([html.P(t("profiler.suggested"), className="fw-dim"), html.Div(chips, className="fw-tools")])


def _list(view: View, found: Sequence[Mapping[str, Any]]) -> Any:
    if not found:
        return empty(t("profiler.none"))
    rows = []
    for one in found:
        done = sum(1 for row in one["ranks"] if row["state"] == "done")
        href = link(f"/profiler?job={quote(one['job'], safe='')}&id={one['id']}")
        rows.append(
            [
                html.A(one["id"], href=href, **{"data-raw": "1"}),
                html.Span(one["job"], **{"data-raw": "1"}),
                t(f"state.{one['state']}"),
                f"{done} / {len(one['ranks'])}",
                one["steps"],
                view.clock(one["created_at_ms"]),
                html.Span(one["requested_by"], **{"data-raw": "1"}),
            ]
        )
    heads = [
        "ID",
        t("page.job"),
        t("jobs.state"),
        t("profiler.traces"),
        t("profiler.steps"),
        t("profiler.when"),
        t("profiler.by"),
    ]
    return table(heads, rows, numeric=(3, 4), label=t("profiler.list"))


def _progress(one: Mapping[str, Any]) -> Any:
    rows = []
    for row in one["ranks"]:
        trace = f"/api/v1/profiles/{one['id']}/ranks/{row['rank']}/trace"
        rows.append(
            [
                row["rank"],
                html.A(row["node"], href=link(f"/nodes/{quote(row['node'], safe='')}"), **{"data-raw": "1"})
                if row["node"]
                else "—",
                html.Span(t(f"state.{row['state']}"), className="fw-warn" if row["state"] == "failed" else ""),
                "—" if row["first_step"] is None else f"{row['first_step']:,}",
                bytes_text(row["bytes"]),
                html.A(t("profiler.download"), href=link(trace), download=f"{one['id']}-rank{row['rank']}.json.gz")
                if row["artifact"]
                else "",
                html.Span(row["reason"], className="fw-dim", **{"data-raw": "1"}),
            ]
        )
    heads = [
        t("col.rank"),
        t("page.node"),
        t("jobs.state"),
        t("profiler.first_step"),
        t("profiler.size"),
        "",
        t("profiler.why"),
    ]
    tools = [html.Span(id="profiler-stopped", role="status")]
    if one["state"] not in REQUEST_ENDED:
        tools.append(button(t("profiler.stop"), "profiler-stop", Role.OPERATOR))
    note = html.Span(
        [html.Span(one["id"], **{"data-raw": "1"}), " · ", t(f"state.{one['state']}")], className="fw-note"
    )
    return panel(
        t("profiler.progress"),
        table(heads, rows, numeric=(0, 3, 4), label=t("profiler.progress")),
        note=note,
        tools=tools,
    )
