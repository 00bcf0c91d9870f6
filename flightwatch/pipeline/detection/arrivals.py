"""How far data has arrived: the watermark of `received_at`, and how far back late rows reach."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from flightwatch.core.clock import Clock
from flightwatch.pipeline.detection.window import STANDING, moment
from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.detection_reads import arrival_sql

DAY_MS = 86_400_000


@dataclass(frozen=True)
class News:
    """What has arrived since the last look.

    Attributes
    ----------
    until_ms: the newest data time. received_ms: the newest arrival. late_since_ms: the oldest time among rows that
    came since the last look, None when this is the first one or only standing tables changed.
    """

    until_ms: int
    received_ms: int
    late_since_ms: int | None


class Arrivals:
    """Watches the tables that detectors read."""

    def __init__(self, store: Store, clock: Clock, tables: Iterable[str]) -> None:
        self._store, self._clock = store, clock
        self.tables = tuple(tables)
        self._watched = frozenset(self.tables)
        self._seen: dict[str, int] = {}
        self.received_ms: int | None = None

    def news(self) -> News | None:
        """Return what is new since the last call, None when nothing has arrived.

        Rows dated ahead of this machine's clock do not move the data time. Raises TransientError: the store is away.
        """
        now_ms = self._clock.now_ms()
        since, newest, late = now_ms - DAY_MS, [], []
        changed = False
        for table in self.tables:
            mark = self._seen.get(table)
            parameters = {"since": moment(since), "mark": moment(0 if mark is None else mark)}
            for row in self._store.rows(arrival_sql(table), parameters):
                arrived = _millis(row["last_arrival"])
                if arrived != mark:
                    changed = True
                    if mark is not None and table not in STANDING and row["new_rows"]:
                        late.append(_millis(row["first_new_ts"]))
                self._seen[table] = arrived
                if table not in STANDING:
                    newest.append(_millis(row["last_ts"]))
                    self.received_ms = max(arrived, self.received_ms or 0)
        if not changed or not newest:
            return None
        return News(max(newest), self.received_ms or 0, min(late, default=None))

    def concerned(self, tables: Iterable[str]) -> bool:
        """Say whether one of these tables is among those watched."""
        return not self._watched.isdisjoint(tables)

    def forget(self) -> None:
        """Look at everything again the next time."""
        self._seen.clear()


def _millis(value: object) -> int:
    return int(pd.Timestamp(value).timestamp() * 1000) if not isinstance(value, (int, float)) else int(value)  # type: ignore[arg-type]
