"""`nfsiostat`: time per operation of NFS mounts, read by the headings of its blocks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO, ClassVar

from flightwatch.collectors.captures.base import Lines, head_text, make_row, to_float
from flightwatch.collectors.captures.port_counters import shown
from flightwatch.core.protocols import CaptureContext, Note, Row
from flightwatch.core.vocabulary import StorageKind

_MOUNT = re.compile(r"(\S+) mounted on (.+):\s*$")
_BLOCK = re.compile(r"(read|write):\s+(ops/s.*)$")
_HEADING = re.compile(r"ops/s|kB/s|kB/op|retrans|avg RTT \(ms\)|avg exe \(ms\)|avg queue \(ms\)|errors")
_CELL = re.compile(r"(-?[\d.]+|[A-Za-z/-]+)(?:\s+\([\d.]+%\))?")


@dataclass
class _Mount:
    target: str
    times_ms: dict[str, float | None] = field(default_factory=dict)


class NfsiostatParser:
    """Reads `nfsiostat [INTERVAL COUNT]`; several reports of one mount give several rows."""

    name: ClassVar[str] = "nfsiostat"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {"storage_samples": ("target", "kind", "read_ms", "write_ms")}
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "storage_samples.read_ms": "no read was made in the interval: the tool prints 0.000, which is no time",
        "storage_samples.read_ops_total": "nfsiostat prints rates, not counters",
    }

    def recognise(self, head: bytes) -> bool:
        """Say whether the head has a mount line and a block with RTT."""
        text = head_text(head)
        return "avg RTT (ms)" in text and bool(re.search(r"^\S+ mounted on .+:\s*$", text, re.MULTILINE))

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterable[Row | Note]:
        """Yield one storage_samples row a mount and report."""
        lines = Lines(stream)
        mount: _Mount | None = None
        block: tuple[str, list[str]] | None = None
        for number, line in lines:
            if match := _MOUNT.match(line):
                yield from self._row(mount, context)
                mount, block = _Mount(match[2]), None
            elif mount and (match := _BLOCK.match(line.strip())):
                block = match[1], _HEADING.findall(match[2])
            elif mount and block and line.strip():
                cells = [cell[1] for cell in _CELL.finditer(line)]
                if len(cells) != len(block[1]):
                    yield Note("error", f"line {number}", f"{len(block[1])} figures expected: {shown(line)}")
                else:
                    mount.times_ms[block[0]] = _rtt(dict(zip(block[1], cells, strict=True)))
                block = None
        yield from self._row(mount, context)
        yield from lines.notes

    def _row(self, mount: _Mount | None, context: CaptureContext) -> Iterator[Row]:
        if mount is not None:
            yield make_row(
                "storage_samples", self.CARRIES, context,
                {"target": mount.target, "kind": StorageKind.NFS.value, "read_ms": mount.times_ms.get("read"),
                 "write_ms": mount.times_ms.get("write")},
            )  # fmt: skip


def _rtt(cells: Mapping[str, str]) -> float | None:
    """Return the round trip, None where there was no operation (all figures of the block are then 0)."""
    rtt = to_float(cells.get("avg RTT (ms)", ""))
    per_op, rate = to_float(cells.get("kB/op", "")), to_float(cells.get("ops/s", ""))
    # Slow mounts print ops/s 0.000 with a real RTT: only a block of zeros means "none".
    return rtt if rtt or per_op or rate else None
