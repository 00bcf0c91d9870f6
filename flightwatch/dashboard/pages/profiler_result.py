"""The result of a profile: flame graph, difference to a peer, ops across ranks, timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from dash import Dash, Input, Output, html

from flightwatch.dashboard import flames, perfetto
from flightwatch.dashboard.components import controls, traces
from flightwatch.dashboard.components.canvas import FlameGraph
from flightwatch.dashboard.components.panels import empty, panel, table
from flightwatch.dashboard.components.request import link
from flightwatch.dashboard.components.safely import safely
from flightwatch.dashboard.components.scope import check_job
from flightwatch.dashboard.components.text import micros_text
from flightwatch.dashboard.components.view import View
from flightwatch.dashboard.i18n import t
from flightwatch.dashboard.services import Services
from flightwatch.pipeline.profiles.records import BLOCKS, REQUEST_ENDED, Profiles

TOP_OPS, CHANGED_OPS, MOST_COLUMNS = 30, 20, 8


def layout(view: View) -> list[Any]:
    """Return the panels of a profile's result; empty panels until one is chosen."""
    if not view.get("id"):
        return [panel(t("profiler.flame"), empty(t("profiler.choose"), t("profiler.choose_hint")))]
    return [
        panel(
            t("profiler.flame"),
            html.Div(id="profiler-flame-empty"),
            FlameGraph(id="profiler-flame", unit="µs", height=60, search=view.get("q")),
            html.Div(id="profiler-legend", className="fw-legend"),
            tools=[
                html.Div(id="profiler-which", className="fw-tools"),
                controls.search(view, label=t("profiler.search")),
            ],
        ),
        html.Div(
            [
                panel(t("profiler.changed"), html.Div(id="profiler-changed")),
                panel(t("profiler.top"), html.Div(id="profiler-top")),
            ],
            className="fw-columns",
        ),
    ]


def register(app: Dash, services: Services) -> None:
    """Add the callbacks."""

    @app.callback(
        Output("profiler-flame", "frames"),
        Output("profiler-which", "children"),
        Output("profiler-legend", "children"),
        Output("profiler-changed", "children"),
        Output("profiler-top", "children"),
        Output("profiler-flame-empty", "children"),
        Input("view", "data"),
        Input("beat", "data"),
    )
    @safely(6, 5)
    def show(data: Any, _: Any) -> tuple[Any, ...]:
        view = View.of(data)
        done = _done(services, view.get("id"))
        if not done:
            return (
                None,
                [],
                [],
                empty(t("profiler.no_trace")),
                empty(t("profiler.no_trace")),
                empty(t(_why_none(services, view.get("id")))),
            )
        rank, peer = _pair(view, done)
        mine = _read(done[rank])
        other = None if peer is None else _read(done[peer])
        all_traces = [_read(row) for row in list(done.values())[:MOST_COLUMNS]]
        return (
            traces.frames(mine, other),
            _which(view, done, rank, peer),
            _legend(view, mine, other is not None),
            _changed(mine, other),
            _top(all_traces, rank),
            None,
        )

    @app.callback(Output("profiler-flame", "search"), Input("view", "data"))
    def search(data: Any) -> str:
        return View.of(data).get("q")


def _done(services: Services, name: str) -> dict[int, Mapping[str, Any]]:
    if services.control is None or not name:
        return {}
    found = Profiles(services.control).get(name)
    check_job(services.store, found["job"])
    return {row["rank"]: row for row in found["ranks"] if row["artifact"] and row["state"] in ("done", "sent")}


def _why_none(services: Services, name: str) -> str:
    """Return the word that says why a profile has no trace to draw; its job was checked before."""
    found = Profiles(services.control).get(name) if services.control is not None and name else None
    if found is None or found["state"] not in REQUEST_ENDED:
        return "profiler.waiting"
    return "profiler.blocks_are_rows" if BLOCKS in found["options"] else "profiler.ended_without"


def _pair(view: View, done: Mapping[int, Any]) -> tuple[int, int | None]:
    ranks = sorted(done)
    asked, other = view.number("rank"), view.number("peer")
    # The form fills in the suspect before its peers, so the order in the address tells which it is.
    first = view.get("ranks").split(",")[0]
    suspect = int(first) if first.isascii() and first.isdigit() and int(first) in done else ranks[0]
    rank = asked if asked in done else suspect
    peer = other if other in done and other != rank else None
    return int(rank if rank is not None else ranks[0]), peer


def _read(row: Mapping[str, Any]) -> traces.Trace:
    return traces.read_trace(row["artifact"], row["sha256"] or "", row["rank"])


def _which(view: View, done: Mapping[int, Any], rank: int, peer: int | None) -> list[Any]:
    ranks = [(str(one), f"rank {one}") for one in sorted(done)]
    chosen = View(view.path, {**view.params, "rank": str(rank), "peer": "" if peer is None else str(peer)})
    others = [
        ("", t("profiler.alone")),
        *[(value, t("profiler.against", rank=value)) for value, _ in ranks if value != str(rank)],
    ]
    menus = [
        controls.select(chosen, "rank", ranks, "rank", default=""),
        controls.select(chosen, "peer", others, t("profiler.peer")),
    ]
    name = quote(view.get("id"), safe="")
    for ending, words in (("speedscope.json", t("profiler.speedscope")), ("folded.txt", t("profiler.folded"))):
        file = f"{view.get('id')}-rank{rank}.{ending}"
        about = t("profiler.files", rank=rank)
        menus.append(
            html.A(
                words,
                href=link(flames.path_of(name, rank, ending)),
                download=file,
                className="fw-chip",
                title=f"{about} {file}",
            )
        )
    if perfetto.folder() is not None:
        menus.append(
            html.A(
                t("profiler.timeline"),
                className="fw-chip",
                target="_blank",
                rel="noopener",
                href=link(f"/perfetto/#!/?url={{origin}}{quote(link(f'/timelines/{name}.json.gz'), safe='')}"),
                **{"data-absolute": "1"},
            )
        )
    return menus


def _legend(view: View, mine: traces.Trace, compared: bool) -> list[Any]:
    parts: list[Any] = []
    if compared:
        parts.append(
            html.Span([t("profiler.less"), html.Span(className="fw-ramp", **{"data-ramp": "diff"}), t("profiler.more")])
        )
        parts.append(html.Span([html.Span(className="fw-key"), t("js.only_here")]))
    else:
        parts.append(html.Span(t("profiler.colours")))
    parts += [html.Span(note, className="fw-warn", **{"data-raw": "1"}) for note in mine.notes[:3]]
    return parts


def _changed(mine: traces.Trace, other: traces.Trace | None) -> Any:
    if other is None:
        return empty(t("profiler.no_peer"))
    rows = [
        [
            html.Span(row["op"], title=row["op"], className="fw-op", **{"data-raw": "1"}),
            micros_text(row["b_self_us"]),
            micros_text(row["a_self_us"]),
            html.Span(
                ("+" if row["delta_us"] > 0 else "−") + micros_text(abs(row["delta_us"])),
                className="fw-warn" if row["delta_us"] > 0 else "",
            ),
            t("profiler.new") if row["ratio"] is None or row["ratio"] > 1000 else f"{row['ratio']:.2f} ×",
        ]
        for row in traces.changed_ops(mine, other, CHANGED_OPS)
    ]
    heads = [t("profiler.op"), f"rank {mine.rank}", f"rank {other.rank}", t("profiler.delta"), t("profiler.ratio")]
    return table(heads, rows, numeric=(1, 2, 3, 4), label=t("profiler.changed"))


def _top(found: Sequence[traces.Trace], rank: int) -> Any:
    ranks = sorted(trace.rank for trace in found)
    rows = []
    for op in traces.top_ops(found, TOP_OPS):
        known = list(op["ranks"].values())
        middle = sorted(known)[len(known) // 2]
        cells = [
            html.Span(
                micros_text(op["ranks"].get(one)),
                className="fw-warn" if op["ranks"].get(one, 0) > 1.15 * middle and len(known) > 2 else "",
            )
            for one in ranks
        ]
        rows.append(
            [
                html.Span(op["op"], title=op["op"], className="fw-op", **{"data-raw": "1"}),
                t(f"opkind.{op['kind']}"),
                *cells,
            ]
        )
    heads = [t("profiler.op"), t("profiler.kind"), *[f"rank {one}" for one in ranks]]
    return table(heads, rows, numeric=tuple(range(2, 2 + len(ranks))), label=t("profiler.top"))
