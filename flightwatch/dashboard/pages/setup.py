"""Setup: what is connected, what is not yet, and the command that connects it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dash import Dash, Input, Output, html

from flightwatch.core.clock import SystemClock
from flightwatch.dashboard.components.panels import panel
from flightwatch.dashboard.components.remembered import Remembered
from flightwatch.dashboard.components.request import link
from flightwatch.dashboard.components.safely import safely
from flightwatch.dashboard.components.text import ago_text, amount_text
from flightwatch.dashboard.i18n import t
from flightwatch.dashboard.services import Services
from flightwatch.pipeline.profiles.records import Profiles
from flightwatch.pipeline.store import setup_reads

PATH = "/setup"
NAME = "page.setup"
IN_MENU = False
KEY = "u"

#: Step, the table whose rows say that it is done, and the command that does it.
STEPS = (
    ("hosts", "node_samples", "flightwatch agent --config /etc/flightwatch/flightwatch.toml"),
    ("devices", "device_samples", "pip install 'flightwatch[agent,nvidia]'"),
    ("training", "rank_steps", "flightwatch run -- torchrun --nproc-per-node 8 train.py"),
    ("roles", "placements", "flightwatch run -- torchrun --nproc-per-node 8 train.py"),
    ("scalars", "training_scalars", "flightwatch run -- torchrun --nproc-per-node 8 train.py"),
    ("ports", "port_samples", "flightwatch agent --config /etc/flightwatch/flightwatch.toml"),
    ("storage", "storage_samples", "flightwatch agent --config /etc/flightwatch/flightwatch.toml"),
    ("events", "events", "flightwatch agent --config /etc/flightwatch/flightwatch.toml"),
)


def layout(view: Any, services: Services) -> Any:
    """Return the page."""
    return html.Div(
        [
            html.Div([html.H1(t("page.setup")), html.Span(t("setup.what"), className="fw-dim")], className="fw-title"),
            panel(t("setup.sources"), html.Div(id="setup-steps", className="fw-steps")),
        ]
    )


def register(app: Dash, services: Services) -> None:
    """Add the page's callbacks."""
    remembered = Remembered(3.0)

    @app.callback(Output("setup-steps", "children"), Input("view", "data"), Input("beat", "data"))
    @safely(1, 0)
    def show(_data: Any, _: Any) -> Any:
        names = [table for _, table, _ in STEPS]
        newest = remembered.get("tables", lambda: setup_reads.tables_with_rows(services.store, names))
        places = remembered.get("places", lambda: setup_reads.places_known(services.store))
        now_ms = SystemClock().now_ms()
        steps = [_step(step, newest[table], command, now_ms) for step, table, command in STEPS]
        return [*steps, _inventory(places), _profiler(services, now_ms)]


def _step(step: str, newest_ms: int | None, command: str, now_ms: int) -> Any:
    if newest_ms is None:
        return _card(step, False, t("setup.not_yet"), command)
    return _card(step, True, t("setup.newest", age=ago_text((now_ms - newest_ms) / 1000)), "")


def _inventory(places: Mapping[str, Any]) -> Any:
    done = places["racked"] > 0
    words = t(
        "setup.places",
        nodes=amount_text(places["nodes"]),
        racked=amount_text(places["racked"]),
        switched=amount_text(places["switched"]),
    )
    return _card("inventory", done, words, "" if done else "flightwatch inventory import nodes.csv")


def _profiler(services: Services, now_ms: int) -> Any:
    if services.control is None:
        return _card("profiler", False, t("profiler.no_control"), "")
    jobs = Profiles(services.control).jobs(now_ms - round(services.profile_limits.target_seconds * 1000))
    words = t("setup.profilable", n=amount_text(len(jobs))) if jobs else t("setup.not_profilable")
    return _card("profiler", bool(jobs), words, "" if jobs else "flightwatch doctor")


def _card(step: str, done: bool, words: str, command: str) -> Any:
    parts: list[Any] = [
        html.H3(t(f"setup.{step}")),
        html.P(t(f"setup.{step}_why"), className="fw-dim"),
        html.P(words),
    ]
    if command:
        parts.append(html.Pre(command, className="fw-code", **{"data-raw": "1"}))
    if step == "training" and done:
        parts.append(html.A(t("page.jobs"), href=link("/jobs")))
    return html.Div(parts, className="fw-step done" if done else "fw-step open")
