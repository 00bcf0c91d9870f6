"""A small picture of the evidence for channels that show one: the target beside its peers, or how the job stopped."""

from __future__ import annotations

import importlib
import io
import logging

from flightwatch.core.clock import Clock, iso_utc
from flightwatch.core.errors import FlightwatchError
from flightwatch.core.incident import Incident
from flightwatch.core.vocabulary import FindingKind as Kind
from flightwatch.incidents.contract import Disclosure
from flightwatch.incidents.facts import Facts
from flightwatch.pipeline.store.alert_reads import AlertReads, Series
from flightwatch.pipeline.store.client import Store

log = logging.getLogger(__name__)

_BEFORE_MS = 20 * 60_000
_HEAT = (Kind.OVERHEAT.value, Kind.COOLING.value, Kind.THROTTLE.value)
_SLOW = (Kind.SLOW.value, Kind.FAIL_SLOW.value, Kind.IMBALANCE.value)
_STOPPED = (Kind.HANG.value, Kind.CRASH.value, Kind.DEAD_NODE.value, Kind.DEVICE_ERROR.value)
_SCALARS = {Kind.LOSS_SPIKE.value: "loss", Kind.GRAD_NORM.value: "grad_norm"}
#: Channel of a slow finding's evidence to the column that shows it.
_COLUMNS = {"compute": "compute_us", "data": "data_us", "transfer": "transfer_us", "launch": "launch_gap_us"}


class EvidencePicture:
    """Draws pictures, 720 x 300 pixels. Labels are English: fonts with Chinese characters are not everywhere."""

    def __init__(self, store: Store, clock: Clock, seconds: float = 1.0) -> None:
        self._store, self._clock, self._seconds = store, clock, seconds

    def __call__(self, incident: Incident, facts: Facts, disclosure: Disclosure) -> bytes | None:
        """Return a PNG; None where nothing was measured, or the channel may not learn it."""
        try:
            series = self._series(incident, facts, disclosure)
            return None if series is None else draw(series, incident.opened_at_ms, _target(incident, facts))
        except FlightwatchError as error:
            log.warning("no picture for a message: %s", error)
            return None

    def _series(self, incident: Incident, facts: Facts, disclosure: Disclosure) -> Series | None:
        since, until = incident.opened_at_ms - _BEFORE_MS, self._clock.now_ms()
        reads = AlertReads(self._store, incident.cluster, self._seconds)
        nodes = list(facts.nodes) or ([incident.node] if incident.node else [])
        if incident.kind in _HEAT and nodes:
            return reads.temperatures(nodes, incident.device, since, until)
        if not incident.job:
            return None
        if incident.kind in _SLOW and incident.rank is not None:
            column = _COLUMNS.get(str(facts.evidence.get("channel")), "step_us")
            return reads.step_times(incident.job, [incident.rank], column, since, until)
        if incident.kind in _STOPPED:
            return reads.progress(incident.job, since, until)
        if incident.kind in _SCALARS and disclosure is Disclosure.FULL:
            return reads.scalar(incident.job, _SCALARS[incident.kind], since, until)
        return None


def _target(incident: Incident, facts: Facts) -> str:
    if len(facts.nodes) > 1:
        return f"{len(facts.nodes)} nodes"
    place = incident.node or incident.job or "target"
    return place if incident.device is None else f"{place} GPU {incident.device}"


def load_drawing() -> None:
    """Load the library that draws: the first message with a picture would wait a second for it."""
    importlib.import_module("matplotlib.backends.backend_agg")
    importlib.import_module("matplotlib.figure")


def draw(series: Series, opened_at_ms: int, target: str) -> bytes:
    """Return a PNG of a series. Costs about 0.1 s; the first call loads the library."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    times = [(at - opened_at_ms) / 60_000 for at in series.times_ms]
    figure = Figure(figsize=(7.2, 3.0), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if any(value is not None for value in series.middle):
        low, high = ([float("nan") if v is None else v for v in side] for side in (series.low, series.high))
        axes.fill_between(times, low, high, color="#98A2B3", alpha=0.35, linewidth=0, label="peers (5-95 %)")
        middle = [float("nan") if v is None else v for v in series.middle]
        axes.plot(times, middle, color="#667085", linewidth=1.2, label="peers (median)")
    values = [float("nan") if v is None else v for v in series.target]
    # The dollar sign begins a formula in this library's labels, and its font knows no Chinese.
    name = target.encode("ascii", "replace").decode().replace("$", r"\$")
    axes.plot(times, values, color="#D92D20", linewidth=1.6, label=name)
    axes.axvline(0.0, color="#D92D20", linestyle=":")
    axes.set_ylabel(series.quantity)
    axes.set_xlabel(f"minutes from {iso_utc(opened_at_ms)}")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", fontsize=8, framealpha=0.8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()
