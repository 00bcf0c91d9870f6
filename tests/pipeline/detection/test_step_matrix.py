"""Windows kept between cycles hold what a fresh read of the window would hold, however rows arrive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import pytest

from benchmarks.detection.scale import blocks_of
from flightwatch.core.clock import SystemClock
from flightwatch.detectors.contract import Finding
from flightwatch.detectors.dense_steps import DenseFrames, DenseRun
from flightwatch.detectors.fail_slow import FailSlowDetector
from flightwatch.detectors.rank_matrix import runs_of
from flightwatch.detectors.slow import SlowDetector
from flightwatch.pipeline.detection.step_matrix import StepMatrix
from flightwatch.pipeline.store.client import Store, open_store
from flightwatch.pipeline.store.migrate import migrate
from flightwatch.pipeline.store.settings import StoreSettings
from flightwatch.simulator.cluster import Cluster, Job
from flightwatch.simulator.faults import Fault
from flightwatch.simulator.timing import TimingModel

BEGIN_MS = SystemClock().now_ms() - 7_200_000
CLUSTER = Cluster(nodes=2)
KEPT = 60


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    opened = open_store(f"chdb://{tmp_path_factory.mktemp('store') / 'data'}", StoreSettings())
    migrate(opened)
    yield opened
    opened.close()


class Writer:
    """Inserts rows as ingest does: offsets and arrival times grow."""

    def __init__(self, store: Store, first_offset: int) -> None:
        self.store, self.offset = store, first_offset

    def put(self, rows: pd.DataFrame) -> None:
        self.offset += 1
        self.store.insert_block("rank_steps", blocks_of(rows, "rank_steps", self.offset), f"m{self.offset}")


def drawn(name: str, ranks: int = 8, steps: int = 240, faults: Sequence[Fault] = ()) -> pd.DataFrame:
    job = Job(name=name, tp=2, dp=ranks // 2, step_ms=2000)
    return TimingModel(CLUSTER, job, faults, 7, BEGIN_MS).frame(steps)


def same(dense: DenseRun, rows: pd.DataFrame) -> None:
    """Compare with a window laid out from rows."""
    wanted = next(runs_of({"rank_steps": rows}))
    assert dense.steps_S.tolist() == wanted.steps_S.tolist()
    assert dense.ranks_R.tolist() == wanted.layout.ranks_R.tolist()
    for name in ("step_us", "compute_us", "wait_us", "data_us"):
        assert np.allclose(dense.channels[name], np.asarray(wanted.channel(name)), rtol=1e-6, equal_nan=True)


def until(rows: pd.DataFrame) -> int:
    return int(rows["ts"].max())


def of(matrix: StepMatrix, name: str, now_ms: int) -> DenseRun:
    (found,) = [one for one in matrix.refresh(BEGIN_MS - 1000, now_ms) if one.job == name]
    return found


def test_a_window_that_slides_equals_a_fresh_read(store: Store) -> None:
    rows, writer = drawn("slides"), Writer(store, 1000)
    matrix = StepMatrix(store, cells=8 * KEPT, fewest_steps=KEPT)
    before = 0
    for step in (40, 41, 45, 80, 81, 83, 120, 200, 203, 206, 209, 212, 239):
        writer.put(rows[(rows["step"] >= before) & (rows["step"] < step)])
        before = step
        seen = rows[rows["step"] < step]
        same(of(matrix, "slides", until(seen)), seen[seen["step"] >= step - KEPT])
        assert matrix.rows_read <= 8 * 80


def test_late_rows_joining_ranks_and_repeated_rows(store: Store) -> None:
    rows, writer = drawn("late"), Writer(store, 2000)
    matrix = StepMatrix(store, cells=10_000, fewest_steps=KEPT)
    late = (rows["step"] == 20) & (rows["rank"] == 3)
    first = rows[(rows["step"] < 50) & (rows["rank"] < 6) & ~late]
    writer.put(first)
    now = until(rows[rows["step"] < 60])
    same(of(matrix, "late", now), first)
    writer.put(rows[(rows["step"] < 60) & (rows["rank"] >= 6)])
    writer.put(rows[late])
    writer.put(rows[(rows["step"] >= 40) & (rows["step"] < 60)])
    same(of(matrix, "late", now), rows[rows["step"] < 60])
    of(matrix, "late", now)
    assert matrix.rows_read == 0


def test_a_run_that_ended_is_forgotten(store: Store) -> None:
    rows, writer = drawn("over", steps=10), Writer(store, 3000)
    writer.put(rows)
    matrix = StepMatrix(store)
    of(matrix, "over", until(rows))
    assert [one for one in matrix.refresh(until(rows) + 1, until(rows) + 60_000) if one.job == "over"] == []


def key(finding: Finding) -> tuple[object, ...]:
    return finding.kind, finding.class_, finding.node, finding.rank, finding.detected_step, finding.state


def test_detectors_say_the_same_of_matrices_and_of_rows(store: Store) -> None:
    fault = Fault("slow_gpu", 0, 3, start_step=100, severity=0.2)
    rows, writer = drawn("same", ranks=16, faults=[fault]), Writer(store, 4000)
    writer.put(rows[rows["step"] < 150])
    writer.put(rows[rows["step"] >= 150])
    matrix = StepMatrix(store, cells=100_000)
    standing = {"placements": Job(name="same", tp=2, dp=8).placements(CLUSTER, BEGIN_MS)}
    dense = DenseFrames(standing, [of(matrix, "same", until(rows))])
    for detector in (SlowDetector(), FailSlowDetector()):
        wanted = [key(one) for one in detector.score({**standing, "rank_steps": rows})]
        assert wanted
        assert [key(one) for one in detector.score(dense)] == wanted
    # The same rows beside it are not scored twice.
    dense["rank_steps"] = rows
    assert len(list(runs_of(dense))) == 1
