"""SuperBench results: one JSON object per node and line, metric name to value."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import BinaryIO, ClassVar

from flightwatch.collectors.captures.base import Lines, head_text, make_row
from flightwatch.core.protocols import CaptureContext, Note, Row

#: Metrics read from one line.
METRIC_LIMIT = 100_000


class SuperBenchResults:
    """Parser of `results-summary.jsonl`."""

    name: ClassVar[str] = "superbench"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "sensor_samples": ("chip", "label", "quantity", "unit", "value"),
    }
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "ts": "the results carry no time",
        "sensor_samples.value": "the metric is not a number on this node",
    }

    def recognise(self, head: bytes) -> bool:
        """Say whether the first line is such an object."""
        first = head_text(head).lstrip().partition("\n")[0]
        if not first.startswith("{") or '"node"' not in first:
            return False
        return first.count("/") > 3 and ("steptime_" in first or "throughput_" in first or "return_code" in first
                                         or "_bw" in first or "_time" in first)  # fmt: skip

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield one sensor row per metric and node; the metric's name says its unit."""
        lines = Lines(stream, limit=16_000_000)
        for number, text in lines:
            if not text.strip():
                continue
            try:
                value = json.loads(text)
            except json.JSONDecodeError as error:
                yield Note("error", f"line {number} offset {error.pos}", "not a valid JSON object")
                continue
            except (ValueError, RecursionError):
                yield Note("error", f"line {number}", "not a valid JSON object")
                continue
            if isinstance(value, dict):
                yield from self._node(value, context)
        yield from lines.notes

    def _node(self, value: dict[str, object], context: CaptureContext) -> Iterator[Row]:
        node = value.get("node")
        for label, reading in list(value.items())[:METRIC_LIMIT]:
            if label == "node" or isinstance(reading, (dict, list, str, bool)):
                continue
            number = float(reading) if isinstance(reading, (int, float)) and abs(reading) < 1e300 else None
            yield make_row("sensor_samples", self.CARRIES, context, {
                "node": node if isinstance(node, str) else None, "chip": "superbench", "label": label,
                "quantity": "benchmark", "unit": "", "value": number,
            })  # fmt: skip
