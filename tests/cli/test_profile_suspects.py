"""`profile start --suspects`: whom open slow findings name, with two peers of the same stage on other nodes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from flightwatch.cli.profile_suspects import suspects_of
from flightwatch.cli.sections import load_settings
from flightwatch.core.errors import Refused
from flightwatch.core.settings import Loaded
from flightwatch.pipeline.store.client import open_store
from flightwatch.pipeline.store.migrate import migrate
from flightwatch.pipeline.store.settings import StoreSettings
from tests.pipeline.store.blocks import insert

JOB = "lla'ma"
#: Eight nodes of two ranks; the first eight ranks are stage 0.
RANKS = range(16)


def finding(now_ms: int, name: str, rank: int, state: str = "raised", **more: Any) -> dict[str, Any]:
    return {
        "ts": now_ms, "id": name, "detector": "slow", "kind": "slow", "scope": "rank", "node": f"n{rank // 2}",
        "rank": rank, "job": JOB, "run": "0", "state": state, "severity": "P3", "score": 5.0,
        "targets": [f"n{rank // 2}"], "summary": f"Rank {rank} is slow.",
    } | more  # fmt: skip


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loaded:
    store = open_store(f"chdb:///{tmp_path}/store", StoreSettings())
    migrate(store)
    now_ms = time.time_ns() // 1_000_000
    base = {"ts": now_ms - 1000, "job": JOB, "run": "0"}
    insert(
        store, "placements",
        *(base | {"rank": rank, "node": f"n{rank // 2}", "device": rank % 2, "tp": rank % 2, "pp": rank // 8,
                  "dp": rank % 8 // 2} for rank in RANKS),
    )  # fmt: skip
    insert(
        store, "rank_steps",
        *(base | {"rank": rank, "node": f"n{rank // 2}", "device": rank % 2, "step": 50, "step_us": 1e6}
          for rank in RANKS),
    )  # fmt: skip
    insert(
        store, "findings", finding(now_ms - 9000, "f1", 5), finding(now_ms - 9000, "f2", 12),
        finding(now_ms - 9000, "f3", 2), finding(now_ms - 5000, "f3", 2, "cleared"),
        finding(now_ms - 9000, "f4", 1, job="other"), finding(now_ms - 9000, "f5", 15, score=9.0),
    )  # fmt: skip
    store.close()
    monkeypatch.setenv("FLIGHTWATCH_FLIGHTWATCH_DATA_DIR", str(tmp_path))
    return load_settings(None)


def test_suspects_and_two_role_peers_each_the_worst_first(settings: Loaded) -> None:
    ranks, why = suspects_of(settings, JOB, 16)
    assert {5, 12, 15} <= set(ranks)
    assert not {1, 2, 4, 13, 14} & set(ranks) - {13, 14}, "cleared findings, other jobs and nodes under suspicion"
    stage = [rank // 8 for rank in ranks]
    assert stage.count(0) == 3, "one suspect of stage 0 and two peers of its stage"
    assert "Rank 15 is slow." in why
    few, _ = suspects_of(settings, JOB, 3)
    assert 15 in few
    assert len(few) == 3


def test_without_open_findings_it_says_what_to_do(settings: Loaded) -> None:
    with pytest.raises(Refused, match="name the ranks with --ranks or --role"):
        suspects_of(settings, "quiet", 16)
