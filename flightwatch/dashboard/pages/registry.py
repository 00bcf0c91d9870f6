"""Every page of the console: one line each, in the order of the menu."""

from __future__ import annotations

from typing import cast

from flightwatch.dashboard.pages import admin, fleet, incident, incidents, job, jobs, node, profiler, ranks, setup, sql
from flightwatch.dashboard.pages.contract import Page

#: Paths are tried in this order.
PAGES = cast(
    "tuple[Page, ...]",
    (
        fleet,
        incidents,
        incident,
        node,
        jobs,
        job,
        ranks,
        profiler,
        sql,
        admin,
        setup,
    ),
)
