"""The live loop over a real embedded store: rows in, findings out once, cleared, recovered."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from flightwatch.core.catalogue import TABLES
from flightwatch.core.clock import ManualClock, SystemClock
from flightwatch.core.errors import TransientError
from flightwatch.core.vocabulary import FindingKind, FindingState, Topic
from flightwatch.detectors.contract import Finding
from flightwatch.pipeline.codec import decode
from flightwatch.pipeline.detection.loop import DetectionLoop
from flightwatch.pipeline.detection.publish import FindingPublisher
from flightwatch.pipeline.detection.settings import DetectSettings
from flightwatch.pipeline.store.client import Store, open_store
from flightwatch.pipeline.store.migrate import migrate
from flightwatch.pipeline.store.schema import arrow_schema
from flightwatch.pipeline.store.settings import StoreSettings
from flightwatch.simulator.cluster import Cluster, Job
from flightwatch.simulator.faults import Fault
from flightwatch.simulator.scenarios import START_MS, build

#: Two hours ago, so that no row is past its retention.
BEGIN_MS = SystemClock().now_ms() - 7_200_000
EMPTY: dict[str, Any] = {"word": "", "text": "", "bool": False, "map_f64": [], "map_u64": [], "map_text": [],
                         "list_i32": [], "list_text": []}  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    opened = open_store(f"chdb://{tmp_path_factory.mktemp('store') / 'data'}", StoreSettings())
    migrate(opened)
    yield opened
    opened.close()


def put(store: Store, table: str, frame: pd.DataFrame, token: str) -> None:
    columns: dict[str, list[Any]] = {}
    for column in TABLES[table].columns:
        maps = [name for name in frame if str(name).startswith(f"{column.name}.")]
        if maps:
            columns[column.name] = [
                [(str(name).split(".", 1)[1], float(value)) for name, value in zip(maps, row, strict=True)]
                for row in frame[maps].to_numpy()
            ]
            continue
        name = "ts" if column.name == "received_at" else column.name
        if name not in frame:
            columns[column.name] = [None if column.nullable else EMPTY.get(column.type, 0)] * len(frame)
            continue
        cells = [None if cell is None or cell != cell else cell for cell in frame[name].astype(object).tolist()]
        whole = column.type not in ("f32", "f64") and not column.type.startswith(("word", "text"))
        columns[column.name] = [int(cell) if whole and cell is not None else cell for cell in cells]
    store.insert_block(table, pa.table(columns, schema=arrow_schema(table)), token)


def frames(end_step: int | None) -> dict[str, pd.DataFrame]:
    fault = Fault("slow_gpu", 1, 3, start_step=60, end_step=end_step, severity=0.3)
    drawn = build("live", Cluster(nodes=4), Job(tp=4, pp=2, dp=4, step_ms=1500), [fault], 3, 240, lost=0.0).frames
    for rows in drawn.values():
        rows["ts"] += BEGIN_MS - START_MS
    return drawn


def test_a_slow_rank_is_said_once_then_cleared_and_survives_a_restart(store: Store) -> None:
    told: list[Finding] = []
    drawn = frames(150)
    clock = ManualClock(BEGIN_MS)
    loop = DetectionLoop(store, told.extend, clock, DetectSettings())
    assert loop.cycle().until_ms is None
    rows = drawn["rank_steps"]
    put(store, "placements", drawn["placements"], "p")
    put(store, "inventory", drawn["inventory"], "i")
    put(store, "rank_steps", rows[rows["step"] < 100], "a")
    first = loop.cycle()
    assert first.failures == {}
    assert first.rows > 3000
    slow = [one for one in told if one.kind == FindingKind.SLOW]
    assert [(one.state, one.node, one.rank) for one in slow] == [(FindingState.RAISED, "n0001", 11)]
    told.clear()
    assert loop.cycle().until_ms is None
    restarted = DetectionLoop(store, told.extend, clock, DetectSettings())
    restarted.cycle()
    assert {one.id for one in told} >= {one.id for one in slow}
    told.clear()
    put(store, "rank_steps", rows[rows["step"] >= 100], "b")
    loop.cycle()
    over = [one for one in told if one.kind == FindingKind.SLOW]
    assert [(one.state, one.id) for one in over] == [(FindingState.CLEARED, slow[0].id)]


def test_what_the_bus_refuses_is_offered_again(store: Store) -> None:
    offered: list[Finding] = []
    away = True

    def publish(findings: Sequence[Finding]) -> None:
        if away:
            raise TransientError("the bus is away")
        offered.extend(findings)

    loop = DetectionLoop(store, publish, ManualClock(BEGIN_MS), DetectSettings(shadow=("coverage",)))
    with pytest.raises(TransientError):
        loop.cycle()
    away = False
    loop.cycle()
    assert len(offered) >= 1
    assert len({(one.id, one.state) for one in offered}) == len(offered)


def test_the_loop_stops_and_is_woken(store: Store) -> None:
    stop = threading.Event()
    loop = DetectionLoop(store, lambda _: stop.set(), ManualClock(BEGIN_MS), DetectSettings(interval_seconds=60))
    thread = threading.Thread(target=loop.run, args=(stop,))
    thread.start()
    loop.wake.set()
    assert stop.wait(300)
    loop.wake.set()
    thread.join(300)
    assert not thread.is_alive()


class OneTopic:
    def __init__(self) -> None:
        self.sent: list[tuple[str, str, bytes]] = []

    def publish(self, topic: str, key: str, value: bytes) -> Future[None]:
        self.sent.append((topic, key, value))
        done: Future[None] = Future()
        done.set_result(None)
        return done


def test_findings_travel_as_rows_of_their_table() -> None:
    bus = OneTopic()
    drawn = frames(None)
    from flightwatch.detectors.slow import SlowDetector

    (finding,) = SlowDetector().score(drawn)
    FindingPublisher(bus, ManualClock(), "c1", "host").publish([finding])  # type: ignore[arg-type]
    ((topic, key, value),) = bus.sent
    assert (topic, key) == (Topic.FINDINGS.value, "n0001")
    (row,) = decode(value).rows
    assert row.table == "findings"
    assert (row.values["id"], row.values["kind"], row.values["rank"]) == (finding.id, "slow", 11)
    assert row.values["detected_at"] == finding.detected_at
    assert np.isclose(float(str(row.values["score"])), finding.score)
