"""Disks from /proc/diskstats (14, 18 or 20 columns): `storage_samples` of kind disk."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from flightwatch.collectors.environment import Environment
from flightwatch.collectors.storage_rates import StorageCounters, StorageRates, worst
from flightwatch.core.errors import NoData
from flightwatch.core.protocols import Note, Row
from flightwatch.core.vocabulary import StorageKind

PATH = "proc/diskstats"
SECTOR_BYTES = 512
_U64 = 1 << 64
_U32 = 1 << 32


def parse_diskstats(content: bytes) -> Iterator[StorageCounters | Note]:
    """Yield counters of each line, partitions included; a Note of level "error" for a line that is not one.

    Columns after the 14th (discards, flushes) are counted but have no column of ours.
    """
    for number, line in enumerate(content.split(b"\n"), 1):
        words = line.split()
        if not words:
            continue
        if len(words) < 14 or not all(word.isdigit() and len(word) <= 20 for word in (*words[:2], *words[3:])):
            yield Note("error", f"line {number}", "not a diskstats line: three names and at least 11 numbers expected")
            continue
        yield _counters(words[2].decode("utf-8", "replace"), [int(word) for word in words[3:14]])


def _counters(name: str, numbers: list[int]) -> StorageCounters:
    reads, _, read_sectors, read_ms, writes, _, write_sectors, write_ms, inflight, _, weighted_ms = numbers
    return StorageCounters(
        target=name,
        kind=StorageKind.DISK.value,
        read_ops_total=_below(reads, _U64),
        write_ops_total=_below(writes, _U64),
        read_ms_total=read_ms,
        write_ms_total=write_ms,
        read_bytes_total=_below(read_sectors * SECTOR_BYTES, _U64),
        write_bytes_total=_below(write_sectors * SECTOR_BYTES, _U64),
        weighted_ms_total=weighted_ms,
        # Old kernels let the in-flight counter slip below zero, which prints as a huge number.
        inflight=_below(inflight, _U32 // 2),
    )


def _below(value: int, limit: int) -> int | None:
    return value if value < limit else None


class DiskCollector:
    """Whole disks of this machine that have done any work; the slowest also goes to the node's row."""

    name = "disks"

    def __init__(self, environment: Environment) -> None:
        self.interval_seconds = environment.settings.sysfs_interval_seconds
        self._environment = environment
        self._rates = StorageRates()

    def collect(self, now_ms: int) -> Iterable[Row]:
        """Read all disks once. Raises NoData when the kernel shows none."""
        content = self._environment.tree.read(PATH)
        if content is None:
            raise NoData(f"/{PATH} is absent")
        whole = frozenset(self._environment.tree.listdir("sys/block"))
        monotonic_s = time.monotonic()
        rows = [
            self._rates.row(found, now_ms, monotonic_s)
            for found in parse_diskstats(content)
            if isinstance(found, StorageCounters) and _is_busy_disk(found, whole)
        ]
        if not rows:
            raise NoData(f"no disk in /{PATH}")
        self._environment.summary.offer(
            self.name,
            now_ms,
            {
                "io_queue_depth": worst(rows, "queue_depth"),
                "io_read_ms": worst(rows, "read_ms"),
                "io_write_ms": worst(rows, "write_ms"),
            },
        )
        return rows


def _is_busy_disk(counters: StorageCounters, whole: frozenset[str]) -> bool:
    # An empty /sys/block (recorded tree) cannot tell partitions from disks: keep all.
    return (not whole or counters.target in whole) and bool(counters.read_ops_total or counters.write_ops_total)
