from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from flightwatch.core.catalogue import TABLES
from flightwatch.simulator.cluster import Cluster, Job
from flightwatch.simulator.faults import TELEMETRY_KINDS, TIMING_KINDS, Fault, level
from flightwatch.simulator.scenarios import CONFOUNDERS, confounder_scenario, kinds, telemetry_scenario, timing_scenario
from flightwatch.simulator.timing import TimingModel

CLUSTER = Cluster(nodes=4)
JOB = Job(tp=4, pp=2, dp=4)


def frame(*faults: Fault, job: Job = JOB, steps: int = 60, seed: int = 1) -> pd.DataFrame:
    return TimingModel(CLUSTER, job, faults, seed, 1_700_000_000_000).frame(steps)


def test_same_seed_same_rows_other_seed_other_rows() -> None:
    pd.testing.assert_frame_equal(frame(), frame())
    assert not np.allclose(frame()["compute_us"], frame(seed=2)["compute_us"])


def test_every_rank_of_a_synchronous_step_takes_equally_long() -> None:
    rows = frame(Fault("slow_gpu", 1, 0, start_step=0, severity=0.5))
    assert (rows.groupby("step")["step_us"].nunique() == 1).all()
    parts = rows["compute_us"] + rows["launch_gap_us"] + rows["data_us"] + rows["optimizer_us"] + rows["comm_us"]
    assert np.allclose(parts + rows["checkpoint_us"], rows["step_us"], rtol=1e-4)
    assert (rows["wait_us"] > -1).all()


def test_the_slow_rank_computes_long_and_waits_short() -> None:
    rows = (
        frame(Fault("slow_gpu", 1, 3, start_step=0, severity=0.3)).groupby("rank")[["compute_us", "wait_us"]].median()
    )
    assert rows["compute_us"].idxmax() == 11
    stage = rows.loc[:15]
    assert stage["wait_us"].idxmin() == 11


def test_asynchronous_ranks_do_not_wait() -> None:
    rows = frame(job=Job(dp=32, asynchronous=True))
    assert (rows.groupby("step")["step_us"].nunique() > 8).all()
    assert set(rows["mode"]) == {"async"}


def test_columns_are_in_the_catalogue() -> None:
    known = set(TABLES["rank_steps"].column_names)
    assert {name.split(".")[0] for name in frame().columns} <= known
    scenario = telemetry_scenario("clean", 1, hours=0.1)
    for table, rows in scenario.frames.items():
        assert set(rows.columns) <= set(TABLES[table].column_names)


def test_intermittent_faults_keep_their_duty() -> None:
    on = level(Fault("intermittent", 0, start_step=0, duty=0.1), np.arange(2000))
    assert 0.08 < on.mean() < 0.12


@pytest.mark.parametrize("kind", sorted(TIMING_KINDS))
def test_every_timing_fault_can_be_drawn(kind: str) -> None:
    scenario = timing_scenario(kind, 3, steps=40)
    assert len(scenario.guilty) == 1
    assert scenario.rank_steps > 0
    assert scenario.guilty[0]


@pytest.mark.parametrize("kind", sorted(TELEMETRY_KINDS))
def test_every_telemetry_fault_can_be_drawn(kind: str) -> None:
    scenario = telemetry_scenario(kind, 3, hours=0.1)
    assert scenario.guilty[0]
    assert not scenario.frames["device_samples"].empty


def test_confounders_hold_no_fault() -> None:
    assert kinds()[2] == CONFOUNDERS
    for kind in CONFOUNDERS:
        assert confounder_scenario(kind, 1, steps=20).faults == ()


def test_ten_thousand_ranks_are_drawn_in_bounded_memory() -> None:
    model = TimingModel(Cluster(nodes=1250), Job(tp=8, pp=10, dp=125), (), 1, 0)
    numbers, channels = next(model.chunks(2, size=2))
    assert (len(numbers), channels["compute_us"].shape) == (2, (2, 10_000))
