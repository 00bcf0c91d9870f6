"""xpu_timer (DLRover): kernel latencies and the hang flag of every rank."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import ClassVar

from flightwatch.collectors.captures.base import make_row, to_int
from flightwatch.collectors.captures.device_rows import EVENT_COLUMNS
from flightwatch.collectors.captures.exporter_map import clamp_ms
from flightwatch.collectors.captures.openmetrics_text import Family, Sample
from flightwatch.core.protocols import CaptureContext, Note, Row, Value
from flightwatch.core.vocabulary import OpKind, OpLevel

_LATENCY = re.compile(r"XPU_TIMER_(\w{1,40}?)_KERNEL_(AVG|MIN|MAX|P99)_LATENCY")
_KINDS = {"MM": OpKind.COMPUTE, "COLL": OpKind.COMM, "MEMORY": OpKind.IO, "IO": OpKind.IO}
_OPS_LIMIT = 100_000


class XpuTimerMap:
    """Maps `XPU_TIMER_*` gauges: averages, minima and maxima per operation and size level, in microseconds.

    The exporter gives an average without a count: it is stored as one call, which a note says.
    """

    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "op_timings": (
            "level", "job", "run", "step", "steps", "rank", "device", "kind", "op", "dur_us", "min_us", "max_us",
            "count",
        ),
        "events": EVENT_COLUMNS,
    }  # fmt: skip

    def __init__(self, context: CaptureContext, now_ms: int) -> None:
        self._context = context
        self._ops: dict[tuple[str, ...], dict[str, Value]] = {}
        self._events: list[Row] = []
        self._missing_rank = 0

    @staticmethod
    def owns(name: str) -> bool:
        """Say whether the metric is xpu_timer's own (its HTTP server's are skipped too)."""
        return name.startswith(("XPU_TIMER_", "exposer_"))

    def take(self, sample: Sample, family: Family) -> None:
        """Take one sample."""
        rank = to_int(sample.labels.get("rank", ""))
        if sample.value is None or not sample.name.startswith("XPU_TIMER_"):
            return
        if rank is None or rank < 0:
            self._missing_rank += 1
            return
        latency = _LATENCY.fullmatch(sample.name)
        if latency is not None:
            self._latency(latency, sample, rank)
        elif sample.name == "XPU_TIMER_COMMON_HANG" and sample.value:
            self._hang(sample, rank)

    def finish(self) -> Iterator[Row | Note]:
        """Yield one row per operation and the events."""
        yield from self._events
        for values in self._ops.values():
            yield make_row("op_timings", self.CARRIES, self._context, values)
        if self._ops:
            yield Note("info", "", "xpu_timer gives averages without counts: dur_us is one average call, count is 1")
        if self._missing_rank:
            yield Note("warning", "", f"{self._missing_rank} samples name no rank and were not used")

    def _latency(self, latency: re.Match[str], sample: Sample, rank: int) -> None:
        labels = sample.labels
        kind, figure = latency[1], latency[2]
        op = "/".join(part for part in (labels.get("operation", kind), labels.get("dtype", ""), _level(labels)) if part)
        key = (kind, labels.get("job_name", ""), str(rank), op)
        if key not in self._ops and len(self._ops) >= _OPS_LIMIT:
            return
        local = to_int(labels.get("local_rank", ""))
        values = self._ops.setdefault(
            key,
            {"level": OpLevel.OP.value, "job": labels.get("job_name", ""), "run": "", "step": 0, "steps": 0,
             "rank": rank,
             "device": local, "kind": _KINDS.get(kind, OpKind.COMPUTE).value, "op": op, "count": 1,
             "ts": clamp_ms(sample.at_ms) if sample.at_ms is not None else None},
        )  # fmt: skip
        column = {"AVG": "dur_us", "MIN": "min_us", "MAX": "max_us"}.get(figure)
        if column is not None and sample.value is not None:
            values[column] = float(sample.value)

    def _hang(self, sample: Sample, rank: int) -> None:
        labels = sample.labels
        attrs: dict[str, str] = {name: labels[name] for name in ("pod_name", "ip", "local_rank") if name in labels}
        values: dict[str, Value] = {
            "job": labels.get("job_name") or None, "rank": rank, "source": "agent", "code": "hang:xpu_timer",
            "severity": "error", "message": f"xpu_timer reports rank {rank} as hanging", "attrs": attrs,
            "device": to_int(labels.get("local_rank", "")),
            "ts": clamp_ms(sample.at_ms) if sample.at_ms is not None else None,
        }  # fmt: skip
        if len(self._events) < _OPS_LIMIT:
            self._events.append(make_row("events", self.CARRIES, self._context, values))


def _level(labels: Mapping[str, str]) -> str:
    return f"level{labels['level']}" if labels.get("level") else ""
