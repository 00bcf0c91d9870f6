"""The page of a node or job that nobody knows: one calm sentence, and names that are written alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from dash import html

from flightwatch.core.errors import FlightwatchError
from flightwatch.dashboard.components.request import link
from flightwatch.dashboard.components.scope import own_jobs, own_nodes
from flightwatch.dashboard.i18n import t
from flightwatch.pipeline.store import search_reads
from flightwatch.pipeline.store.client import Store

NEAR = 5
#: Names that whoever asks may see, None for all; by kind.
_OWN: dict[str, Callable[[Store], set[str] | None]] = {"node": own_nodes, "job": own_jobs}
_LIST = {"node": ("page.fleet", "/"), "job": ("page.jobs", "/jobs")}


def absent(store: Store, kind: str, name: str) -> Any | None:
    """Return the page that says that there is no such node or job ("node", "job"); None where there is one.

    What belongs to another tenant is said not to be there. When the store cannot be asked, the page goes on: its
    panels say why.
    """
    try:
        own = _OWN[kind](store)
        known = name in own if own is not None else search_reads.is_known(store, kind, name)
        if known:
            return None
        near = search_reads.near(store, kind, name, NEAR, own)
    except FlightwatchError:
        return None
    words, path = _LIST[kind]
    similar = html.P([t("absent.near"), " ", *_links(kind, near)]) if near else html.P(t("absent.none"))
    return calm(t(f"{kind}.absent", name=name), similar, html.A(t(words), href=link(path)))


def calm(words: str, *more: Any) -> html.Div:
    """Return a page that has one thing to say, and where to go from there."""
    return html.Div([html.H1(words, **{"data-raw": "1"}), *more], className="fw-absent", role="status")


def _links(kind: str, names: list[str]) -> list[Any]:
    links = [html.A(name, href=link(f"/{kind}s/{quote(name, safe='')}"), **{"data-raw": "1"}) for name in names]
    return [part for one in links for part in (one, " ")][:-1]
