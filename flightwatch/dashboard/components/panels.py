"""Panels: a title, what is inside, how complete and how old it is; and what stands there when nothing is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import dcc, html

from flightwatch.dashboard.components.text import DASH, ago_text
from flightwatch.dashboard.components.view import View
from flightwatch.dashboard.i18n import t

#: Data older than this is marked.
STALE_SECONDS = 60.0


def panel(
    title: str,
    *children: Any,
    note: Any = None,
    tools: Any = None,
    class_name: str = "",
    panel_id: str | None = None,
) -> html.Section:
    """Return a panel.

    Parameters
    ----------
    note: coverage and age, beside the title; a component, or the id of one that a callback fills.
    tools: controls at the right of the title.
    """
    shown = html.Span(id=note, className="fw-note") if isinstance(note, str) else note
    head = [html.H2(title), *([shown] if shown is not None else [])]
    if tools is not None:
        head.append(html.Div(tools, className="fw-tools"))
    more = {"id": panel_id} if panel_id else {}
    return html.Section([html.Div(head, className="fw-head"), *children], className=f"fw-panel {class_name}", **more)


def quality(
    age_seconds: float | None,
    reporting: int | None = None,
    expected: int | None = None,
    unit: str = "",
    *,
    fixed: bool = False,
) -> html.Span:
    """Return coverage and age of a panel's data; stale data and missing reporters are marked.

    Parameters
    ----------
    reporting, expected: how many there are of how many; None where that is not known.
    unit: what is counted, in the reader's language.
    fixed: a stretch of the past is shown; how old its newest value is says nothing.
    """
    parts: list[Any] = []
    if reporting is not None:
        if expected is None:
            parts.append(html.Span(f"{reporting:,} {unit}"))
        else:
            short = " fw-warn" if reporting < expected else ""
            parts.append(
                html.Span(
                    t("coverage.of", reporting=f"{reporting:,}", expected=f"{expected:,}", unit=unit),
                    className=f"fw-cover{short}",
                )
            )
    if fixed:
        pass
    elif age_seconds is None:
        parts.append(html.Span(t("age.unknown"), className="fw-warn"))
    else:
        stale = " fw-stale" if age_seconds > STALE_SECONDS else ""
        words = t("age.stale", age=ago_text(age_seconds)) if stale else ago_text(age_seconds)
        parts.append(html.Span(words, className=f"fw-age{stale}"))
    joined = [item for part in parts for item in (part, " · ")][:-1]
    return html.Span(joined, className="fw-note")


def zone_note(view: View) -> html.Span:
    """Return the note that says in which time zone a panel's times are."""
    return html.Span(view.zone_name, className="fw-note", **{"data-raw": "1"})


def empty(words: str, hint: Any = None) -> html.Div:
    """Return what a panel says when it has nothing to show, and what would change that."""
    return html.Div(
        [html.P(words), *([html.P(hint, className="fw-dim")] if hint is not None else [])], className="fw-empty"
    )


def failure(words: str) -> html.Div:
    """Return what a panel says when its data could not be read."""
    return html.Div([html.Strong(t("error.title")), html.P(words)], className="fw-empty fw-error", role="alert")


def unknown(reason: str) -> html.Span:
    """Return the dash of an unknown value; the reason is on it."""
    return html.Span(DASH, title=reason, className="fw-unknown", **{"aria-label": f"{DASH} ({reason})"})


def figure_tile(title: str, value: Any, note: Any = "", *, tone: str = "", href: str = "") -> Any:
    """Return one headline figure; `tone` is good, warn, bad or empty; with `href` it leads somewhere."""
    inside = [
        html.Div(title, className="fw-tile-title"),
        html.Div(value, className=f"fw-tile-value {tone}", **{"data-raw": "1"}),
        html.Div(note, className="fw-tile-note"),
    ]
    return html.A(inside, href=href, className="fw-tile") if href else html.Div(inside, className="fw-tile")


def waiting_tiles(count: int) -> html.Div:
    """Return the places of headline figures that a callback brings."""
    return tiles([html.Div(className="fw-tile fw-waiting") for _ in range(count)])


def tiles(items: Sequence[Any]) -> html.Div:
    """Return a row of headline figures."""
    return html.Div(list(items), className="fw-tiles")


def waiting(target_id: str, height_px: int) -> dcc.Loading:
    """Return the place of something that a callback brings; it keeps its height while it waits."""
    return dcc.Loading(
        html.Div(id=target_id, style={"minHeight": f"{height_px}px"}),
        delay_show=400,
        type="dot",
        color="var(--fw-accent)",
    )


def severity(word: str) -> html.Span:
    """Return the badge of a severity."""
    return html.Span(word, className=f"fw-badge {word.lower()}", **{"data-raw": "1"})


def table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], *, numeric: Sequence[int] = (), label: str
) -> html.Div:
    """Return a small plain table; `numeric` are the columns set to the right."""

    def style(index: int) -> str:
        return "num" if index in numeric else ""

    head = html.Thead(html.Tr([html.Th(name, className=style(i), scope="col") for i, name in enumerate(columns)]))
    body = html.Tbody([html.Tr([html.Td(cell, className=style(i)) for i, cell in enumerate(row)]) for row in rows])
    return html.Div(
        html.Table([head, body], **{"aria-label": label}),
        className="fw-table",
        tabIndex="0",
        role="region",
        **{"aria-label": label},
    )
