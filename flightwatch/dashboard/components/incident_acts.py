"""What a person can do about an incident: one row of buttons, each a form of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from dash import html

from flightwatch.core.incident import Incident, IncidentState
from flightwatch.dashboard.components import acts
from flightwatch.dashboard.components.request import link, viewer
from flightwatch.dashboard.components.sentences import title_of
from flightwatch.dashboard.components.text import hours_text
from flightwatch.dashboard.i18n import known, t
from flightwatch.incidents.facts import Facts
from flightwatch.pipeline.control.action_model import Action
from flightwatch.pipeline.control.roles import Role

#: Steps of the profile that one click starts.
PROFILE_STEPS = 5


def act_bar(one: Incident, facts: Facts, actions: Sequence[Action]) -> Any:
    """Return the row; a viewer gets what changes nothing, and one sentence why there is no more."""
    path = f"/api/v1/incidents/{quote(one.id, safe='')}"
    report = html.A(
        t("act.report"), href=link(f"{path}/post-mortem?format=html"), target="_blank", className="fw-button"
    )
    if not viewer().may(Role.OPERATOR, one.tenant):
        return html.Div([report, acts.not_allowed(t("act.viewer_only"))], className="fw-acts")
    buttons = _closed(path) if one.closed else _open(one, path, facts, actions)
    note = acts.drop_down(
        t("act.note"), acts.act_form(f"{path}/notes", [acts.note_field("text", t("act.note"), rows=3)], t("act.add"))
    )
    return html.Div([*buttons, note, report], className="fw-acts", role="group", **{"aria-label": t("act.group")})


def _closed(path: str) -> list[Any]:
    return [acts.act_form(f"{path}/reopen", [], t("act.reopen"))]


def _open(one: Incident, path: str, facts: Facts, actions: Sequence[Action]) -> list[Any]:
    buttons: list[Any] = []
    if one.state is IncidentState.OPEN:
        buttons.append(acts.act_form(f"{path}/acknowledge", [], t("act.acknowledge"), tone="primary", shortcut="a"))
    mine = acts.act_form(f"{path}/assign", [], t("act.take"), body={"assignee": viewer().name})
    other = acts.act_form(f"{path}/assign", [acts.field("assignee", t("col.assignee"))], t("act.assign"))
    buttons.append(acts.drop_down(t("act.assign"), mine, html.Hr(), other))
    buttons.append(_silence(one))
    if one.node and one.blames_hardware:
        buttons.append(_drain(one, facts, actions))
    profile = _profile(one, facts)
    if profile is not None:
        buttons.append(profile)
    states = [("resolved", t("incidents.resolved")), ("false_positive", t("incidents.false_positive"))]
    fields = [acts.choice_field("state", t("col.state"), states, "resolved"), acts.note_field("note", t("act.note"))]
    buttons.append(acts.drop_down(t("act.resolve"), acts.act_form(f"{path}/resolve", fields, t("act.resolve"))))
    return buttons


def _silence(one: Incident) -> Any:
    """Return one form: what is silenced, for how long, why."""
    kind, job = known("kind", one.kind), one.job
    choices = [({"id": one.id}, t("silence.this"))]
    if one.node:
        choices.append(({"node": one.node}, t("silence.node", node=one.node)))
    whole = t("silence.kind_job", kind=kind, job=job) if job else t("silence.kind", kind=kind)
    choices.append(({"kind": one.kind, **({"job": job} if job else {})}, whole))
    scope = {"tenant": one.tenant} if one.tenant else {}
    options = [(json.dumps(matchers | scope), words) for matchers, words in choices]
    fields = [
        acts.choice_field("matchers", t("silence.what"), options, options[0][0], "json", raw=True),
        acts.hours_field(),
        acts.field("reason", t("act.reason")),
    ]
    return acts.drop_down(t("act.silence"), acts.act_form("/api/v1/silences", fields, t("act.silence")))


def _drain(one: Incident, facts: Facts, actions: Sequence[Action]) -> Any:
    waiting = next((item for item in actions if item.kind == "drain" and item.state == "proposed"), None)
    done = next((item for item in actions if item.kind == "drain" and item.state in ("approved", "running", "done")
                 and item.mode != "dry_run"), None)  # fmt: skip
    if done is not None:
        return html.Span(t(f"drain.{done.state}", node=one.node), className="fw-state done")
    cost = facts.cost
    loss = t("drain.loss", loss=hours_text(one.loss_gpu_hours_per_hour))
    dear = None if cost is None else cost.restart
    restart = t("drain.restart_unknown") if dear is None else t("drain.restart", cost=hours_text(dear))
    even = "" if cost is None or cost.break_even_hours is None else t(
        "drain.even", hours=f"{cost.break_even_hours:.1f}")  # fmt: skip
    spares = t("drain.spares_unknown") if facts.spares is None else t("drain.spares", n=f"{facts.spares:,}")
    fields = [
        html.P(f"{loss} · {restart}", **{"data-raw": "1"}),
        html.P(" ".join(filter(None, (even, spares))), className="fw-dim"),
        acts.field("reason", t("act.reason"), value=title_of(one)[:200]),
        acts.field("confirm", t("drain.type", node=one.node)),
    ]
    form = acts.act_form(
        "/api/v1/actions", fields, t("drain.do"), tone="danger",
        body={"kind": "drain", "node": one.node, "incident": one.id},
        data_steps="drain", data_confirm="confirm", data_expect=one.node, data_revision=str(one.revision),
        data_known=waiting.id if waiting is not None else "",
    )  # fmt: skip
    return acts.drop_down(t("drain.title"), form, tone="danger", note=t("drain.note"))


def _profile(one: Incident, facts: Facts) -> Any | None:
    """Return the button that profiles the suspect and two role peers on the same steps."""
    if one.job is None or one.rank is None or not facts.peers or not facts.profilable:
        return None
    ranks = [one.rank, *facts.peers]
    body = {"job": one.job, "ranks": ranks, "steps": PROFILE_STEPS, "reason": f"incident {one.id}"}
    words = t("act.profile", ranks=", ".join(map(str, ranks)))
    return acts.act_form(
        "/api/v1/profiles", [], words, body=body, data_then=f"/profiler?job={quote(one.job)}&profile={{id}}"
    )
