"""NFS mounts from /proc/self/mountstats: `storage_samples` of kind nfs.

Time per operation is the round trip to the server (`rtt` / operations); bytes are those exchanged
with the server, page cache excluded.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from flightwatch.collectors.environment import Environment
from flightwatch.collectors.storage_rates import StorageCounters, StorageRates, worst
from flightwatch.core.errors import NoData
from flightwatch.core.protocols import Note, Row
from flightwatch.core.vocabulary import StorageKind

PATH = "proc/self/mountstats"
_DEVICE = re.compile(r"device (\S+) mounted on (\S+) with fstype (\S+)(?: .*)?")
_OPERATION = re.compile(r"\s*([A-Z][A-Z0-9_]*):((?: \d+)+)\s*")
_ESCAPE = re.compile(r"\\([0-7]{3})")
_U64 = 1 << 64


@dataclass
class _Mount:
    target: str
    server_bytes: tuple[int | None, int | None] = (None, None)
    operations: dict[str, tuple[int, int]] = field(default_factory=dict)

    def counters(self) -> StorageCounters:
        reads, read_ms = self.operations.get("READ", (None, None))
        writes, write_ms = self.operations.get("WRITE", (None, None))
        return StorageCounters(
            self.target, StorageKind.NFS.value, reads, writes, read_ms, write_ms, *self.server_bytes
        )  # fmt: skip


def parse_mountstats(content: bytes) -> Iterator[StorageCounters | Note]:
    """Yield counters of each NFS mount; a Note of level "error" for a damaged line of one."""
    mount: _Mount | None = None
    for number, line in enumerate(content.decode("utf-8", "replace").split("\n"), 1):
        if line.startswith("device "):
            if mount is not None:
                yield mount.counters()
            match = _DEVICE.fullmatch(line)
            mount = _Mount(_unescape(match[2])) if match and match[3].startswith("nfs") else None
            if match is None:
                yield Note("error", f"line {number}", "not a mount line: device, mount point and type expected")
        elif mount is not None:
            note = _read_line(mount, line)
            if note:
                yield Note("error", f"line {number}", note)
    if mount is not None:
        yield mount.counters()


def _read_line(mount: _Mount, line: str) -> str | None:
    words = line.split()
    if words[:1] == ["bytes:"]:
        numbers = words[1:]
        if len(numbers) < 6 or not all(word.isascii() and word.isdigit() and len(word) <= 20 for word in numbers):
            return "the bytes of the mount are not eight numbers"
        read, written = int(numbers[4]), int(numbers[5])
        mount.server_bytes = (read if read < _U64 else None, written if written < _U64 else None)
    elif words[:1] in (["READ:"], ["WRITE:"]):
        match = _OPERATION.fullmatch(line)
        numbers = match[2].split() if match else []
        if len(numbers) < 8 or any(len(word) > 20 for word in numbers):
            return f"the {words[0][:-1]} figures are not eight numbers"
        operations, rtt_ms = int(numbers[0]), int(numbers[6])
        if operations < _U64:
            mount.operations[words[0][:-1]] = (operations, rtt_ms)
    return None


def _unescape(word: str) -> str:
    """Undo the kernel's octal escapes of blanks in mount points; control characters stay escaped."""

    def replace(match: re.Match[str]) -> str:
        character = chr(int(match[1], 8))
        return character if character == " " or character == "\\" else match[0]

    return _ESCAPE.sub(replace, word)


class NfsCollector:
    """NFS mounts of this machine; the slowest also goes to the node's row."""

    name = "nfs"

    def __init__(self, environment: Environment) -> None:
        self.interval_seconds = environment.settings.sysfs_interval_seconds
        self._environment = environment
        self._rates = StorageRates()

    def collect(self, now_ms: int) -> Iterable[Row]:
        """Read all mounts once. Raises NoData when nothing is mounted over NFS."""
        content = self._environment.tree.read(PATH)
        if content is None or b"fstype nfs" not in content:
            raise NoData("no NFS mount")
        # Mounted twice on one point, the later mount hides the earlier.
        visible = {found.target: found for found in parse_mountstats(content) if isinstance(found, StorageCounters)}
        if not visible:
            raise NoData("no NFS mount")
        monotonic_s = time.monotonic()
        rows = [self._rates.row(counters, now_ms, monotonic_s) for counters in visible.values()]
        self._environment.summary.offer(
            self.name,
            now_ms,
            {"fs_read_ms": worst(rows, "read_ms"), "fs_write_ms": worst(rows, "write_ms")},
        )
        return rows
