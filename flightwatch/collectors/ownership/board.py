"""Puts job, run and rank into device rows that do not have them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from flightwatch.collectors.ownership.owners import Owner
from flightwatch.core.protocols import Row, Sink


class OwnerBoard:
    """The owners found last. Replaced as a whole, so that readers on other threads need no lock."""

    def __init__(self) -> None:
        self._owners: Mapping[int, Owner] = {}

    def replace(self, owners: Mapping[int, Owner]) -> None:
        """Take what was found now."""
        self._owners = owners

    def only_job(self) -> tuple[str, str] | None:
        """Return job and run when one job alone owns devices here, None when none or several do."""
        found = {(owner.job, owner.run) for owner in self._owners.values()}
        return found.pop() if len(found) == 1 else None

    def stamp(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the rows; those of an owned device get its job, run and rank where they have none."""
        owners = self._owners
        for row in rows:
            if row.table == "device_samples" and owners:
                device = row.values.get("device")
                owner = owners.get(device) if isinstance(device, int) else None
                if owner is not None and row.values.get("job") is None:
                    row.values.update(job=owner.job, run=owner.run, rank=owner.rank)
            yield row


class OwnerSink:
    """A sink in front of another that stamps device rows."""

    def __init__(self, sink: Sink, owners: OwnerBoard) -> None:
        self._sink = sink
        self._owners = owners

    def emit(self, rows: Iterable[Row]) -> None:
        """Stamp and pass on."""
        self._sink.emit(self._owners.stamp(rows))

    def flush(self, timeout_seconds: float) -> bool:
        """Flush the sink behind."""
        return self._sink.flush(timeout_seconds)
