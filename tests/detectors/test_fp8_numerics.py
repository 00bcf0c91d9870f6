"""FP8 amax, scale and overflow: whose trouble it is."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from flightwatch.core.vocabulary import FindingKind, FindingScope, FindingState
from flightwatch.detectors.contract import Finding
from flightwatch.detectors.numerics import NumericsDetector

STEPS = 120


def rows(name: str, level: float, ranks: tuple[int, ...] = (-1,), seed: int = 1) -> pd.DataFrame:
    """One series per rank around a level, 10 % of noise."""
    step, rank = (axis.ravel() for axis in np.meshgrid(np.arange(float(STEPS)), np.array(ranks, dtype=float)))
    noise = np.exp(np.random.default_rng(seed).normal(0, 0.1, len(step)))
    node = [f"n{int(one) // 4}" if one >= 0 else None for one in rank]
    return pd.DataFrame(
        {"ts": 1.76e12 + 1000 * step, "node": node, "job": "j", "run": "1", "step": step, "rank": rank, "name": name,
         "value": level * noise}
    )  # fmt: skip


def with_factor(
    table: pd.DataFrame, factor: float, first: int, last: int = STEPS, rank: int | None = None
) -> pd.DataFrame:
    at = (table["step"] >= first) & (table["step"] < last)
    at &= True if rank is None else table["rank"] == rank
    return table.assign(value=np.where(at, table["value"] * factor, table["value"]))


def found_in(*tables: pd.DataFrame) -> list[Finding]:
    return NumericsDetector().score({"training_scalars": pd.concat(tables, ignore_index=True)})


def test_quiet_layers_and_other_scalars_say_nothing() -> None:
    quiet = [
        rows(f"fp8.{one}.layers.3.mlp", level) for one, level in (("amax", 3.0), ("scale", 80), ("overflow", 1e-4))
    ]
    assert found_in(*quiet, with_factor(rows("loss", 2.0), 50, 60)) == []


@pytest.mark.parametrize(
    ("name", "level", "factor", "quantity"),
    [("fp8.amax.layers.3.mlp", 3.0, 20, "amax"), ("fp8/scale/layers.3.mlp", 80.0, 0.02, "scale"),
     ("fp8.overflow.layers.3.mlp", 1e-3, 40, "overflow"), ("train/fp8.underflow.x", 0.02, 20, "underflow")],
)  # fmt: skip
def test_a_lasting_change_is_told_within_five_steps(name: str, level: float, factor: float, quantity: str) -> None:
    found = found_in(with_factor(rows(name, level), factor, 60))
    assert (found[0].kind, found[0].scope, found[0].blames_hardware) == (FindingKind.NUMERICS, FindingScope.JOB, False)
    assert found[0].evidence["quantities"] == [quantity]
    assert found[0].detected_step is not None
    assert 60 <= found[0].detected_step <= 65


def test_one_odd_step_and_small_changes_are_nothing() -> None:
    assert found_in(with_factor(rows("fp8.amax.a", 3.0), 50, 60, 61)) == []
    assert found_in(with_factor(rows("fp8.amax.a", 3.0), 4, 60)) == []
    assert found_in(with_factor(rows("fp8.overflow.a", 1e-4), 20, 60)) == []


def test_one_rank_alone_is_a_suspect_all_ranks_are_not() -> None:
    series = rows("fp8.amax.a", 3.0, ranks=tuple(range(8)))
    (alone,) = found_in(with_factor(series, 30, 100, rank=5))
    assert (alone.scope, alone.rank, alone.node, alone.blames_hardware) == (FindingScope.RANK, 5, "n1", True)
    (everyone,) = found_in(with_factor(series, 30, 100))
    assert (everyone.scope, everyone.rank, everyone.blames_hardware) == (FindingScope.JOB, None, False)
    (pair,) = found_in(with_factor(rows("fp8.amax.a", 3.0, ranks=(0, 1)), 30, 100, rank=1))
    assert not pair.blames_hardware


def test_trouble_that_spreads_takes_back_the_suspicion() -> None:
    series = with_factor(rows("fp8.amax.a", 3.0, ranks=tuple(range(8))), 30, 100, rank=5)
    found = found_in(with_factor(series, 30, 108, rank=2))
    assert [(one.state, one.scope, one.blames_hardware) for one in found] == [
        (FindingState.RAISED, FindingScope.RANK, True), (FindingState.CHANGED, FindingScope.JOB, False),
    ]  # fmt: skip
    assert found[0].id == found[1].id


def test_recovery_clears() -> None:
    found = found_in(with_factor(rows("fp8.amax.a", 3.0), 30, 60, 80))
    assert [one.state for one in found] == [FindingState.RAISED, FindingState.CLEARED]


def test_infinite_values_count() -> None:
    table = rows("fp8.amax.a", 3.0)
    (found,) = found_in(table.assign(value=np.where(table["step"] >= 110, np.inf, table["value"])))
    assert found.score == 100.0
