"""Admin: who may come in, which detectors run, which channels work, how long data is kept, who did what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from dash import Dash, Input, Output, html

from flightwatch.core.clock import SystemClock
from flightwatch.dashboard.access.viewer import SCOPES
from flightwatch.dashboard.components import acts, controls
from flightwatch.dashboard.components.admin_lists import (
    audit_table,
    channel_list,
    detector_table,
    people_table,
    retention_table,
    token_table,
)
from flightwatch.dashboard.components.panels import empty, panel
from flightwatch.dashboard.components.request import viewer
from flightwatch.dashboard.components.safely import safely
from flightwatch.dashboard.components.view import View
from flightwatch.dashboard.i18n import t
from flightwatch.dashboard.services import Services
from flightwatch.pipeline.control.actions import ActionRecords
from flightwatch.pipeline.control.alerts import AlertRecords
from flightwatch.pipeline.control.audit import AuditLog
from flightwatch.pipeline.control.database import Control
from flightwatch.pipeline.control.detection import DetectorSettings
from flightwatch.pipeline.control.people import PeopleRecords
from flightwatch.pipeline.control.roles import Role
from flightwatch.pipeline.control.tokens import Tokens

PATH = "/admin"
NAME = "page.admin"
IN_MENU = True
KEY = "a"

AUDIT_ROWS = 200
TOKEN_DAYS = ("7", "30", "90")


def layout(view: View, services: Services) -> Any:
    """Return the page."""
    title = html.Div([html.H1(t(NAME))], className="fw-title")
    if not viewer().may(Role.ADMIN):
        return html.Div([title, _own_tokens()])
    return html.Div(
        [
            title,
            html.Div(
                [
                    html.Div(
                        [
                            panel(t("admin.detectors"), html.Div(id="admin-detectors")),
                            panel(
                                t("admin.audit"),
                                html.Div(id="admin-audit", className="fw-scroll", tabIndex="0"),
                                tools=_audit_tools(view),
                            ),
                        ]
                    ),
                    html.Div(
                        [
                            panel(t("admin.switch"), html.Div(id="admin-switch")),
                            panel(t("admin.channels"), html.Div(id="admin-channels")),
                            panel(t("admin.people"), html.Div(id="admin-people"), tools=_grant_form()),
                            _own_tokens(),
                            panel(t("admin.retention"), html.Div(id="admin-retention")),
                        ]
                    ),
                ],
                className="fw-side",
            ),
        ]
    )


def _own_tokens() -> Any:
    days = [(one, t("admin.days", n=one)) for one in TOKEN_DAYS]
    scopes = [(one, one) for one in SCOPES]
    form = acts.act_form(
        "/api/v1/tokens",
        [acts.field("name", t("act.name")),
         acts.choice_field("scopes", t("admin.scope"), scopes, "read", "list", raw=True),
         acts.choice_field("days", t("act.for"), days, "30", "number")],
        t("admin.make_token"), data_shows="secret",
    )  # fmt: skip
    return panel(t("admin.tokens"), html.Div(id="admin-tokens"), form)


def _grant_form() -> Any:
    roles = [(role.value, t(f"role.{role.value}")) for role in Role]
    fields = [acts.field("subject", t("admin.subject")), acts.choice_field("role", t("admin.role"), roles, "viewer"),
              acts.field("tenant", t("admin.tenant"), required=False)]  # fmt: skip
    form = acts.act_form("/api/v1/people/{subject}/grants", fields, t("admin.grant"), data_method="PUT")
    return acts.drop_down(t("admin.grant"), form)


def _audit_tools(view: View) -> Any:
    shown = [("", t("admin.audit_all")), ("denied", t("admin.audit_denied"))]
    return [controls.select(view, "audit", shown, t("admin.audit"))]


def register(app: Dash, services: Services) -> None:
    """Add the page's callbacks."""

    @app.callback(
        Output("admin-detectors", "children"), Output("admin-switch", "children"), Output("admin-channels", "children"),
        Output("admin-people", "children"), Output("admin-retention", "children"), Input("view", "data"),
        Input("beat", "data"),
    )  # fmt: skip
    @safely(5, 0)
    def parts(data: Any, _: Any) -> tuple[Any, ...]:
        view, control = View.of(data), _control(services)
        if control is None or not viewer().may(Role.ADMIN):
            return (empty(t("admin.no_control")), *[""] * 4)
        alerts, now_ms = AlertRecords(control), SystemClock().now_ms()
        return (
            detector_table(DetectorSettings(control).all(), view),
            _switch(ActionRecords(control, ""), view),
            channel_list(services, alerts.channel_states(), alerts.waiting_by_channel(), view),
            people_table(PeopleRecords(control).all(), view, now_ms),
            retention_table(services.store),
        )

    @app.callback(Output("admin-tokens", "children"), Input("view", "data"), Input("beat", "data"))
    @safely(1, 0)
    def tokens(data: Any, _: Any) -> Any:
        control = _control(services)
        if control is None:
            return empty(t("admin.no_control"))
        owner = None if viewer().may(Role.ADMIN) else viewer().subject
        return token_table(Tokens(control).all(owner), View.of(data), SystemClock().now_ms())

    @app.callback(Output("admin-audit", "children"), Input("view", "data"), Input("beat", "data"))
    @safely(1, 0)
    def audit(data: Any, _: Any) -> Any:
        view, control = View.of(data), _control(services)
        if control is None or not viewer().may(Role.ADMIN):
            return ""
        ok = False if view.get("audit") == "denied" else None
        return audit_table(AuditLog(control).page(limit=AUDIT_ROWS, ok=ok), view)


def _control(services: Services) -> Control | None:
    return services.control


def _switch(records: ActionRecords, view: View) -> Any:
    switch = records.stop_switch()
    words = t("admin.stopped") if switch.is_on else t("admin.allowed")
    said = html.Span(words, className=f"fw-state {'open' if switch.is_on else 'done'}")
    since: Sequence[Any] = ()
    if switch.at_ms:
        since = [html.Div(f"{switch.actor}: {switch.reason} · {view.clock(switch.at_ms)}", className="fw-dim",
                          **{"data-raw": "1"})]  # fmt: skip
    form = acts.act_form(
        "/api/v1/actions/stop-switch", [acts.field("reason", t("act.reason"))],
        t("admin.allow") if switch.is_on else t("admin.stop"), body={"is_on": not switch.is_on}, data_method="PUT",
        tone="" if switch.is_on else "danger",
    )  # fmt: skip
    return html.Div([html.P(said), *since, acts.drop_down(t("admin.change"), form, note=t("admin.switch_how"))])


def person_path(subject: str) -> str:
    """Return the API's path of a person."""
    return f"/api/v1/people/{quote(subject, safe='')}"
