"""A past for an empty store: hours of a simulated cluster, inserted as ingest inserts, without the bus."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.frames import insert_frame, insert_rows
from flightwatch.simulator.cluster import Cluster, Job
from flightwatch.simulator.plan import cluster_of, jobs_on, parse_fault
from flightwatch.simulator.standing import standing_rows
from flightwatch.simulator.stretches import stretches
from flightwatch.simulator.telemetry import TelemetrySpec
from flightwatch.simulator.timing import TimingModel

#: Rows of one insert, about: larger ones take more memory, smaller ones more time.
BLOCK_ROWS = 200_000


@dataclass
class Filled:
    """What was written.

    Attributes
    ----------
    rows: table to rows. jobs: the simulated jobs.
    """

    cluster: Cluster
    jobs: list[Job]
    rows: dict[str, int] = field(default_factory=dict)

    def count(self, table: str, rows: int) -> None:
        """Add to the rows of a table."""
        self.rows[table] = self.rows.get(table, 0) + rows


def fill_store(
    store: Store,
    devices: int,
    hours: float,
    end_ms: int,
    *,
    faults: Sequence[str] = (),
    sample_s: float = 10.0,
    step_s: float = 5.0,
    seed: int = 1,
    name: str = "sim",
    progress: Callable[[str], None] | None = None,
) -> Filled:
    """Write inventory, placements, telemetry and training rows of a simulated cluster.

    Parameters
    ----------
    store: migrated. devices: accelerators. hours: length of the past that ends at `end_ms` (milliseconds).
    faults: as `plan.parse_fault` reads them; their times count from the begin of the past.
    sample_s, step_s: intervals of telemetry and about the duration of steps. progress: told of every hour part.

    Returns
    -------
    What was written. The same arguments again change nothing: every block has its token.

    Raises
    ------
    TransientError: the store is away. ConfigError: a fault cannot be.
    """
    start_ms = end_ms - round(hours * 3_600_000)
    cluster = cluster_of(devices, f"{name}-", name)
    filled = Filled(cluster, jobs_on(cluster, f"{name}-", step_s, f"r{start_ms // 1000}"))
    token = f"fill:{name}:{devices}:{start_ms}:{seed}"
    timed = [parse_fault(text, cluster) for text in faults]
    standing = standing_rows(cluster, filled.jobs, start_ms)
    insert_rows(store, standing, f"{token}:standing")
    for row in standing:
        filled.count(row.table, 1)

    total = round(hours * 3600 / sample_s)
    size = max(1, min(total, BLOCK_ROWS // max(1, devices)))
    spec = TelemetrySpec(interval_s=sample_s, samples=size, step_s=step_s)
    drawn = stretches(cluster, filled.jobs, [one.in_steps(step_s) for one in timed], seed, start_ms, spec)
    for first in range(0, total, size):
        for table, frame in next(drawn).items():
            kept = frame[frame["ts"] <= end_ms]
            insert_frame(store, table, kept, f"{token}:{table}:{first}")
            filled.count(table, len(kept))
        if progress is not None:
            progress(f"telemetry until {min(1.0, (first + size) / total):.0%}")
    for number, job in enumerate(filled.jobs):
        _steps(store, filled, job, TimingModel(cluster, job, [one.in_steps(step_s) for one in timed], seed + number,
                                               start_ms), end_ms, f"{token}:{job.name}")  # fmt: skip
        if progress is not None:
            progress(f"steps of {job.name}")
    return filled


def _steps(store: Store, filled: Filled, job: Job, model: TimingModel, end_ms: int, token: str) -> None:
    size = max(1, min(50, BLOCK_ROWS // job.ranks))
    first, newest = 0, -np.inf
    while newest < end_ms:
        frame = model.frame(size, first_step=first)
        newest = float(frame["ts"].iloc[-1])
        kept: pd.DataFrame = frame[frame["ts"] <= end_ms]
        insert_frame(store, "rank_steps", kept, f"{token}:{first}")
        filled.count("rank_steps", len(kept))
        first += size
