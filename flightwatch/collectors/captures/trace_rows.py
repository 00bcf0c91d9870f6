"""Profiler traces as rows: the self time of each op of one rank."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import BinaryIO, ClassVar

from flightwatch.collectors.captures.base import head_text, make_row
from flightwatch.core.protocols import CaptureContext, Note, Row

_RANK = re.compile(r"rank[_\-.]?(\d{1,7})", re.IGNORECASE)


class KinetoTrace:
    """Parser of Kineto traces; `flightwatch trace` compares, merges and draws them."""

    name: ClassVar[str] = "kineto-trace"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "profile_ops": ("rank", "op", "kind", "calls", "self_us"),
    }
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "ts": "a sum over the whole trace",
        "rank": "neither the trace nor its file name says it",
    }

    def recognise(self, head: bytes) -> bool:
        """Say whether this is a trace."""
        text = head_text(head).lstrip()
        if text.startswith("{"):
            return (
                '"traceEvents"' in text
                or '"deviceProperties"' in text
                or ('"schemaVersion"' in text and '"distributedInfo"' in text)
            )
        return text.startswith("[") and '"ph"' in text[:4096] and '"ts"' in text[:4096]

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield one row per op and kind; a damaged trace gives what stands before the damage."""
        # Imported here: analysing traces needs more than recognising them.
        from flightwatch.collectors.captures.kineto.ops import RankTrace
        from flightwatch.collectors.captures.kineto.stream import TraceReader

        found = _RANK.findall(context.source.rsplit("/", 1)[-1])
        trace = RankTrace(context.source, int(found[-1]) if found else None).read(TraceReader(stream))
        for cost in trace.costs():
            yield make_row("profile_ops", self.CARRIES, context, {
                "rank": trace.rank, "op": cost.op, "kind": cost.kind, "calls": cost.calls,
                "self_us": round(cost.self_us, 3),
            })  # fmt: skip
        yield from trace.notes
