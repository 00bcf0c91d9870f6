"""/proc/diskstats and /proc/*/mountstats as files of their own (the collectors' readers over a capture)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import BinaryIO, ClassVar

from flightwatch.collectors.captures.base import head_text, make_row, read_document
from flightwatch.collectors.disks import parse_diskstats
from flightwatch.collectors.mountstats import parse_mountstats
from flightwatch.collectors.storage_rates import StorageCounters
from flightwatch.core.protocols import CaptureContext, Note, Row

STORAGE_COLUMNS = (
    "target", "kind", "read_ms", "write_ms", "read_ops_total", "write_ops_total", "read_bytes_total",
    "write_bytes_total", "queue_depth", "inflight",
)  # fmt: skip
_DISKSTATS = re.compile(r"\s*\d{1,4}\s+\d{1,7}\s+[A-Za-z][\w!./-]*(?:\s+\d+){11,}\s*")


def storage_rows(
    parse: Callable[[bytes], Iterator[StorageCounters | Note]],
    stream: BinaryIO,
    context: CaptureContext,
    carries: Mapping[str, tuple[str, ...]],
) -> Iterator[Row | Note]:
    """Yield one row a target; times are averages over the counters' whole life."""
    text, notes = read_document(stream)
    yield from notes
    found = False
    for item in parse(text.encode("utf-8", "replace")):
        if isinstance(item, Note):
            yield item
            continue
        found = True
        values = dict(item.row(context.at_ms, None, None).values)
        values.pop("ts", None)
        yield make_row("storage_samples", carries, context, values)
    if not found:
        yield Note("error", "", "no disk or mount was found")


class DiskstatsParser:
    """Reads /proc/diskstats with 14, 18 or 20 columns."""

    name: ClassVar[str] = "diskstats"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {"storage_samples": STORAGE_COLUMNS}
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "storage_samples.read_ms": "the disk has completed no read",
        "storage_samples.write_ms": "the disk has completed no write",
        "storage_samples.queue_depth": "one reading has no elapsed time; live it is weighted time over the interval",
    }

    def recognise(self, head: bytes) -> bool:
        """Say whether the first lines are major, minor, name and at least 11 numbers."""
        return most_lines(head_text(head), _DISKSTATS)

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterable[Row | Note]:
        """Yield one storage_samples row a disk and partition."""
        return storage_rows(parse_diskstats, stream, context, self.CARRIES)


class MountstatsParser:
    """Reads /proc/self/mountstats; mounts of other kinds than NFS are passed over."""

    name: ClassVar[str] = "mountstats"
    CARRIES: ClassVar[Mapping[str, tuple[str, ...]]] = {"storage_samples": STORAGE_COLUMNS}
    NULL_NOTES: ClassVar[Mapping[str, str]] = {
        "storage_samples.read_ms": "no READ was made over this mount",
        "storage_samples.inflight": "mountstats has no such figure",
    }

    def recognise(self, head: bytes) -> bool:
        """Say whether the head has a mount line with its file system type."""
        return bool(re.search(r"^device \S+ mounted on .+ with fstype \S+", head_text(head), re.MULTILINE))

    def parse(self, stream: BinaryIO, context: CaptureContext) -> Iterable[Row | Note]:
        """Yield one storage_samples row an NFS mount."""
        return storage_rows(parse_mountstats, stream, context, self.CARRIES)


def most_lines(text: str, pattern: re.Pattern[str], least: int = 1) -> bool:
    """Say whether at least two thirds of the first 40 lines (the last may be cut) match a pattern."""
    lines: Sequence[str] = [line for line in text.split("\n")[:40] if line.strip()]
    matched = sum(pattern.fullmatch(line) is not None for line in lines)
    return matched >= least and matched * 3 >= len(lines) * 2
