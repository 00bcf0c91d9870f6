"""The evidence of an incident: both worlds over one time, against role peers; and which causes were looked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from dash import html

from flightwatch.core.incident import Incident
from flightwatch.core.vocabulary import FindingKind, FindingState
from flightwatch.dashboard.components import acts, graphs
from flightwatch.dashboard.components.graphs import Mark, Strip
from flightwatch.dashboard.components.panels import empty, quality
from flightwatch.dashboard.components.remembered import Remembered
from flightwatch.dashboard.components.sentences import words_of
from flightwatch.dashboard.components.view import View, Window
from flightwatch.dashboard.i18n import known, t
from flightwatch.dashboard.pages.node_series import port_strips
from flightwatch.detectors.joint import RULES
from flightwatch.incidents.facts import Facts
from flightwatch.pipeline.control.incident_rows import IncidentFinding
from flightwatch.pipeline.store import incident_page_reads
from flightwatch.pipeline.store.alert_reads import AlertReads, Series
from flightwatch.pipeline.store.client import Store

BEFORE_MS, AFTER_MS = 1_800_000, 600_000
LONGEST_MS = 6 * 3_600_000
POINTS = 240
MOST_MARKS = 10
KEPT_MS = 10_000
_KEPT = Remembered(KEPT_MS / 1000)
_UNITS = {"temp_c": "°C", "power_w": "W", "sm_clock_mhz": "MHz", "voltage_mv": "mV"}
#: Channels of a step by class of slowness; the first that is told is drawn.
_CHANNELS = {"link": ("transfer_us", "wait_us"), "storage": ("data_us",), "host": ("launch_gap_us", "compute_us")}
_READ = {"compute_us", "data_us", "transfer_us", "step_us", "launch_gap_us"}
_NETWORK = (FindingKind.RDMA.value, FindingKind.LINK_FLAP.value)
_TRAINING = {FindingKind.LOSS_SPIKE.value: "loss", FindingKind.GRAD_NORM.value: "grad_norm"}


def window_of(one: Incident, view: View, now_ms: int) -> Window:
    """Return the time shown: from 30 min before the opening to 10 min after the end, unless the address says."""
    if view.get("from") or view.get("range"):
        return view.window(now_ms)
    end = min(now_ms, (one.closed_at_ms or now_ms) + AFTER_MS)
    start = one.opened_at_ms - BEFORE_MS
    return Window(max(start, end - LONGEST_MS), end, live=one.closed_at_ms is None)


def evidence_figure(store: Store, one: Incident, facts: Facts, view: View, now_ms: int) -> tuple[Any, Any, Any, Any]:
    """Return the chart, its height, its note and its tools."""
    window = window_of(one, view, now_ms)
    # What it draws stands for KEPT_MS for all who look: it reads a job's ranks and a part of the fleet.
    whole = Window(window.start_ms // KEPT_MS * KEPT_MS, -(-window.end_ms // KEPT_MS) * KEPT_MS, live=window.live)
    key = (id(store), one.id, one.kind, one.class_, one.node, one.device, one.rank, one.job, whole)
    found = _KEPT.get(("training", *key), lambda: _training(AlertReads(store, one.cluster, 5.0), one, whole))
    strips = [_strip(item, view) for item in found]
    telemetry, newest = _telemetry(store, one, facts, view, whole)
    strips += telemetry
    if one.kind in _NETWORK and one.node:
        there = View(view.path, view.params, {"name": one.node})
        strips = port_strips(store, there, window, window.bucket_seconds(POINTS)) + strips
    if not strips:
        return graphs.lines({}, unit="", empty_text=t("incident.no_evidence")), {"height": "120px"}, "", None
    # Before the first value there is nothing to see: the chart begins there.
    times = [times for strip in strips for times, _ in strip.series.values() if len(times)]
    first = min((np.datetime64(one[0], "ms").item() for one in times), default=None)
    begin = view.local(window.start_ms)
    span = (begin if first is None else max(begin, first), view.local(window.end_ms))
    marks = [Mark(view.local(one.opened_at_ms), t("incident.opened"), one.severity.value)]
    if one.closed_at_ms is not None:
        marks.append(Mark(view.local(one.closed_at_ms), t("incident.closed"), "warning"))
    figure = graphs.strips(strips, span, marks)
    age = None if newest is None else max(0.0, (now_ms - newest) / 1000)
    note = quality(age, fixed=not window.live) if newest is not None else ""
    return figure, {"height": f"{max(180, 108 * len(strips) + 60)}px"}, note, _tools(one, facts, window)


def _tools(one: Incident, facts: Facts, window: Window) -> Any:
    """Return the button with the SQL of the chart."""
    span = f"ts BETWEEN fromUnixTimestamp64Milli({window.start_ms}) AND fromUnixTimestamp64Milli({window.end_ms})"
    if one.job and one.rank is not None:
        ranks = ", ".join(str(rank) for rank in (one.rank, *facts.peers))
        columns, table = "ts, rank, step, step_us, compute_us, wait_us, transfer_us, data_us", "rank_steps"
        where, order = f"job = {_text(one.job)} AND rank IN ({ranks}) AND {span}", "step, rank"
    elif one.node:
        device = "" if one.device is None else f" AND device = {one.device}"
        columns, table = "ts, node, device, temp_c, power_w, sm_clock_mhz, throttle_reasons", "device_samples"
        where, order = f"node = {_text(one.node)}{device} AND {span}", "ts, device"
    else:
        return None
    parts = ("SELECT", columns, "FROM", f"flightwatch.{table}", "WHERE", where, "ORDER BY", order)
    return acts.copy_button(t("incident.copy_sql"), " ".join(parts))


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _training(series: AlertReads, one: Incident, window: Window) -> list[Series]:
    if one.job is None:
        return []
    found: list[Series | None] = []
    if one.rank is not None:
        channels = [name for name in _CHANNELS.get(one.class_ or "", ("compute_us",)) if name in _READ]
        found += [series.step_times(one.job, [one.rank], name, window.start_ms, window.end_ms) for name in channels]
    if one.kind in _TRAINING:
        found.append(series.scalar(one.job, _TRAINING[one.kind], window.start_ms, window.end_ms))
    if one.kind in (FindingKind.HANG.value, FindingKind.CRASH.value):
        found.append(series.progress(one.job, window.start_ms, window.end_ms))
    if not any(found):
        found.append(series.step_times(one.job, [], "step_us", window.start_ms, window.end_ms))
    return [item for item in found if item is not None]


def _strip(item: Series, view: View) -> Strip:
    name, _, unit = item.quantity.partition(" (")
    times = [view.local(at) for at in item.times_ms]
    lines: dict[str, Any] = {}
    for title, values in ((t("incident.peers_low"), item.low), (t("incident.peers_mid"), item.middle),
                          (t("incident.peers_high"), item.high)):  # fmt: skip
        if any(value is not None for value in values):
            lines[title] = (times, values)
    lines[t("incident.target")] = (times, item.target)
    return Strip(known("quantity", name), unit.rstrip(")"), lines, t("incident.target"))


def _telemetry(store: Store, one: Incident, facts: Facts, view: View, window: Window) -> tuple[list[Strip], int | None]:
    nodes = list(facts.nodes) or ([one.node] if one.node else [])
    if not nodes:
        return [], None
    device = one.device if len(nodes) == 1 else None
    bucket = window.bucket_seconds(POINTS)
    rows = _KEPT.get(
        ("gauges", id(store), one.cluster, tuple(nodes), device, window, bucket),
        lambda: incident_page_reads.device_gauges(
            store, one.cluster, nodes, device, window.start_ms, window.end_ms, bucket
        ),
    )
    strips = []
    for name in incident_page_reads.GAUGES:
        if not any(row[f"{name}_mine"] is not None for row in rows):
            continue
        times = [view.local(_ms(row["bucket"])) for row in rows]
        lines: dict[str, Any] = {}
        for part in ("low", "mid", "high"):
            values = [row[f"{name}_{part}"] for row in rows]
            if any(value is not None for value in values):
                lines[t(f"incident.peers_{part}")] = (times, values)
        lines[t("incident.target")] = (times, [row[f"{name}_mine"] for row in rows])
        strips.append(Strip(t(f"metric.{name}"), _UNITS[name], lines, t("incident.target")))
    measured = [_ms(row["bucket"]) for row in rows if row["temp_c_mine"] is not None or row["power_w_mine"] is not None]
    return strips, max(measured, default=None)


def _ms(value: Any) -> int:
    return int(value) if isinstance(value, (int, float)) else int(value.timestamp() * 1000)


def causes(store: Store, cluster: str, one: Incident, found: Sequence[IncidentFinding]) -> Any:
    """Return which causes of the incident's kind were looked for: found, not there, or not measured."""
    open_kinds = {item.kind for item in found if item.state != FindingState.CLEARED}
    wanted = [rule.cause.value for rule in RULES if any(effect == one.kind for effect in rule.effects)]
    wanted = list(dict.fromkeys(kind for kind in wanted if kind in incident_page_reads.WITNESSES))
    if not wanted or one.node is None:
        return empty(t("incident.no_causes"))
    until = one.closed_at_ms or one.evidence_at_ms
    seen: Mapping[str, int] = incident_page_reads.looked_at(
        store, cluster, one.node, one.opened_at_ms - BEFORE_MS, until
    )
    items: list[Any] = []
    unseen: list[str] = []
    for kind in wanted:
        name = known("kind", kind)
        if kind in open_kinds:
            items += [html.Span("✕", className="yes"), html.Span(t("cause.found", kind=name))]
        elif kind == FindingKind.DEVICE_ERROR:
            items += [html.Span("✓", className="no"), html.Span(t("cause.not_reported", kind=name))]
        elif seen[kind]:
            items += [html.Span("✓", className="no"), html.Span(t("cause.ruled_out", kind=name, n=f"{seen[kind]:,}"))]
        else:
            unseen.append(name)
    if unseen:
        words = t("cause.nobody", kinds=", ".join(unseen))
        items += [html.Span("?", className="unseen"), html.Span(words, className="fw-dim")]
    if one.runner_up:
        other = html.Span(t("cause.runner_up", what=words_of(one.runner_up)), **{"data-raw": "1"})
        items += [html.Span("…", className="unseen"), other]
    return html.Div(items, className="fw-check")
