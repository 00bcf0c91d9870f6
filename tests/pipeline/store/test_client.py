from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from flightwatch.core.errors import BadRecord, ConfigError, Refused, TransientError
from flightwatch.pipeline.store.client import Store, open_store
from flightwatch.pipeline.store.errors import one_line, translate
from flightwatch.pipeline.store.settings import StoreSettings
from tests.pipeline.store.blocks import HOUR_MS, block, insert

NOW = time.time_ns() // 1_000_000 // HOUR_MS * HOUR_MS


def test_rows_give_plain_values(store: Store) -> None:
    (row,) = store.rows(
        "SELECT toUInt64(18446744073709551615) AS big, toDateTime64('2026-11-29 19:10:13.123', 3, 'UTC') AS ts,"
        " toDateTime('2026-11-29 19:10:13', 'UTC') AS second, [toDateTime64(1, 3, 'UTC')] AS times,"
        " NULL AS nothing, map('a', 1.5) AS numbers, CAST('x', 'LowCardinality(String)') AS word, true AS yes"
    )
    assert row == {
        "big": 2**64 - 1,
        "ts": 1_795_979_413_123,
        "second": 1_795_979_413_000,
        "times": [1_000],
        "nothing": None,
        "numbers": {"a": 1.5},
        "word": "x",
        "yes": True,
    }


def test_parameters_are_bound_never_pasted(store: Store) -> None:
    nasty = "a' OR 1 = 1 -- \\ \n\t\x00é"
    (row,) = store.rows(
        "SELECT {text:String} AS text, {moment:DateTime64(3)} AS moment, {many:Array(String)} AS many",
        {"text": nasty, "moment": datetime(2026, 11, 29, 19, 10, 13, tzinfo=UTC), "many": [nasty, "b"]},
    )
    assert row == {"text": nasty, "moment": 1_795_979_413_000, "many": [nasty, "b"]}


def test_every_column_type_survives(store: Store) -> None:
    sample = {
        "ts": NOW,
        "node": "types",
        "device": 65535,
        "temp_c": 45.5,
        "power_w": None,
        "link_tx_bytes_total": 2**64 - 1,
        "energy_j_total": 1e15 + 0.5,
        "remap_pending": True,
        "remap_failure": None,
        "quality": "stale",
        "extra": {"nvml.a_mv": 1.5},
        "extra_counters": {"x.b": 2**64 - 1},
        "src_offset": 2**63,
    }
    insert(store, "device_samples", sample)
    (row,) = store.rows("SELECT * FROM flightwatch.device_samples WHERE node = 'types'")
    assert {name: row[name] for name in sample} == sample
    insert(store, "process_groups", {"ts": NOW, "process_group": "p", "members": [3, -1], "desc": "é"})
    (group,) = store.rows("SELECT members, desc FROM flightwatch.process_groups")
    assert group == {"members": [3, -1], "desc": "é"}


def test_arrow_keeps_types(store: Store) -> None:
    table = store.arrow(
        "SELECT now64(3) AS ts, toUInt64(18446744073709551615) AS big, CAST(NULL, 'Nullable(Float32)') AS f"
    )
    assert table.schema.field("ts").type == pa.timestamp("ms", tz="UTC")
    assert table.column("big").to_pylist() == [2**64 - 1]
    assert table.column("f").to_pylist() == [None]


def test_columns_left_out_are_unknown(store: Store) -> None:
    part = block("device_samples", {"ts": NOW, "node": "few", "device": 1}).select(
        ["ts", "received_at", "node", "device"]
    )
    store.insert_block("device_samples", part, "few")
    (row,) = store.rows("SELECT temp_c, quality, extra, vendor FROM flightwatch.device_samples WHERE node = 'few'")
    assert row == {"temp_c": None, "quality": None, "extra": {}, "vendor": ""}


def test_threads_do_not_share_a_client(store: Store) -> None:
    seen: list[int] = []

    def ask(number: int) -> None:
        for _ in range(5):
            seen.append(store.rows("SELECT {n:UInt8} AS n, sleepEachRow(0.001)", {"n": number})[0]["n"] - number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [0] * 30


def test_errors_say_what_to_do(store: Store) -> None:
    with pytest.raises(ConfigError, match="store migrate"):
        store.rows("SELECT * FROM flightwatch.no_such_table")
    with pytest.raises(Refused, match="nope"):
        store.rows("SELECT nope")
    with pytest.raises(TransientError, match="imeout"):
        store.rows("SELECT sum(cityHash64(number)) FROM numbers(10000000000000)", settings={"max_execution_time": 1})
    with pytest.raises(ConfigError, match="no_such_table"):
        store.insert_block("no_such_table", pa.table({"a": [1]}), "t")


def test_rejected_rows_are_told_from_unknown_outcomes(store: Store) -> None:
    with pytest.raises(BadRecord):
        store.insert_block("device_samples", pa.table({"ts": ["not a time"], "node": ["n"]}), "bad-1")
    with pytest.raises(BadRecord):
        store.insert_block("device_samples", pa.table({"no_such_column": [1]}), "bad-2")
    days = [{"ts": NOW - day * 86_400_000, "node": "wide", "device": 0} for day in range(150)]
    with pytest.raises(BadRecord, match="partitions"):
        insert(store, "device_samples", *days)
    assert store.rows("SELECT count() AS n FROM flightwatch.device_samples WHERE node = 'wide'") == [{"n": 0}]


class _EngineError(Exception):
    def __init__(self, code: int | None, text: str) -> None:
        super().__init__(text)
        self.code = code


@pytest.mark.parametrize(
    ("code", "text", "inserting", "kind"),
    [
        (252, "Code: 252. DB::Exception: Too many parts (300)", True, TransientError),
        (252, "Code: 252. DB::Exception: Too many partitions for single INSERT block", True, BadRecord),
        (242, "Code: 242. DB::Exception: Table is in readonly mode", True, TransientError),
        (243, "Code: 243. DB::Exception: Cannot reserve space", True, TransientError),
        (319, "Code: 319. DB::Exception: Unknown status of insert", True, TransientError),
        (241, "Code: 241. DB::Exception: Memory limit exceeded", False, TransientError),
        (516, "Code: 516. DB::Exception: Authentication failed", True, ConfigError),
        (497, "Code: 497. DB::Exception: Not enough privileges", False, ConfigError),
        (27, "Code: 27. DB::Exception: Cannot parse input", True, BadRecord),
        (27, "Code: 27. DB::Exception: Cannot parse input", False, Refused),
        (9999, "Code: 9999. DB::Exception: something new", True, TransientError),
        (None, "connection reset by peer", False, TransientError),
    ],
)
def test_codes_are_sorted_by_what_the_caller_does(code: int | None, text: str, inserting: bool, kind: type) -> None:
    assert type(translate(_EngineError(code, text), inserting=inserting)) is kind


def test_an_engine_error_becomes_one_line() -> None:
    error = Exception("Code: 1. DB::Exception: Code: 2. DB::Exception: bad\n  thing: While executing X. (BAD_THING)")
    assert one_line(error) == "bad thing"


def test_a_second_process_is_told_who_has_the_store(store: Store) -> None:
    program = (
        "import sys\n"
        "from flightwatch.pipeline.store.client import open_store\n"
        "from flightwatch.pipeline.store.settings import StoreSettings\n"
        "from flightwatch.core.errors import Refused\n"
        "try:\n    open_store(sys.argv[1], StoreSettings())\n"
        "except Refused as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, f"chdb://{store.folder}"], capture_output=True, text=True, check=True
    )
    assert f"is in use by process {os.getpid()}" in done.stdout
    assert done.stdout.count("\n") == 1


def test_a_second_store_in_this_process_is_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one process opens one embedded store"):
        open_store(f"chdb://{tmp_path / 'other'}", StoreSettings())


@pytest.mark.parametrize("url", ["chdb:///", "chdb://", "redis://x", "clickhouse://", "clickhouse://u@h/other",
                                 "clickhouse://u:secret@h:1/flightwatch"])  # fmt: skip
def test_malformed_urls_are_refused(url: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        open_store(url, StoreSettings())
    assert "secret" not in str(refusal.value)


def test_an_absent_server_is_transient() -> None:
    with pytest.raises(TransientError):
        open_store("clickhouse://u@127.0.0.1:1/flightwatch", StoreSettings(connect_timeout_seconds=1))
