"""Findings and changes as lists beside other things."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from dash import html

from flightwatch.dashboard.components.panels import severity
from flightwatch.dashboard.components.request import link
from flightwatch.dashboard.components.sentences import told
from flightwatch.dashboard.components.text import ago_text
from flightwatch.dashboard.components.view import View
from flightwatch.dashboard.i18n import known, t


def target_link(row: Mapping[str, Any]) -> Any:
    """Return a link to what a row is about: its node and device, or its job."""
    if row.get("node"):
        tail = f"?device={row['device']}" if row.get("device") is not None else ""
        words = row["node"] + (f" · {row['device']}" if row.get("device") is not None else "")
        return html.A(words, href=link(f"/nodes/{quote(row['node'], safe='')}{tail}"), **{"data-raw": "1"})
    if row.get("job"):
        return html.A(row["job"], href=link(f"/jobs/{quote(row['job'], safe='')}"), **{"data-raw": "1"})
    return ""


def finding_list(findings: Sequence[Mapping[str, Any]], view: View, now_ms: int) -> html.Ul:
    """Return findings with severity, kind, target, sentence and age."""
    return html.Ul(
        [
            html.Li(
                [
                    severity(row["severity"]),
                    html.Strong(known("kind", row["kind"])),
                    " ",
                    target_link(row),
                    told(row["summary"]),
                    html.Div(
                        [
                            ago_text((now_ms - row["detected_at"]) / 1000),
                            " · ",
                            view.clock(row["detected_at"]),
                            "" if row["blames_hardware"] else f" · {t('finding.not_hardware')}",
                        ],
                        className="fw-dim",
                    ),
                ]
            )
            for row in findings
        ],
        className="fw-list",
    )


def change_list(changes: Sequence[Mapping[str, Any]], view: View) -> html.Ul:
    """Return what happened last, the newest first."""
    items = []
    for row in changes:
        source = row["source"]
        words = row["kind"]
        if source == "run" or source.startswith("finding."):
            words = known("phase" if source == "run" else "kind", row["kind"])
        job = row.get("job") or ""
        badge = severity(row["severity"]) if row["severity"] else None
        head = [
            html.Span(view.clock(row["ts"], date=False), className="fw-dim"),
            " ",
            badge,
            html.Span(known("change", source), className="fw-dim"),
            " ",
            html.Strong(words),
            " ",
            target_link({"job": job} if source == "run" and job else row),
        ]
        if source == "run" and job:
            body = html.Div(t("change.attempt", run=row["summary"].removeprefix(f"{job} ")), className="fw-dim")
        else:
            body = told(row["summary"])
        items.append(html.Li([*[part for part in head if part is not None], body]))
    return html.Ul(items, className="fw-list")
