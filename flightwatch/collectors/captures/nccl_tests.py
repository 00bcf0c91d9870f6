"""Result tables of nccl-tests (all_reduce_perf and its family, rccl-tests too).

Compare the bus bandwidth per size, never the average over sizes that the tool prints at the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO, ClassVar

from flightwatch.collectors.captures.base import Lines, head_text, make_row, to_float, to_int
from flightwatch.collectors.captures.comm.lines import CommLines
from flightwatch.collectors.captures.log_prefix import split
from flightwatch.core.protocols import CaptureContext, Note, Row
from flightwatch.core.vocabulary import OpKind, OpLevel

_HEADER = re.compile(r"#\s*size\s+count\s.*algbw\s+busbw")
_RANK = re.compile(r"#\s+Rank\s+(\d{1,7})\s")
#: Rows of a table held until its collective is known.
_ROWS_HELD = 1_000
_STARTING = re.compile(r"Collective test starting: (\w{1,40}?)(?:_perf)?\s*$")
_AVERAGE = re.compile(r"# Avg bus bandwidth\s*:\s*([\d.]{1,20})")
_WRONG = re.compile(r"# Out of bounds values : (\d{1,9}) (OK|FAILED)")


@dataclass(slots=True)
class _Table:
    """Column positions of one result table: name to index, once per half (out of place, in place)."""

    common: dict[str, int]
    halves: tuple[dict[str, int], ...]
    width: int
    rows: list[list[str]] = field(default_factory=list)


def _table(header: str) -> _Table | None:
    words = header.lstrip("# ").split()
    common: dict[str, int] = {}
    halves: list[dict[str, int]] = []
    for index, word in enumerate(words):
        if word == "time":
            halves.append({})
        (halves[-1] if halves else common)[word] = index
    if "size" not in common or not all({"time", "algbw", "busbw"} <= half.keys() for half in halves) or not halves:
        return None
    return _Table(common, tuple(halves[:2]), len(words))


class NcclTests:
    """Parser of nccl-tests output."""

    name: ClassVar[str] = "nccl-tests"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "op_timings": ("level", "step", "steps", "rank", "kind", "op", "dur_us", "bytes", "count"),
        "sensor_samples": ("chip", "label", "quantity", "unit", "value", "status"),
        "events": ("device", "rank", "source", "code", "severity", "message", "attrs"),
    }
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "ts": "the tool prints no time",
        "op_timings.step": "a benchmark has no training step",
        "op_timings.steps": "a benchmark has no training step",
        "op_timings.rank": "the table holds the slowest rank's figures",
        "sensor_samples.status": "only where the row's check failed",
    }

    def recognise(self, head: bytes) -> bool:
        """Say whether this holds a result table."""
        text = head_text(head)
        return bool(_HEADER.search(text)) or ("# nThread" in text and "minBytes" in text)

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterator[Row | Note]:
        """Yield per size one timing and one bus bandwidth for each half; library lines between become events."""
        comm, lines = CommLines(context), Lines(stream)
        table: _Table | None = None
        op, ranks = "", 0
        for number, text in lines:
            if starting := _STARTING.search(text):
                yield from self._results(table, op, ranks, context)
                op = starting[1]
            elif _RANK.match(text):
                ranks += 1
            elif _HEADER.match(text.strip()):
                yield from self._results(table, op, ranks, context)
                table = _table(text.strip())
            elif average := _AVERAGE.match(text):
                yield Note(
                    "info", f"line {number}", f"average over all sizes {average[1]} GB/s: not a figure to compare"
                )
            elif (wrong := _WRONG.match(text)) and wrong[2] == "FAILED":
                yield Note("warning", f"line {number}", f"{wrong[1]} wrong values: the results are not valid")
            elif table is not None and (cells := _cells(text, table)):
                table.rows.append(cells)
                if len(table.rows) >= _ROWS_HELD:
                    yield from self._results(table, op, ranks, context)
            elif not text.startswith("#"):
                yield from comm.feed(number, split(text, context.at_ms))
        yield from self._results(table, op, ranks, context)
        yield from comm.flush()
        yield from lines.notes

    def _results(self, table: _Table | None, op: str, ranks: int, context: CaptureContext) -> Iterator[Row]:
        """Yield the rows held so far: the largest message says which collective an unnamed table is of."""
        if table is None or not table.rows:
            return
        name = op or _operation(table, ranks)
        for cells in table.rows:
            yield from self._result(cells, table, name, context)
        table.rows.clear()

    def _result(self, cells: list[str], table: _Table, op: str, context: CaptureContext) -> Iterator[Row]:
        size = to_int(cells[table.common["size"]])
        for half, name in zip(table.halves, ("out-of-place", "in-place"), strict=False):
            time_us, busbw = to_float(cells[half["time"]]), to_float(cells[half["busbw"]])
            label = f"{op} {size} B {name}"
            yield make_row("op_timings", self.CARRIES, context, {
                "level": OpLevel.OP.value, "kind": OpKind.COMM.value, "op": f"{op} {name}", "dur_us": time_us,
                "bytes": size, "count": 1,
            })  # fmt: skip
            wrong = cells[half["#wrong"]] if "#wrong" in half else "0"
            yield make_row("sensor_samples", self.CARRIES, context, {
                "chip": "nccl-tests", "label": label, "quantity": "busbw", "unit": "GB/s", "value": busbw,
                "status": None if wrong in ("0", "N/A") else "critical",
            })  # fmt: skip


def _cells(text: str, table: _Table) -> list[str] | None:
    cells = text.split()
    if len(cells) == table.width - 1 and "redop" in table.common:
        # Collectives that reduce nothing leave this column blank.
        cells.insert(table.common["redop"], "none")
    if len(cells) != table.width or to_int(cells[0]) is None or to_float(cells[table.halves[0]["busbw"]]) is None:
        return None
    return cells


def _operation(table: _Table, ranks: int) -> str:
    """Name the collective when the output does not: by its root and the ratio of its two bandwidths.

    Bus bandwidth is the algorithm's times 2(n-1)/n for all-reduce, (n-1)/n for reduce-scatter, all-gather and
    all-to-all, 1 for those with a root (nccl-tests' PERFORMANCE.md). What fits several is called "collective".
    """
    cells = max(table.rows, key=lambda row: to_float(row[table.halves[0]["algbw"]]) or 0.0)
    reduces = "redop" in table.common and cells[table.common["redop"]] not in ("none", "-1")
    root = to_int(cells[table.common["root"]]) if "root" in table.common else None
    if root is not None and root >= 0:
        return "reduce" if reduces else "broadcast"
    algbw = to_float(cells[table.halves[0]["algbw"]]) or 0.0
    busbw = to_float(cells[table.halves[0]["busbw"]]) or 0.0
    if not reduces or algbw < 1.0:
        return "collective"
    if ranks < 2:
        return "all_reduce" if busbw > 1.05 * algbw else "collective"
    share = (ranks - 1) / ranks
    return "all_reduce" if abs(busbw / algbw - 2 * share) < abs(busbw / algbw - share) else "reduce_scatter"
