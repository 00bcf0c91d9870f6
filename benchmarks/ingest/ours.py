"""Drain the bus into an embedded store in a process of its own, and measure.

usage: python -m benchmarks.ingest.ours BUS_FOLDER STORE_FOLDER INSERT_ROWS ROLLUPS(1|0) END_MS
Prints one JSON object.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from benchmarks.ingest.telemetry import METRICS
from flightwatch.core.vocabulary import DATABASE, Topic
from flightwatch.pipeline.bus.base import Bus
from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.ingest.runner import Ingest
from flightwatch.pipeline.ingest.settings import GROUP, IngestSettings
from flightwatch.pipeline.store.client import Store, open_store
from flightwatch.pipeline.store.migrate import migrate
from flightwatch.pipeline.store.settings import StoreSettings

DEVICE_TABLES = ("device_samples", "device_1m", "device_latest", "ingest_lanes")


def cpu_seconds() -> float:
    """User and system time of this process and its children."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    )


def drain(bus: Bus, ingest: Ingest) -> None:
    """Run ingest until the end of the topic is committed."""
    stop = threading.Event()
    thread = threading.Thread(target=ingest.run, args=(stop,))
    thread.start()
    ends = {partition: bus.end_offset(partition) for partition in bus.partitions(Topic.SAMPLES.value)}
    while True:
        positions = bus.group_positions(GROUP)
        done = {partition: committed.offset for partition, committed in positions.items()}
        if all(done.get(partition, 0) >= end for partition, end in ends.items()):
            break
        time.sleep(0.2)
    stop.set()
    thread.join()


def settle(store: Store) -> None:
    """Wait until no merge has run for 3 s."""
    quiet_since = time.monotonic()
    parts = -1
    while time.monotonic() - quiet_since < 3:
        now = store.rows(
            "SELECT (SELECT count() FROM system.merges) AS merging,"
            " (SELECT count() FROM system.parts WHERE active AND database = 'flightwatch') AS parts"
        )[0]
        if now["merging"] or now["parts"] != parts:
            quiet_since, parts = time.monotonic(), now["parts"]
        time.sleep(0.25)


def queries(end_ms: int) -> dict[str, str]:
    """The questions that are timed, in SQL."""
    end = f"fromUnixTimestamp64Milli(toInt64({end_ms}))"
    latest = f"SELECT node, device, temp_c, power_w, util_pct, sm_clock_mhz, ts FROM {DATABASE}.device_latest FINAL"
    return {
        "latest of all": latest,
        "top-k deviation now": (
            f"WITH (SELECT quantileExact(0.5)(temp_c) FROM {DATABASE}.device_latest FINAL) AS middle"
            f" SELECT node, device, temp_c, abs(temp_c - middle) AS deviation FROM {DATABASE}.device_latest FINAL"
            " ORDER BY deviation DESC LIMIT 10"
        ),
        "heat map 1 h x 1 min": (
            f"SELECT node, device, groupArray(top) FROM (SELECT node, device, m, max(temp_c_max) AS top"
            f" FROM {DATABASE}.device_1m WHERE m > {end} - INTERVAL 1 HOUR GROUP BY node, device, m ORDER BY m)"
            " GROUP BY node, device"
        ),
        "one node one day": (
            f"SELECT device, toStartOfMinute(ts) AS minute, avg(temp_c) FROM {DATABASE}.device_samples"
            f" WHERE cluster = 'bench' AND node = 'n0007' AND ts > {end} - INTERVAL 1 DAY"
            " GROUP BY device, minute ORDER BY device, minute"
        ),
    }


def timed(run: Callable[[], Any], times: int = 9) -> float:
    """Median milliseconds after one warm-up."""
    run()
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return round(statistics.median(taken) * 1000, 1)


def main() -> None:
    """Measure once."""
    bus_folder, store_folder, insert_rows, rollups, end_ms = sys.argv[1:]
    store = open_store(f"chdb://{store_folder}", StoreSettings())
    migrate(store)
    if rollups == "0":
        for view in store.rows("SELECT name FROM system.tables WHERE engine = 'MaterializedView'"):
            store.command(f"DROP TABLE {DATABASE}.{view['name']}")
    bus = open_bus(f"sqlite://{bus_folder}")
    ingest = Ingest(bus, store, IngestSettings(insert_rows=int(insert_rows)), cluster="bench")
    started, cpu = time.monotonic(), cpu_seconds()
    drain(bus, ingest)
    queryable_s, queryable_cpu = time.monotonic() - started, cpu_seconds() - cpu
    settle(store)
    settled_cpu = cpu_seconds() - cpu
    counted = " + ".join(f"count({metric})" for metric in METRICS)
    samples = store.rows(f"SELECT {counted} AS samples FROM {DATABASE}.device_samples")[0]["samples"]
    disk = {
        row["table"]: row["bytes"]
        for row in store.rows(
            "SELECT table, sum(bytes_on_disk) AS bytes FROM system.parts WHERE active AND database = 'flightwatch'"
            " GROUP BY table"
        )
    }
    snapshot = ingest.metrics.snapshot()
    result = {
        "samples": samples,
        "cpu_s": round(settled_cpu, 1),
        "cpu_s_before_merges_settled": round(queryable_cpu, 1),
        "wall_s": round(queryable_s, 1),
        "samples_per_cpu_s": round(samples / settled_cpu),
        "inserts": snapshot.inserts,
        "bytes_per_sample": round(disk["device_samples"] / samples, 3),
        "bytes_per_sample_with_rollups": round(sum(disk.get(t, 0) for t in DEVICE_TABLES) / samples, 3),
        "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "retries": snapshot.retries,
        "queries_ms": {
            name: timed(lambda sql=sql: store.arrow(sql))  # type: ignore[misc]
            for name, sql in queries(int(end_ms)).items()
        }
        if rollups == "1"
        else {},
    }
    columns = store.rows(
        "SELECT column, sum(column_data_compressed_bytes) AS bytes FROM system.parts_columns"
        " WHERE active AND table = 'device_samples' GROUP BY column ORDER BY bytes DESC LIMIT 12"
    )
    result["largest_columns_bytes_per_row"] = {
        row["column"]: round(row["bytes"] / (samples / len(METRICS)), 2) for row in columns
    }
    print(json.dumps(result), flush=True)
    bus.close()
    store.close()
    os._exit(0)


if __name__ == "__main__":
    main()
