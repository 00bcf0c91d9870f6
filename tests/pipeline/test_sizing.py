"""Sizing is multiplication of measured figures, and the command prints it."""

from __future__ import annotations

import json

import pytest

from flightwatch.cli import main
from flightwatch.core.catalogue import TABLES
from flightwatch.pipeline.sizing import COSTS, Load, ingest_cores, sizes


def test_twice_the_cluster_is_twice_the_cost() -> None:
    small, large = sizes(Load(1024, 5.0)), sizes(Load(2048, 5.0))
    for one, two in zip(small, large, strict=True):
        assert two.rows_per_second == pytest.approx(2 * one.rows_per_second)
        assert two.disk_bytes_kept == pytest.approx(2 * one.disk_bytes_kept)
    assert ingest_cores(Load(2048, 5.0)) == pytest.approx(2 * ingest_cores(Load(1024, 5.0)))


def test_rates_of_a_known_cluster() -> None:
    rates = {size.table: size.rows_per_second for size in sizes(Load(10_000, 5.0))}
    assert rates["device_samples"] == 10_000
    assert rates["rank_steps"] == 2_000
    assert rates["node_samples"] == 250
    assert rates["op_timings"] == pytest.approx(10_000 * 10 / 100)


def test_retention_is_the_catalogues() -> None:
    assert {name: cost.ttl_days for name, cost in COSTS.items()} == {name: TABLES[name].ttl_days for name in COSTS}


def test_the_command_prints_text_and_json_and_refuses_nonsense(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", "--gpus", "1000"]) == 0
    assert "1,000 accelerators on 125 nodes" in capsys.readouterr().out
    assert main(["size", "--gpus", "1000", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["nodes"] == 125
    assert main(["size", "--gpus", "0"]) == 2
    assert "must be above 0" in capsys.readouterr().err
