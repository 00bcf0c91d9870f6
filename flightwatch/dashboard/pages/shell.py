"""The frame around every page: header, navigation, time range, help; and the route from an address to its page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import ALL, ClientsideFunction, Dash, Input, Output, State, dcc, html

from flightwatch.dashboard.components import controls
from flightwatch.dashboard.components.panels import empty
from flightwatch.dashboard.components.request import link, theme, viewer
from flightwatch.dashboard.components.view import DEFAULT_RANGE, RANGES, View
from flightwatch.dashboard.i18n import LANGUAGES, NAMES, language, t
from flightwatch.dashboard.pages.contract import Page, captured
from flightwatch.dashboard.services import Services
from flightwatch.pipeline.store import search_reads

ZONES = (
    "UTC",
    "Asia/Shanghai",
    "Asia/Tokyo",
    "Europe/Berlin",
    "Europe/London",
    "America/New_York",
    "America/Los_Angeles",
)
REFRESHES = ("live", "10", "60", "off")
SEARCH_LIMIT = 12


def layout() -> Any:
    """Return what the browser gets first: the theme, the stores of route and refresh, and room for the page."""
    return dmc.MantineProvider(
        id="theme",
        forceColorScheme=theme(),
        theme={
            "fontFamily": "var(--fw-font)",
            "defaultRadius": "sm",
            "primaryColor": "blue",
            "primaryShade": {"light": 7, "dark": 8},
        },
        children=[
            dcc.Store(id="boot"),
            dcc.Store(id="route"),
            dcc.Store(id="beat", data=0),
            dcc.Store(id="title"),
            html.Div(id="app"),
        ],
    )


def register(app: Dash, services: Services, pages: Sequence[Page]) -> None:
    """Add the callbacks of the frame."""
    app.clientside_callback(_client("route"), Output("route", "data"), Input("boot", "id"))
    app.clientside_callback(
        _client("arrived"), Output("title", "modified_timestamp"), Input("title", "data"), prevent_initial_call=True
    )
    app.clientside_callback(
        _client("control"),
        Output("boot", "data"),
        Input({"type": "param", "name": ALL, "default": ALL}, "value"),
        prevent_initial_call=True,
    )

    @app.callback(Output("app", "children"), Output("title", "data"), Input("route", "data"), prevent_initial_call=True)
    def render(route: Any) -> tuple[Any, str]:
        view = View.of(route)
        page, view = find(pages, view)
        body = page.layout(view, services) if page is not None else _not_found()
        title = t(page.NAME) if page is not None else t("page.missing")
        name = view.captured.get("name") or view.captured.get("id")
        head = frame(view, pages)
        return [*head, _main(view, body)], f"{name} · {title}" if name else title

    @app.callback(
        Output("fw-found", "children"), Input("fw-search", "value"), State("route", "data"), prevent_initial_call=True
    )
    def search(text: str | None, _: Any) -> Any:
        return _found(services, text or "")


def _client(name: str) -> ClientsideFunction:
    return ClientsideFunction("flightwatch", name)


def find(pages: Sequence[Page], view: View) -> tuple[Page | None, View]:
    """Return the page of a path and the view with the parts of the path it names."""
    for page in pages:
        parts = captured(page.PATH, view.path)
        if parts is not None:
            return page, View(view.path, view.params, parts)
    return None, view


def _main(view: View, body: Any) -> html.Main:
    return html.Main([dcc.Store(id="view", data=view.data()), body], id="fw-main", tabIndex="-1")


def _not_found() -> Any:
    return empty(t("page.missing"), html.A(t("page.fleet"), href=link("/")))


def frame(view: View, pages: Sequence[Page]) -> list[Any]:
    """Return header and help of a page."""
    links = [
        html.A(t(page.NAME), href=link(page.PATH), **({"data-go": page.KEY} if page.KEY else {}))
        for page in pages
        if page.IN_MENU
    ]
    header = html.Header(
        [
            html.A(t("skip"), href="#fw-main", className="fw-skip", **{"data-plain": "1"}),
            html.A(
                [html.Span(className="fw-logo"), "Flightwatch"],
                href=link("/"),
                className="fw-brand",
                **{"data-raw": "1"},
            ),
            html.Button("☰", className="fw-icon fw-menu", **{"data-action": "menu", "aria-label": t("menu")}),
            html.Nav(links, id="fw-nav", **{"aria-label": t("menu")}),
            html.Div([_search_box(), *_time_controls(view), *_buttons(), _live(), _who()], className="fw-controls"),
        ],
        id="fw-header",
    )
    return [header, _help(pages)]


def _search_box() -> html.Div:
    return html.Div(
        [
            dmc.TextInput(
                id="fw-search",
                placeholder=t("search.everything"),
                size="xs",
                debounce=150,
                w=170,
                **{"aria-label": t("search.everything")},
            ),
            html.Div(id="fw-found", className="fw-found", role="listbox", **{"aria-label": t("search.found")}),
        ],
        className="fw-searchbox",
    )


def _found(services: Services, text: str) -> list[Any]:
    if len(text.strip()) < 2:
        return []
    hits = search_reads.find(services.store, text.strip(), SEARCH_LIMIT)
    if not hits:
        return [html.Div(t("search.nothing"), className="fw-dim")]
    return [
        html.A(
            [html.Span(t(f"search.{hit.kind}"), className="fw-dim"), html.Span(hit.name, **{"data-raw": "1"})],
            href=link(hit.path),
            role="option",
        )
        for hit in hits
    ]


def _time_controls(view: View) -> list[Any]:
    absolute = bool(view.get("from"))
    ranges = [(word, t("range.last", span=t(f"range.{word}"))) for word in RANGES]
    if absolute:
        ranges = [("custom", t("range.custom")), *ranges]
    zones = [*ZONES] if view.zone_name in ZONES else [view.zone_name, *ZONES]
    picker = html.Details(
        [
            html.Summary("⋯", className="fw-icon", title=t("range.absolute"), **{"aria-label": t("range.absolute")}),
            _absolute_form(view),
        ],
        className="fw-pop",
    )
    chosen = View(view.path, {**view.params, "range": "custom"} if absolute else view.params)
    return [
        controls.select(chosen, "range", ranges, t("range.label"), DEFAULT_RANGE),
        picker,
        controls.select(view, "refresh", [(word, t(f"refresh.{word}")) for word in REFRESHES], t("refresh.label")),
        controls.select(view, "tz", [(zone, zone) for zone in zones], t("zone.label")),
    ]


def _absolute_form(view: View) -> html.Div:
    return html.Div(
        [
            html.Label(t("range.from"), htmlFor="fw-from"),
            dcc.Input(id="fw-from", value=view.get("from"), placeholder="2026-11-29 19:00", className="fw-input"),
            html.Label(t("range.to"), htmlFor="fw-to"),
            dcc.Input(id="fw-to", value=view.get("to"), placeholder=t("range.now"), className="fw-input"),
            html.Button(t("range.apply"), className="fw-button", **{"data-action": "range"}),
            html.P(t("range.zone", zone=view.zone_name), className="fw-dim"),
        ],
        className="fw-form",
    )


def _buttons() -> list[Any]:
    now = language()
    languages = [
        html.Button(
            NAMES[code],
            className="fw-lang",
            lang=code,
            **{
                "data-action": "lang",
                "data-lang": code,
                "aria-pressed": "true" if code == now else "false",
                "data-raw": "1",
            },
        )
        for code in LANGUAGES
    ]

    def icon(sign: str, action: str, label: str, **more: str) -> Any:
        return html.Button(
            sign, className="fw-icon", title=label, **{"data-action": action, "aria-label": label, **more}
        )

    return [
        html.Div(languages, className="fw-langs", role="group", **{"aria-label": t("language")}),
        icon("◐", "theme", t("theme.switch")),
        icon("", "copy-link", t("copy_link"), **{"data-icon": "link"}),
        icon("?", "help", t("help.title")),
    ]


def _live() -> html.Span:
    states = [
        html.Span(t(f"live.{state}"), className=f"fw-live-{state}") for state in ("live", "poll", "paused", "lost")
    ]
    return html.Span([html.Span(className="fw-dot"), *states], className="fw-live", role="status")


def _who() -> html.Span:
    person = viewer()
    name = t("viewer.local") if person.via == "local" else person.name
    return html.Span(
        [html.Span(name, **{"data-raw": "1"}), html.Small(t(f"role.{person.role.value}"))],
        className="fw-who",
        title=t("viewer.title"),
    )


def _help(pages: Sequence[Page]) -> Any:
    keys = [(f"g {page.KEY}", t(page.NAME)) for page in pages if page.KEY]
    keys += [
        ("/", t("help.search")),
        ("?", t("help.title")),
        ("t", t("theme.switch")),
        ("l", t("copy_link")),
        ("a", t("help.acknowledge")),
        ("Esc", t("help.escape")),
        ("← ↑ → ↓", t("help.arrows")),
        ("Enter", t("help.enter")),
        ("+ − 0", t("help.zoom")),
        (t("help.drag"), t("help.brush")),
        ("Ctrl Enter", t("help.run")),
    ]
    rows = [html.Tr([html.Td([html.Kbd(part) for part in key.split(" ")]), html.Td(words)]) for key, words in keys]
    return html.Dialog(
        [
            html.Div(
                [
                    html.H2(t("help.title")),
                    html.Button("×", className="fw-icon", **{"data-action": "close-help", "aria-label": t("close")}),
                ],
                className="fw-head",
            ),
            html.Table(html.Tbody(rows)),
        ],
        id="fw-help",
        **{"aria-label": t("help.title")},
    )


def index_page(
    base_path: str, words: dict[str, str], metas: str, css: str, config: str, scripts: str, renderer: str, favicon: str
) -> str:
    """Return the document around the console; its outline is drawn before any script has run."""
    code = {"en": "en", "zh": "zh-CN"}[language()]
    embedded = json.dumps(words, ensure_ascii=False).replace("<", "\\u003c")
    return (
        f'<!DOCTYPE html><html lang="{code}" data-theme="{theme()}" data-mantine-color-scheme="{theme()}"'
        f' data-base="{base_path}" data-live="poll"><head>{metas}<title>Flightwatch</title>{favicon}{css}'
        '<meta name="viewport" content="width=device-width, initial-scale=1"></head>'
        f'<body data-ag-theme-mode="{theme()}">'
        f'<script type="application/json" id="fw-texts">{embedded}</script>'
        '<div id="react-entry-point"><div class="fw-boot"><span class="fw-logo"></span>Flightwatch'
        f"<p>{t('loading')}</p></div></div>"
        f"<footer>{config}{scripts}{renderer}</footer></body></html>"
    )
