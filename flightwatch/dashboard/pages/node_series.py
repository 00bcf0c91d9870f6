"""The series of a node as strips over one axis of time; what was not measured has no strip."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from flightwatch.dashboard.components.graphs import Mark, Strip
from flightwatch.dashboard.components.scope import check_node
from flightwatch.dashboard.components.view import View, Window
from flightwatch.dashboard.i18n import known, t
from flightwatch.pipeline.store import page_reads, reads_node, reads_steps
from flightwatch.pipeline.store.client import Store

#: Points of one line.
POINTS = 240
GIB = 2**30
MOST_MARKS = 24
DEVICE_STRIPS = (("temp_c", "°C"), ("hotspot_c", "°C"), ("power_w", "W"), ("sm_clock_mhz", "MHz"), ("util_pct", "%"))
MOST_RANKS = 16

Points = tuple[list[Any], list[float | None]]


def node_of(store: Store, view: View) -> str:
    """Return the node of a page's address. Raises Refused when whoever asks may not see it."""
    name = view.captured.get("name", "")
    check_node(store, name)
    return name


def device_strips(store: Store, view: View, window: Window) -> tuple[list[Strip], float | None, int]:
    """Return the strips of a node's accelerators, the age of the newest bucket, and how many accelerators told."""
    name, chosen = node_of(store, view), view.number("device")
    bucket = window.bucket_seconds(POINTS)
    rows = reads_node.device_series(store, name, window.start_ms, window.end_ms, bucket)
    by_device: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_device.setdefault(row["device"], []).append(row)
    strong = str(chosen) if chosen in by_device else None
    strips = []
    for column, unit in DEVICE_STRIPS:
        series = {str(device): _points(view, some, column) for device, some in by_device.items()}
        if _any(series):
            strips.append(Strip(t(f"metric.{column}"), unit, series, strong))
    for names, title, unit, per_s, scale in (
        (("ecc_corrected_total", "ecc_uncorrected_total"), t("strip.ecc"), t("unit.per_minute"), 60.0, 1.0),
        (("throttle_thermal_us_total", "throttle_power_us_total"), t("strip.throttle"), "%", 1.0, 1e-4),
        (("link_errors_total",), t("strip.link_errors"), t("unit.per_minute"), 60.0, 1.0),
    ):
        series = {str(device): _grown(view, some, names, per_s, scale) for device, some in by_device.items()}
        if _any(series, beyond_zero=True):
            strips.append(Strip(title, unit, series, strong, zero=True))
    newest = max((row["bucket"] for row in rows), default=None)
    age = None if newest is None else max(0.0, (window.end_ms - newest) / 1000 - bucket)
    return strips, age if window.live else 0.0, len(by_device)


def step_strips(store: Store, view: View, window: Window) -> list[Strip]:
    """Return compute and waiting per step of the ranks on a node, for the job that stepped there last."""
    name = node_of(store, view)
    ranks = reads_node.ranks_on(store, name)
    if not ranks:
        return []
    job, run = ranks[0]["job"], ranks[0]["run"]
    attempt = next((one for one in reads_steps.attempts(store, job) if one.run == run), None)
    if attempt is None:
        return []
    mine = [row["rank"] for row in ranks if (row["job"], row["run"]) == (job, run)][:MOST_RANKS]
    steps = reads_steps.chosen_steps(store, job, attempt, window.start_ms, window.end_ms, POINTS)
    if not steps:
        return []
    devices = {row["rank"]: row["device"] for row in ranks}
    chosen = view.number("device")
    strips = []
    for channel in ("compute_us", "wait_us"):
        found = reads_steps.matrix(store, job, attempt, steps, channel, mine)
        times = [view.local(ts) for ts in found.starts_ms]
        series: dict[str, Points] = {}
        strong = None
        for index, rank in enumerate(found.ranks):
            label = f"rank {rank}"
            series[label] = (times, [None if np.isnan(v) else float(v) / 1000 for v in found.values_RS[index]])
            if chosen is not None and devices.get(int(rank)) == chosen:
                strong = label
        if _any(series):
            strips.append(Strip(t(f"channel.{channel}"), "ms", series, strong))
    return strips


def host_strips(store: Store, view: View, window: Window) -> tuple[list[Strip], float | None]:
    """Return the strips of the host, its ports and its warmest sensors, and the age of the newest bucket."""
    name, bucket = node_of(store, view), window.bucket_seconds(POINTS)
    rows = reads_node.node_series(store, name, window.start_ms, window.end_ms, bucket)
    wanted: Sequence[tuple[str, str, Mapping[str, str], float]] = (
        ("cpu", "%", {"cpu_pct": "CPU"}, 1.0),
        ("memory", "GiB", {"mem_used_bytes": t("strip.memory")}, 1 / GIB),
        ("load", "", {"load1": t("strip.load")}, 1.0),
        ("disk", "ms", {"io_read_ms": t("strip.read"), "io_write_ms": t("strip.write")}, 1.0),
        ("fs", "ms", {"fs_read_ms": t("strip.read"), "fs_write_ms": t("strip.write")}, 1.0),
        ("inlet", "°C", {"inlet_c": t("strip.inlet")}, 1.0),
    )
    strips = []
    for key, unit, columns, scale in wanted:
        series = {words: _points(view, rows, column, scale) for column, words in columns.items()}
        if _any(series):
            strips.append(Strip(t(f"strip.{key}"), unit, series, zero=key in ("cpu", "memory", "load")))
    strips += port_strips(store, view, window, bucket)
    warm = page_reads.warmest_sensors(store, name, max(1, round(window.seconds / 60)), 5) if window.live else {}
    if warm:
        moved = {
            label: ([view.local(moment.timestamp() * 1000) for moment in times], values)
            for label, (times, values) in warm.items()
        }
        strips.append(Strip(t("strip.sensors"), "°C", moved))
    newest = max((row["bucket"] for row in rows), default=None)
    age = None if newest is None else max(0.0, (window.end_ms - newest) / 1000 - bucket)
    return strips, age if window.live else 0.0


def port_strips(store: Store, view: View, window: Window, bucket: int) -> list[Strip]:
    """Return traffic, congestion notices and errors of a node's ports; what stayed 0 has no strip."""
    rows = reads_node.port_series(store, node_of(store, view), window.start_ms, window.end_ms, bucket)
    by_port: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_port.setdefault(row["port"], []).append(row)
    strips = []
    for names, key, unit, scale in (
        (("rx_bytes_total", "tx_bytes_total"), "traffic", "Gbit/s", 8e-9),
        (("cnp_handled_total",), "cnp", t("unit.per_second"), 1.0),
        (
            ("out_of_sequence_total", "symbol_errors_total", "link_downed_total"),
            "port_errors",
            t("unit.per_second"),
            1.0,
        ),
    ):
        series = {port: _grown(view, some, names, 1.0, scale) for port, some in by_port.items()}
        if _any(series, beyond_zero=key == "port_errors"):
            strips.append(Strip(t(f"strip.{key}"), unit, series, zero=True))
    return strips


def marks(store: Store, view: View, window: Window, *, words: bool = True) -> list[Mark]:
    """Return events of weight and findings as marks across the strips."""
    chosen = view.number("device")
    rows = reads_node.history(store, node_of(store, view), window.start_ms, window.end_ms, 400)
    loud = [
        row
        for row in rows
        if row["severity"] in ("error", "critical", "P1", "P2", "P3")
        and row["source"] in ("event", "finding.raised")
        and (chosen is None or row["device"] in (None, chosen))
    ][:MOST_MARKS]
    return [
        Mark(view.local(row["ts"]), known("kind", row["kind"]) if words and index < 6 else "", row["severity"])
        for index, row in enumerate(loud)
    ]


def _points(view: View, rows: Sequence[Mapping[str, Any]], column: str, scale: float = 1.0) -> Points:
    values = [None if row[column] is None else float(row[column]) * scale for row in rows]
    return [view.local(row["bucket"]) for row in rows], values


def _grown(view: View, rows: Sequence[Mapping[str, Any]], names: Sequence[str], per_s: float, scale: float) -> Points:
    times, values = reads_node.increments(rows, names, per_s=per_s)
    return [view.local(ts) for ts in times], [None if value is None else value * scale for value in values]


def _any(series: Mapping[str, Points], *, beyond_zero: bool = False) -> bool:
    test: Callable[[float | None], bool] = (lambda v: bool(v)) if beyond_zero else (lambda v: v is not None)
    return any(test(value) for _, values in series.values() for value in values)
