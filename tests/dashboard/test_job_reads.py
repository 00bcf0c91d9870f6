"""What the pages about a job share: old steps stand, new ones are read again, together they are the whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flightwatch.core.clock import SystemClock
from flightwatch.dashboard.components import job_reads
from flightwatch.dashboard.components.job_reads import JobView
from flightwatch.dashboard.components.view import Window
from flightwatch.pipeline.store import jobs_reads, step_reads
from flightwatch.pipeline.store.client import Store, open_store
from flightwatch.pipeline.store.migrate import migrate
from flightwatch.pipeline.store.settings import StoreSettings
from flightwatch.simulator.fill import fill_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with ten minutes of a few jobs up to now."""
    opened = open_store(f"chdb://{tmp_path_factory.mktemp('jobs') / 'store'}", StoreSettings())
    migrate(opened)
    fill_store(opened, 64, 0.17, SystemClock().now_ms(), faults=["slow_gpu@0:5,severity=0.3,after=60"])
    yield opened
    opened.close()


class Counting:
    """A store that counts the rows of tables read from it."""

    def __init__(self, store: Store) -> None:
        self._store, self.read = store, 0

    def arrow(self, *arguments: Any) -> Any:
        """Read as the store does."""
        table = self._store.arrow(*arguments)
        self.read += table.num_rows
        return table

    def rows(self, *arguments: Any) -> Any:
        """Read as the store does, uncounted."""
        return self._store.rows(*arguments)


def largest_job(store: Any) -> JobView:
    """Return the largest job as its page shows it."""
    job = store.rows("SELECT job FROM flightwatch.rank_latest GROUP BY job ORDER BY count() DESC LIMIT 1")[0]["job"]
    attempts, now_ms = job_reads.attempts_of(store, job), SystemClock().now_ms()
    window = Window(now_ms - 900_000, now_ms, live=True)
    return JobView(job, attempts[0], attempts, window, job_reads.steps_of(store, job, attempts[0], window, 120))


def test_old_and_new_steps_together_are_what_one_read_gives(store: Store) -> None:
    shown = largest_job(store)
    assert len(shown.steps) > 50
    whole = step_reads.matrix(store, shown.job, shown.attempt, shown.steps, "compute_us")
    found = job_reads.channel_view(store, shown, "compute_us")
    assert found.found.steps.tolist() == whole.steps.tolist() == shown.steps
    assert found.found.starts_ms.tolist() == whole.starts_ms.tolist()
    assert found.found.ranks.tolist() == whole.ranks.tolist()
    assert np.array_equal(found.found.values_RS, whole.values_RS, equal_nan=True)
    assert found.ratios_RS.shape == whole.values_RS.shape
    # Against its role the slow rank stands out in the newest steps.
    assert int(whole.ranks[np.argmax(found.ratios_RS[:, -5:].mean(axis=1))]) == 5
    rows = job_reads.step_rows(store, shown)
    assert rows == jobs_reads.step_summary(store, shown.job, shown.attempt, shown.steps)


def test_a_new_step_reads_old_ones_no_more(store: Store) -> None:
    counting: Any = Counting(store)
    shown = largest_job(counting)
    job_reads.channel_view(counting, replace(shown, steps=shown.steps[:-1]), "wait_us")
    first = counting.read
    found = job_reads.channel_view(counting, shown, "wait_us")
    assert found.found.steps.tolist() == shown.steps
    assert 0 < counting.read - first < first / 2


def test_a_rank_that_came_later_has_no_values_before(store: Store) -> None:
    early, late = np.array([0, 2]), np.array([0, 1, 2])
    columns = [(early, np.ones((2, 3), np.float32)), (late, np.full((3, 1), 2, np.float32))]
    beside = job_reads.beside(columns, late)
    assert np.array_equal(beside[:, 3], [2, 2, 2])
    assert np.isnan(beside[1, :3]).all()
    assert (beside[[0, 2], :3] == 1).all()
