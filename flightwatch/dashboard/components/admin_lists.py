"""Tables of the admin page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from dash import html

from flightwatch.core.catalogue import TABLES
from flightwatch.dashboard.components import acts
from flightwatch.dashboard.components.panels import empty, table
from flightwatch.dashboard.components.text import age_text, ago_text
from flightwatch.dashboard.components.view import View
from flightwatch.dashboard.i18n import t
from flightwatch.dashboard.services import Services
from flightwatch.detectors.registry import all_detectors
from flightwatch.pipeline.control.alert_rows import ChannelState
from flightwatch.pipeline.control.audit import AuditEntry
from flightwatch.pipeline.control.detection import DetectorSetting
from flightwatch.pipeline.control.people import Person
from flightwatch.pipeline.control.roles import Grant
from flightwatch.pipeline.control.tokens import Token
from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.layout import RETENTION

_RAW = {"data-raw": "1"}


def detector_table(changed: Mapping[str, DetectorSetting], view: View) -> Any:
    """Return every detector with its mode and a menu to change it."""
    modes = [("", t("mode.configured")), ("on", t("mode.on")), ("shadow", t("mode.shadow")), ("off", t("mode.off"))]
    rows = []
    for one in all_detectors():
        setting = changed.get(one.name) or DetectorSetting(one.name)
        now = setting.mode or ""
        options = [html.Option(words, value=value, selected=value == now) for value, words in modes]
        form = html.Form(
            [html.Select(options, name="mode", className="fw-select",
                         **{"aria-label": t("admin.mode_of", name=one.name)}),
             html.Button(t("admin.set"), type="submit", className="fw-chip")],
            className="fw-inline",
            **{"data-post": f"/api/v1/detectors/{one.name}", "data-method": "PUT", "data-body": '{"mode": null}'},
        )  # fmt: skip
        thresholds = ", ".join(f"{name} = {value:g}" for name, value in setting.thresholds.items())
        who = f"{setting.changed_by} · {view.clock(setting.changed_at_ms)}" if setting.changed_by else ""
        told = html.Span(" · ".join(part for part in (thresholds, who) if part), className="fw-dim", **_RAW)
        rows.append([html.Span(one.name, **_RAW), one.version, form, told])
    heads = [t("admin.detector"), t("admin.version"), t("admin.mode"), t("admin.changed")]
    return table(heads, rows, label=t("admin.detectors"))


def channel_list(services: Services, states: Mapping[str, ChannelState], waiting: Mapping[str, int], view: View) -> Any:
    """Return the channels that are set or were used, how each does, and a button that sends a test message."""
    names = sorted({*services.channels, *states, *waiting})
    if not names:
        return empty(t("admin.no_channels"), t("admin.no_channels_hint"))
    items = []
    for name in names:
        state, setting = states.get(name), services.channels.get(name)
        failing = state is not None and state.failing_since_ms is not None
        words = (
            t("channel.failing")
            if failing
            else t("channel.ok")
            if state and state.last_ok_at_ms
            else t("channel.unused")
        )
        tail = [t("channel.waiting", n=waiting[name])] if waiting.get(name) else []
        if state is not None and state.last_ok_at_ms:
            tail.append(t("channel.last_ok", at=view.clock(state.last_ok_at_ms)))
        test = acts.act_form(f"/api/v1/channels/{quote(name, safe='')}/test", [], t("channel.test"))
        items.append(
            html.Li(
                [
                    html.Strong(name, **_RAW), " ",
                    html.Span(setting.notifier.service if setting is not None else "", className="fw-dim", **_RAW), " ",
                    html.Span(words, className=f"fw-state {'open' if failing else 'done'}"),
                    html.Div(" · ".join(tail), className="fw-dim"),
                    *([html.Div(state.last_error, className="fw-warn", **_RAW)] if failing and state else []),
                    *([test] if setting is not None else []),
                ]
            )
        )  # fmt: skip
    return html.Ul(items, className="fw-list")


def _grants(grants: Sequence[Grant]) -> str:
    return ", ".join(t(f"role.{one.role.value}") + (f" ({one.tenant})" if one.tenant else "") for one in grants)


def people_table(people: Sequence[Person], view: View, now_ms: int) -> Any:
    """Return everybody who may come in, or once did."""
    del now_ms
    if not people:
        return empty(t("admin.nobody"), t("admin.nobody_hint"))
    rows = []
    for one in people:
        path = f"/api/v1/people/{quote(one.subject, safe='')}/disabled"
        off = one.disabled
        form = acts.act_form(path, [], t("admin.let_in") if off else t("admin.keep_out"), body={"disabled": not off},
                             data_method="PUT")  # fmt: skip
        rows.append(
            [
                html.Span(one.name or one.subject, title=one.subject, **_RAW),
                html.Span(_grants(one.grants), **_RAW),
                form,
            ]
        )
    return table([t("admin.person"), t("admin.role"), ""], rows, label=t("admin.people"))


def token_table(tokens: Sequence[Token], view: View, now_ms: int) -> Any:
    """Return valid tokens with what they may do, for how long, and who made them; the text of a token is nowhere."""
    alive = [one for one in tokens if one.revoked_at_ms is None and one.expires_at_ms > now_ms]
    if not alive:
        return empty(t("admin.no_tokens"))
    items = []
    for one in alive:
        left = age_text((one.expires_at_ms - now_ms) / 1000)
        used = t("admin.never_used") if one.used_at_ms is None else ago_text((now_ms - one.used_at_ms) / 1000)
        facts = (
            (t("admin.role"), _grants(one.grants) or t("admin.no_role")),
            (t("admin.scope"), " ".join(sorted(one.scopes))),
            (t("admin.until"), t("admin.left", date=view.clock(one.expires_at_ms)[:10], age=left)),
            (t("admin.owner"), one.owner),
            (t("admin.used"), used),
        )
        pairs = [part for label, words in facts for part in (html.Dt(label), html.Dd(words, **_RAW))]
        revoke = acts.act_form(f"/api/v1/tokens/{quote(one.id, safe='')}", [], t("admin.revoke"), data_method="DELETE")
        head = html.Div([html.Strong(one.name, **_RAW), revoke], className="fw-between")
        items.append(html.Li([head, html.Dl(pairs, className="fw-pairs")]))
    return html.Ul(items, className="fw-list")


def audit_table(entries: Sequence[AuditEntry], view: View) -> Any:
    """Return what people and rules did or tried."""
    if not entries:
        return empty(t("admin.no_audit"))
    rows = [
        [
            html.Span(view.clock(one.at_ms), className="fw-dim"), html.Span(one.actor, **_RAW),
            html.Span(one.action, className="" if one.ok else "fw-warn", **_RAW), html.Span(one.target, **_RAW),
            html.Span([one.detail or one.sql or "", *([f" · {one.address}"] if one.address else [])], **_RAW),
        ]
        for one in entries
    ]  # fmt: skip
    heads = [t("admin.when"), t("admin.who"), t("admin.what"), t("admin.target"), t("admin.detail")]
    return table(heads, rows, label=t("admin.audit"))


def retention_table(store: Store) -> Any:
    """Return how long the rows of each table are kept."""
    rows = []
    for name in sorted(TABLES):
        days = getattr(store.settings, RETENTION[name]) if name in RETENTION else TABLES[name].ttl_days
        rows.append([html.Span(name, **_RAW), t("admin.for_ever") if days is None else t("admin.days", n=days)])
    hint = html.P(t("admin.retention_hint"), className="fw-dim")
    return html.Div([hint, html.Details([html.Summary(t("admin.show_tables")),
                     table([t("admin.table"), t("admin.kept")], rows, label=t("admin.retention"))])])  # fmt: skip
