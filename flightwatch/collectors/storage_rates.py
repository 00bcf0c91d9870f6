"""Time per operation and queue depth since the last sample, from counters of disks and mounts."""

from __future__ import annotations

from dataclasses import dataclass

from flightwatch.core.protocols import Row, Value


@dataclass(frozen=True, slots=True)
class StorageCounters:
    """Counters of one disk or mount as read; None is unknown.

    Attributes
    ----------
    read_ms_total, write_ms_total: time spent in completed operations, milliseconds.
    weighted_ms_total: sum over time of operations in flight, milliseconds (disks only).
    """

    target: str
    kind: str
    read_ops_total: int | None
    write_ops_total: int | None
    read_ms_total: int | None
    write_ms_total: int | None
    read_bytes_total: int | None
    write_bytes_total: int | None
    weighted_ms_total: int | None = None
    inflight: int | None = None

    def row(self, ts: int | None, previous: StorageCounters | None, elapsed_ms: float | None) -> Row:
        """Return the `storage_samples` row.

        Parameters
        ----------
        previous: the sample before, or None: times are then averages since boot or mount.
        elapsed_ms: time since `previous`; None or <= 0 leaves the queue depth unknown.
        """
        base = previous or _ZERO
        values: dict[str, Value] = {
            "ts": ts,
            "target": self.target,
            "kind": self.kind,
            "read_ms": _per(self.read_ms_total, base.read_ms_total, self.read_ops_total, base.read_ops_total),
            "write_ms": _per(self.write_ms_total, base.write_ms_total, self.write_ops_total, base.write_ops_total),
            "read_ops_total": self.read_ops_total,
            "write_ops_total": self.write_ops_total,
            "read_bytes_total": self.read_bytes_total,
            "write_bytes_total": self.write_bytes_total,
            "inflight": self.inflight,
        }
        if previous is not None and elapsed_ms is not None and elapsed_ms > 0:
            weighted = _delta(self.weighted_ms_total, previous.weighted_ms_total)
            values["queue_depth"] = None if weighted is None else weighted / elapsed_ms
        return Row("storage_samples", values)


_ZERO = StorageCounters("", "", 0, 0, 0, 0, 0, 0)


def _delta(now: int | None, before: int | None) -> int | None:
    """Return the growth of a counter; None when unknown or when it went back (reset, 32-bit wrap)."""
    if now is None or before is None or now < before:
        return None
    return now - before


def _per(ms: int | None, ms_before: int | None, ops: int | None, ops_before: int | None) -> float | None:
    """Return milliseconds per operation; None when there was no operation."""
    elapsed, count = _delta(ms, ms_before), _delta(ops, ops_before)
    if elapsed is None or not count:
        return None
    return elapsed / count


class StorageRates:
    """Remembers each target's last counters and turns new ones into rows."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[StorageCounters, float]] = {}

    def row(self, counters: StorageCounters, now_ms: int, monotonic_s: float) -> Row:
        """Return the row for new counters; the first of a target has no times (a rate needs two samples)."""
        previous, at = self._last.get(counters.target, (None, 0.0))
        self._last[counters.target] = (counters, monotonic_s)
        if previous is None:
            row = counters.row(now_ms, None, None)
            row.values["read_ms"] = row.values["write_ms"] = None
            return row
        return counters.row(now_ms, previous, (monotonic_s - at) * 1000)


def worst(rows: list[Row], column: str) -> float | None:
    """Return the largest known value of a column, None when no row knows it."""
    known = [value for row in rows if isinstance(value := row.values.get(column), (int, float))]
    return max(known) if known else None
