"""NCCL Inspector output: one JSON object per collective, one after another."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, ClassVar

from flightwatch.collectors.captures.base import Lines, head_text, make_row
from flightwatch.core.protocols import CaptureContext, Note, Row
from flightwatch.core.vocabulary import OpKind, OpLevel

#: Characters of one record kept while its end is awaited.
RECORD_LIMIT = 4_000_000


class NcclInspector:
    """Parser of the Inspector plugin's JSON (format v4)."""

    name: ClassVar[str] = "nccl-inspector"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "op_timings": ("level", "job", "run", "step", "steps", "rank", "kind", "op", "process_group", "seq", "dur_us",
                       "min_us", "max_us", "bytes", "count"),
    }  # fmt: skip
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "job": "the plugin knows no job",
        "run": "the plugin knows no attempt",
        "step": "the plugin knows no training step",
        "steps": "the plugin knows no training step",
        "seq": "an older format leaves it out",
    }

    def recognise(self, head: bytes) -> bool:
        """Say whether this is Inspector output."""
        text = head_text(head)
        return text.lstrip().startswith("{") and (
            "inspector_output_format_version" in text or ('"coll_perf"' in text and '"n_ranks"' in text)
        )

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield one `op_timings` row per record; `rank` is the rank inside the communicator (process_group)."""
        decoder = json.JSONDecoder()
        pending, first = "", 1
        lines = Lines(stream)
        for number, text in lines:
            pending = f"{pending}\n{text}" if pending else text
            if not pending.strip():
                pending, first = "", number + 1
                continue
            if not pending.rstrip().endswith("}"):
                if len(pending) > RECORD_LIMIT:
                    yield Note("error", f"line {first}", "a record does not end; the rest was not read")
                    return
                continue
            try:
                value, end = decoder.raw_decode(pending.lstrip())
            except (ValueError, RecursionError):
                if len(pending) > RECORD_LIMIT:
                    yield Note("error", f"line {first}", "not a valid JSON record; the rest was not read")
                    return
                continue
            pending = pending.lstrip()[end:].strip()
            yield from self._record(value, first, context)
            first = number + 1 if not pending else number
        if pending.strip():
            yield Note("error", f"line {first}", "the last record is truncated or not valid JSON")
        yield from lines.notes

    def _record(self, value: object, line: int, context: CaptureContext) -> Iterator[Row | Note]:
        record = value if isinstance(value, dict) else {}
        perf = record.get("coll_perf") or record.get("p2p_perf")
        if not isinstance(perf, dict):
            yield Note("warning", f"line {line}", "a record without coll_perf was skipped")
            return
        header, meta = _part(record, "header"), _part(record, "metadata")
        duration = _number(perf.get("coll_exec_time_us", perf.get("p2p_exec_time_us")))
        when = _number(meta.get("dump_timestamp_us"))
        start = _number(_part(perf, "event_trace_ts").get("coll_start_ts"))
        moment = start if start is not None else when
        yield make_row("op_timings", self.CARRIES, context, {
            "ts": round(moment / 1000) if moment is not None else None,
            "node": str(meta["hostname"]) if meta.get("hostname") else None,
            "level": OpLevel.OP.value,
            "rank": _whole(header.get("rank")),
            "kind": OpKind.COMM.value,
            "op": str(perf.get("coll") or perf.get("p2p") or "unknown"),
            "process_group": str(header["id"]) if header.get("id") else None,
            "seq": _whole(perf.get("coll_sn", perf.get("p2p_sn"))),
            "dur_us": duration,
            "min_us": duration,
            "max_us": duration,
            "bytes": _whole(perf.get("coll_msg_size_bytes", perf.get("p2p_msg_size_bytes"))),
            "count": 1,
        })  # fmt: skip


def _part(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    part = record.get(name)
    return part if isinstance(part, dict) else {}


def _number(value: object) -> float | None:
    plausible = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e18
    return float(value) if plausible and isinstance(value, (int, float)) else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None
