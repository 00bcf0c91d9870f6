"""The series of a node as strips over one axis of time; what was not measured has no strip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flightwatch.dashboard.components.graphs import Mark, Strip
from flightwatch.dashboard.components.job_reads import attempts_of, steps_of
from flightwatch.dashboard.components.packing import told
from flightwatch.dashboard.components.remembered import Remembered
from flightwatch.dashboard.components.scope import check_node
from flightwatch.dashboard.components.view import View, Window
from flightwatch.dashboard.i18n import known, t
from flightwatch.pipeline.store import machine_reads, node_reads, step_reads
from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.columns import Columns

#: Points of one line; a step costs its ranks' whole granule to read, so there are fewer of them.
POINTS, STEP_POINTS = 240, 80
GIB = 2**30
MOST_MARKS = 24
DEVICE_STRIPS = (("temp_c", "°C"), ("hotspot_c", "°C"), ("power_w", "W"), ("sm_clock_mhz", "MHz"), ("util_pct", "%"))
MOST_RANKS = 16
MOST_EVENTS = 400
#: What several panels of a page ask for at once is read once.
_READ = Remembered(1.5)

Points = tuple[Any, Any]


def node_of(store: Store, view: View) -> str:
    """Return the node of a page's address. Raises Refused when whoever asks may not see it."""
    name = view.captured.get("name", "")
    check_node(store, name)
    return name


def ranks_of(store: Store, view: View) -> list[dict[str, Any]]:
    """Return the ranks on the node of a page, as `node_reads.ranks_on`. Raises as `node_of`."""
    name = node_of(store, view)
    return _READ.get(("ranks", id(store), name), lambda: node_reads.ranks_on(store, name))


def history_of(store: Store, view: View, window: Window) -> list[dict[str, Any]]:
    """Return what happened to the node of a page, as `node_reads.history`. Raises as `node_of`."""
    name = node_of(store, view)
    # Panels of one refresh ask within milliseconds of each other: what is newer than all of them is wanted too.
    end_ms = -(-window.end_ms // 2000) * 2000 if window.live else window.end_ms
    start_ms = end_ms - (window.end_ms - window.start_ms)
    key = ("history", id(store), name, start_ms, end_ms)
    return _READ.get(key, lambda: node_reads.history(store, name, start_ms, end_ms, MOST_EVENTS))


def device_strips(store: Store, view: View, window: Window) -> tuple[list[Strip], float | None, int]:
    """Return the strips of a node's accelerators, the age of the newest bucket, and how many accelerators told."""
    name, chosen = node_of(store, view), view.number("device")
    bucket = window.bucket_seconds(POINTS)
    by_device = node_reads.device_series(store, name, window.start_ms, window.end_ms, bucket)
    times = {device: view.axis(columns["bucket"]) for device, columns in by_device.items()}
    strong = str(chosen) if chosen in by_device else None
    strips = []
    for column, unit in DEVICE_STRIPS:
        series = {str(device): (times[device], columns[column]) for device, columns in by_device.items()}
        if _any(series):
            strips.append(Strip(t(f"metric.{column}"), unit, series, strong))
    for names, title, unit, per_s, scale in (
        (("ecc_corrected_total", "ecc_uncorrected_total"), t("strip.ecc"), t("unit.per_minute"), 60.0, 1.0),
        (("throttle_thermal_us_total", "throttle_power_us_total"), t("strip.throttle"), "%", 1.0, 1e-4),
        (("link_errors_total",), t("strip.link_errors"), t("unit.per_minute"), 60.0, 1.0),
    ):
        grown = {str(device): _grown(view, columns, names, per_s, scale) for device, columns in by_device.items()}
        if _beyond_zero(grown):
            strips.append(Strip(title, unit, grown, strong, zero=True))
    newest = max((int(columns["bucket"][-1]) for columns in by_device.values()), default=None)
    return strips, _age(window, newest, bucket), len(by_device)


def step_strips(store: Store, view: View, window: Window) -> list[Strip]:
    """Return compute and waiting per step of the ranks on a node, for the job that stepped there last."""
    ranks = ranks_of(store, view)
    if not ranks:
        return []
    job, run = ranks[0]["job"], ranks[0]["run"]
    attempt = next((one for one in attempts_of(store, job) if one.run == run), None)
    if attempt is None:
        return []
    mine = [row["rank"] for row in ranks if (row["job"], row["run"]) == (job, run)][:MOST_RANKS]
    steps = steps_of(store, job, attempt, window, STEP_POINTS)
    if not steps:
        return []
    devices = {row["rank"]: row["device"] for row in ranks}
    chosen = view.number("device")
    strips = []
    channels = ("compute_us", "wait_us")
    for channel, found in zip(channels, step_reads.matrices(store, job, attempt, steps, channels, mine), strict=True):
        times = view.axis(found.starts_ms)
        series: dict[str, Points] = {}
        strong = None
        for index, rank in enumerate(found.ranks):
            label = f"rank {rank}"
            series[label] = (times, found.values_RS[index] / 1000)
            if chosen is not None and devices.get(int(rank)) == chosen:
                strong = label
        if _any(series):
            strips.append(Strip(t(f"channel.{channel}"), "ms", series, strong))
    return strips


def host_strips(store: Store, view: View, window: Window) -> tuple[list[Strip], float | None]:
    """Return the strips of the host, its ports and its warmest sensors, and the age of the newest bucket."""
    name, bucket = node_of(store, view), window.bucket_seconds(POINTS)
    columns = node_reads.node_series(store, name, window.start_ms, window.end_ms, bucket)
    times = view.axis(columns["bucket"])
    wanted: Sequence[tuple[str, str, Mapping[str, str], float]] = (
        ("cpu", "%", {"cpu_pct": "CPU"}, 1.0),
        ("memory", "GiB", {"mem_used_bytes": t("strip.memory")}, 1 / GIB),
        ("load", "", {"load1": t("strip.load")}, 1.0),
        ("disk", "ms", {"io_read_ms": t("strip.read"), "io_write_ms": t("strip.write")}, 1.0),
        ("fs", "ms", {"fs_read_ms": t("strip.read"), "fs_write_ms": t("strip.write")}, 1.0),
        ("inlet", "°C", {"inlet_c": t("strip.inlet")}, 1.0),
    )
    strips = []
    for key, unit, named, scale in wanted:
        series = {words: (times, columns[column] * scale) for column, words in named.items()}
        if _any(series):
            strips.append(Strip(t(f"strip.{key}"), unit, series, zero=key in ("cpu", "memory", "load")))
    strips += port_strips(store, view, window, bucket)
    warm = machine_reads.warmest_sensors(store, name, max(1, round(window.seconds / 60)), 5) if window.live else {}
    if warm:
        moved = {
            label: ([view.local(moment.timestamp() * 1000) for moment in moments], values)
            for label, (moments, values) in warm.items()
        }
        strips.append(Strip(t("strip.sensors"), "°C", moved))
    return strips, _age(window, int(columns["bucket"][-1]) if len(columns["bucket"]) else None, bucket)


def port_strips(store: Store, view: View, window: Window, bucket: int) -> list[Strip]:
    """Return traffic, congestion notices and errors of a node's ports; what stayed 0 has no strip."""
    by_port = node_reads.port_series(store, node_of(store, view), window.start_ms, window.end_ms, bucket)
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
        series = {port: _grown(view, columns, names, 1.0, scale) for port, columns in by_port.items()}
        if _beyond_zero(series) if key == "port_errors" else _any(series):
            strips.append(Strip(t(f"strip.{key}"), unit, series, zero=True))
    return strips


def marks(store: Store, view: View, window: Window, *, words: bool = True) -> list[Mark]:
    """Return events of weight and findings as marks across the strips."""
    chosen = view.number("device")
    rows = history_of(store, view, window)
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


def _age(window: Window, newest_ms: int | None, bucket_s: int) -> float | None:
    if not window.live:
        return 0.0
    return None if newest_ms is None else max(0.0, (window.end_ms - newest_ms) / 1000 - bucket_s)


def _grown(view: View, columns: Columns, names: Sequence[str], per_s: float, scale: float) -> Points:
    times, values = node_reads.increments(columns, names, per_s=per_s)
    return view.axis(times), values * scale


def _any(series: Mapping[str, Points]) -> bool:
    return any(told(values) for _, values in series.values())


def _beyond_zero(series: Mapping[str, Points]) -> bool:
    return any(bool((values > 0).any()) for _, values in series.values())
