"""`mmpmon` (IBM Storage Scale / GPFS): fs_io_s and io_s in both forms, and `mmdiag --iohist` for latency."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO, ClassVar

from flightwatch.collectors.captures.base import Lines, head_text, make_row, to_float, to_int
from flightwatch.collectors.captures.port_counters import count_of, shown
from flightwatch.collectors.captures.storage_files import STORAGE_COLUMNS
from flightwatch.core.protocols import CaptureContext, Note, Row, Value
from flightwatch.core.vocabulary import StorageKind

_KEYS = {"_br_": "read_bytes_total", "_bw_": "write_bytes_total", "_rdc_": "read_ops_total", "_wc_": "write_ops_total"}
_WORDS = {"bytes read": "_br_", "bytes written": "_bw_", "reads": "_rdc_", "writes": "_wc_", "filesystem": "_fs_"}
_START = re.compile(r"mmpmon node (\S+) name (\S+) (fs_io_s|io_s) (OK|\S.*)")


class GpfsParser:
    """Reads mmpmon's parseable (-p) and plain output, and the I/O history of mmdiag."""

    name: ClassVar[str] = "gpfs-mmpmon"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {"storage_samples": STORAGE_COLUMNS}
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "storage_samples.read_ms": "mmpmon's io_s counts have no times; `mmdiag --iohist` has them",
        "storage_samples.read_ops_total": "the answer's return code is not 0",
    }

    def recognise(self, head: bytes) -> bool:
        """Say whether the head has mmpmon answers or an I/O history."""
        text = head_text(head)
        return bool(
            re.search(
                r"^(?:[ \t]*_(?:fs_)?io_s_ _n_ |mmpmon node |=== mmdiag: iohist|I/O history:)", text, re.MULTILINE
            )
        )

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterable[Row | Note]:
        """Yield one storage_samples row a file system (or node), or one a disk of an I/O history."""
        lines = Lines(stream)
        block: dict[str, str] | None = None
        history: dict[str, dict[str, list[float]]] = {}
        columns: list[str] | None = None
        for number, line in lines:
            where = f"line {number}"
            stripped = line.strip()
            if stripped.startswith(("_fs_io_s_ ", "_io_s_ ")):
                words = stripped.split()
                yield from self._row(dict(zip(words[1::2], words[2::2], strict=False)), where, context)
            elif match := _START.match(stripped):
                if block is not None:
                    yield from self._row(block, where, context)
                block = {"_nn_": match[2], "_rc_": "0" if match[4] == "OK" else "1"}
            elif stripped.startswith("I/O start time"):
                columns = ["start", "rw", "type", "disk", "sectors", "ms"]
            elif columns and stripped and not stripped.startswith(("-", "=")):
                note = _history_line(stripped, history, where)
                if note:
                    yield note
            elif block is not None and ":" in stripped:
                name, _, text = stripped.partition(":")
                if name.strip() == "timestamp":
                    block["_t_"], _, block["_tu_"] = text.strip().partition("/")
                elif name.strip() in _WORDS:
                    block[_WORDS[name.strip()]] = text.strip()
        if block is not None:
            yield from self._row(block, "end", context)
        for disk, times in history.items():
            values: dict[str, Value] = {"target": disk, "kind": StorageKind.GPFS.value}
            for direction, column in (("R", "read_ms"), ("W", "write_ms")):
                found = times.get(direction)
                values[column] = sum(found) / len(found) if found else None
            yield make_row("storage_samples", self.CARRIES, context, values)
        yield from lines.notes

    def _row(self, block: Mapping[str, str], where: str, context: CaptureContext) -> Iterator[Row | Note]:
        if block.get("_rc_", "0") != "0":
            yield Note("warning", where, f"mmpmon answered with return code {block['_rc_'][:20]}: no figures")
            return
        node = block.get("_nn_")
        values: dict[str, Value] = {"target": block.get("_fs_") or "all file systems", "kind": StorageKind.GPFS.value}
        for key, column in _KEYS.items():
            if key not in block:
                yield Note("error", where, f"the answer has no {key.strip('_')}: it is cut or of another kind")
                continue
            number, note = count_of(key.strip("_"), block[key], where)
            values[column] = number
            if note:
                yield note
        seconds = to_int(block.get("_t_", ""))
        micros = to_int(block.get("_tu_", "")) or 0
        ts = seconds * 1000 + micros // 1000 if seconds and 0 < seconds < 10**11 else None
        yield make_row("storage_samples", self.CARRIES, context, {**values, "ts": ts, "node": context.node or node})


def _history_line(line: str, history: dict[str, dict[str, list[float]]], where: str) -> Note | None:
    """Take one line of `mmdiag --iohist`: time, R or W, buffer type, disk:sector, sectors, milliseconds, ..."""
    words = line.split()
    position = next((index for index, word in enumerate(words[:4]) if word in ("R", "W")), None)
    if position is None or len(words) < position + 5:
        return Note("info", where, f"not a line of the I/O history: {shown(line)}")
    disk = next((index for index in range(position + 1, min(position + 4, len(words))) if ":" in words[index]), None)
    time_ms = to_float(words[disk + 2]) if disk is not None and disk + 2 < len(words) else None
    if disk is None or time_ms is None:
        return Note("info", where, f"not a line of the I/O history: {shown(line)}")
    times = history.setdefault(words[disk].split(":")[0], {}) if len(history) < 10_000 else {}
    times.setdefault(words[position], []).append(time_ms)
    return None
