"""One cycle of all timing detectors at 100,000 ranks: time, memory, what was read.

A store in a temporary folder is filled with a window of steps; then each cycle inserts a few more steps (not
measured) and measures reading what is new and running the detectors, in CPU and wall seconds of one process.
"""

from __future__ import annotations

import multiprocessing
import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from flightwatch.core.catalogue import TABLES, Column
from flightwatch.core.vocabulary import FindingKind
from flightwatch.detectors.contract import Detector
from flightwatch.detectors.dense_steps import DenseFrames
from flightwatch.pipeline.detection.run import run_detectors
from flightwatch.pipeline.detection.step_matrix import StepMatrix
from flightwatch.pipeline.store.client import open_store
from flightwatch.pipeline.store.migrate import migrate
from flightwatch.pipeline.store.schema import arrow_schema
from flightwatch.pipeline.store.settings import StoreSettings
from flightwatch.simulator.cluster import Cluster, Job
from flightwatch.simulator.faults import Fault
from flightwatch.simulator.timing import TimingModel

#: Steps in the store before the first cycle, new steps per cycle (15 s of 5 s steps), cycles, steps drawn at once.
FILLED, NEW, CYCLES, DRAWN = 100, 3, 4, 5
_NEWEST = "SELECT toUnixTimestamp64Milli(max(ts)) AS newest FROM flightwatch.rank_steps WHERE step < {step}"
JOB = Job(tp=8, pp=25, dp=500, step_ms=4000.0)


def blocks_of(frame: pd.DataFrame, table: str, offset: int) -> pa.Table:
    """Return simulated rows as a block of the store; unknown columns are NULL or empty."""
    schema = arrow_schema(table)
    return pa.table([_cells(frame, column, offset, schema) for column in TABLES[table].columns], schema=schema)


def _cells(frame: pd.DataFrame, column: Column, offset: int, schema: pa.Schema) -> pa.Array:
    kind = schema.field(column.name).type
    rows = len(frame)
    if column.name in ("ts", "received_at"):
        return pa.array(frame["ts"].astype("int64").to_numpy()).cast(pa.timestamp("ms")).cast(kind)
    if column.name == "src_offset":
        return pa.array(np.full(rows, offset), type=kind)
    if column.type == "map_f64":
        # The parts of the communication are left out: detectors read transfers and waits.
        return pa.array([[]] * rows, type=kind)
    if column.name not in frame:
        return pa.nulls(rows, kind) if column.nullable else pa.array([_empty(kind)] * rows, type=kind)
    cells = frame[column.name]
    if isinstance(cells.dtype, pd.CategoricalDtype):
        words = pa.DictionaryArray.from_arrays(cells.cat.codes.to_numpy(), list(cells.cat.categories))
        return words.cast(pa.string()).cast(kind)
    return pa.array(cells.to_numpy(), from_pandas=True).cast(kind, safe=False)


def _empty(kind: pa.DataType) -> Any:
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return []
    return "" if pa.types.is_string(kind) or pa.types.is_dictionary(kind) else 0


def fill(folder: str, job: Job, faults: Sequence[Fault], begin_ms: int, steps: int) -> None:
    """Fill a store with steps; runs in a process of its own, so that what is measured is not this."""
    store = open_store(f"chdb://{folder}", StoreSettings())
    try:
        migrate(store)
        model = TimingModel(_cluster_of(job), job, faults, 5, begin_ms)
        for start in range(0, steps, DRAWN):
            frame = model.frame(min(DRAWN, steps - start), first_step=start)
            store.insert_block("rank_steps", blocks_of(frame, "rank_steps", start), f"scale-{start}")
    finally:
        store.close()


def _cluster_of(job: Job) -> Cluster:
    return Cluster(nodes=-(-job.ranks // 8))


def measure(detectors: Sequence[Detector], job: Job = JOB, filled: int = FILLED, cycles: int = CYCLES) -> Iterator[str]:
    """Yield lines to print: the cold start and each cycle after it."""
    cluster = _cluster_of(job)
    begin_ms = int(time.time() * 1000) - 3_600_000
    fault = Fault("slow_gpu", min(777, cluster.nodes - 1), 3, start_step=filled * 3 // 5, severity=0.15)
    standing = {"placements": job.placements(cluster, begin_ms), "inventory": cluster.inventory(begin_ms)}
    with tempfile.TemporaryDirectory() as temporary:
        folder = str(Path(temporary) / "data")
        filler = multiprocessing.get_context("spawn").Process(
            target=fill, args=(folder, job, [fault], begin_ms, filled + cycles * NEW)
        )
        filler.start()
        filler.join()
        store = open_store(f"chdb://{folder}", StoreSettings())
        try:
            matrix = StepMatrix(store)
            for cycle in range(cycles + 1):
                # Later rows are in the store already; a cycle reads up to its time.
                newest = int(store.rows(_NEWEST.format(step=filled + cycle * NEW))[0]["newest"])
                wall, cpu = time.perf_counter(), time.process_time()
                runs = matrix.refresh(newest - 7_200_000, newest)
                read = time.perf_counter() - wall
                outcome = run_detectors(detectors, DenseFrames(standing, runs))
                wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
                memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 / 1024
                slow = [one for one in outcome.findings if one.kind == FindingKind.SLOW]
                named = sum(one.node == cluster.node_name(fault.node) for one in slow)
                yield (
                    f"{'cold start' if not cycle else f'cycle {cycle}':10} {job.ranks:,} ranks, window of "
                    f"{len(runs[0].steps_S)} steps, {matrix.rows_read:,} rows read: {cpu:.2f} s CPU, {wall:.2f} s wall "
                    f"(reading {read:.2f} s), peak {memory:.2f} GB; slow: {len(slow)}, the right one {named}"
                    + (f"; failed: {outcome.failures}" if outcome.failures else "")
                )
        finally:
            store.close()
