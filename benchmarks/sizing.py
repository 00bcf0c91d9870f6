"""Measure what a row of each busy table costs on the wire and on disk: the constants of pipeline/sizing.py.

    python -m benchmarks.sizing

Rows are made with the noise and repetition of real ones (seeded), encoded as agents do, inserted as ingest does, and
merged. Prints one line a table: bytes per row on the wire and on disk, rollups included.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator

import pyarrow as pa

from flightwatch.core.protocols import Row
from flightwatch.pipeline.batch import Batch, BatchHeader
from flightwatch.pipeline.codec import encode
from flightwatch.pipeline.store.client import Store, open_store
from flightwatch.pipeline.store.migrate import migrate
from flightwatch.pipeline.store.schema import arrow_schema
from flightwatch.pipeline.store.settings import StoreSettings

#: Recent, or the tables would expire the rows while they merge.
START_MS = (time.time_ns() // 1_000_000_000 - 7200) * 1000
NODES, SCRAPES = 16, 240
ROLLUPS = {"device_samples": "device_1m", "node_samples": "node_1m", "port_samples": "port_1m", "op_timings": "op_1m"}


def device_rows(rng: random.Random, node: str, ts: int, step: int) -> Iterator[Row]:
    """Eight accelerators with thirty values each."""
    for device in range(8):
        traffic = step * 4_000_000_000 + rng.randrange(400_000_000)
        yield Row(
            "device_samples",
            {
                "ts": ts,
                "node": node,
                "device": device,
                "vendor": "nvidia",
                "model": "H100",
                "uuid": f"GPU-{node}-{device}",
                "job": "job-17",
                "run": "1",
                "rank": device,
                "temp_c": float(60 + rng.randrange(3)),
                "mem_temp_c": float(70 + rng.randrange(2)),
                "power_w": round(640 + rng.gauss(0, 8), 1),
                "power_instant_w": round(640 + rng.gauss(0, 15), 1),
                "power_limit_w": 700.0,
                "energy_j_total": step * 640.0,
                "sm_clock_mhz": 1980.0,
                "mem_clock_mhz": 2619.0,
                "util_pct": float(rng.choice((99, 100))),
                "mem_util_pct": float(40 + rng.randrange(5)),
                "mem_used_bytes": 70_000_000_000,
                "mem_total_bytes": 85_000_000_000,
                "ecc_corrected_total": 0,
                "ecc_uncorrected_total": 0,
                "remapped_rows_total": 0,
                "remap_pending": False,
                "remap_failure": False,
                "throttle_reasons": 0,
                "throttle_thermal_us_total": 0,
                "throttle_power_us_total": 0,
                "pcie_replay_total": 0,
                "pcie_rx_bytes_total": traffic,
                "pcie_tx_bytes_total": traffic // 2,
                "link_rx_bytes_total": traffic * 7,
                "link_tx_bytes_total": traffic * 7,
                "link_errors_total": 0,
            },
        )


def node_rows(rng: random.Random, node: str, ts: int, step: int) -> Iterator[Row]:
    """One host row."""
    yield Row(
        "node_samples",
        {
            "ts": ts,
            "node": node,
            "cpu_pct": round(rng.uniform(5, 9), 2),
            "load1": round(rng.uniform(9, 12), 2),
            "mem_used_bytes": 200_000_000_000 + rng.randrange(10**8),
            "io_queue_depth": round(rng.random(), 3),
            "io_read_ms": round(rng.random(), 3),
            "io_write_ms": round(rng.random(), 3),
            "clock_offset_us": round(rng.gauss(0, 20), 1),
            "inlet_c": 24.0,
            "fan_rpm_min": float(8000 + rng.randrange(200)),
        },
    )


def port_rows(rng: random.Random, node: str, ts: int, step: int) -> Iterator[Row]:
    """Eight RDMA ports."""
    for port in range(8):
        moved = step * 20_000_000_000 + rng.randrange(10**9)
        yield Row(
            "port_samples",
            {
                "ts": ts,
                "node": node,
                "hca": f"mlx5_{port}",
                "port": 1,
                "link_layer": "InfiniBand",
                "state": "ACTIVE",
                "rate_gbps": 400.0,
                "rx_bytes_total": moved,
                "tx_bytes_total": moved + 17,
                "rx_packets_total": moved // 4000,
                "tx_packets_total": moved // 4000,
                "symbol_errors_total": 0,
                "link_downed_total": 0,
                "rcv_errors_total": 0,
                "xmit_discards_total": 0,
                "xmit_wait_total": step * 1000 + rng.randrange(500),
                "out_of_sequence_total": 0,
                "cnp_sent_total": step * 3,
                "ecn_marked_total": step * 2,
            },
        )


def sensor_rows(rng: random.Random, node: str, ts: int, step: int) -> Iterator[Row]:
    """Fifty sensors."""
    for sensor in range(50):
        value = float(40 + sensor % 30 + rng.randrange(2))
        yield Row(
            "sensor_samples",
            {
                "ts": ts,
                "node": node,
                "chip": f"chip{sensor % 6}",
                "label": f"s{sensor}",
                "quantity": "temperature",
                "unit": "C",
                "value": value,
            },
        )


def rank_step_rows(rng: random.Random, node: str, ts: int, step: int) -> Iterator[Row]:
    """Eight ranks, one step."""
    for rank in range(8):
        compute = 4_100_000 + rng.gauss(0, 20_000)
        comm = 800_000 + rng.gauss(0, 20_000)
        yield Row(
            "rank_steps",
            {
                "ts": ts,
                "node": node,
                "job": "job-17",
                "run": "1",
                "step": step,
                "rank": rank,
                "device": rank,
                "step_us": round(compute + comm + 50_000),
                "compute_us": round(compute),
                "forward_us": round(compute / 3),
                "backward_us": round(compute * 2 / 3),
                "optimizer_us": 40_000 + rng.randrange(900),
                "data_us": 900 + rng.randrange(90),
                "comm_us": round(comm),
                "wait_us": round(comm / 2),
                "transfer_us": round(comm / 2),
                "unattributed_us": rng.randrange(9000),
                "comm_by_axis_us": {"tp": round(comm / 2), "dp": round(comm / 2)},
                "tokens": 8192.0,
                "mode": "sync",
                "loss": 2.1 + rng.random() / 100,
                "grad_norm": 0.3 + rng.random() / 100,
                "nonfinite_count": 0,
            },
        )


def op_rows(rng: random.Random, node: str, ts: int, step: int) -> Iterator[Row]:
    """Eight ranks, ten op summaries."""
    for rank in range(8):
        for op in range(10):
            mean = 30_000 * (op + 1)
            total = mean * 20 + rng.gauss(0, mean)
            yield Row(
                "op_timings",
                {
                    "ts": ts,
                    "node": node,
                    "level": "phase" if op < 5 else "block",
                    "job": "job-17",
                    "run": "1",
                    "step": step * 20,
                    "steps": 20,
                    "rank": rank,
                    "device": rank,
                    "kind": "compute",
                    "op": f"op{op}",
                    "dur_us": round(total),
                    "dur_sq_us2": round(total * mean),
                    "min_us": round(mean * 0.95),
                    "max_us": round(mean * 1.08),
                    "count": 20,
                },
            )


MAKERS: dict[str, Callable[[random.Random, str, int, int], Iterator[Row]]] = {
    "device_samples": device_rows,
    "node_samples": node_rows,
    "port_samples": port_rows,
    "sensor_samples": sensor_rows,
    "rank_steps": rank_step_rows,
    "op_timings": op_rows,
}


def main() -> None:
    """Print the table."""
    print(f"{'table':16} {'rows':>8} {'wire B/row':>11} {'disk B/row':>11}")
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"chdb:///{folder}/store", StoreSettings())
        try:
            migrate(store)
            for table, make in MAKERS.items():
                rows, wire, disk = measure(store, table, make)
                print(f"{table:16} {rows:8} {wire / rows:11.1f} {disk / rows:11.1f}")
        finally:
            store.close()


def measure(
    store: Store, table: str, make: Callable[[random.Random, str, int, int], Iterator[Row]]
) -> tuple[int, int, int]:
    """Return rows, bytes on the wire, bytes on disk with rollups."""
    rng = random.Random(7)
    wire, rows = 0, []
    for node_number in range(NODES):
        node = f"node-{node_number:04d}"
        for step in range(SCRAPES):
            batch = list(make(rng, node, START_MS + step * 5000, step))
            header = BatchHeader("a" * 32, "b" * 32, "samples", step + 1, node, "c", START_MS, "0.1.0")
            wire += len(encode(Batch(header, batch)))
            rows += batch
    store.insert_block(table, _block(table, rows), f"sizing-{table}")
    disk = 0
    for name in (table, ROLLUPS.get(table)):
        if name is not None:
            store.command(f"OPTIMIZE TABLE flightwatch.{name} FINAL")
            parts = store.rows(
                "SELECT sum(bytes_on_disk) AS n FROM system.parts WHERE active AND database = 'flightwatch' "
                "AND table = {table:String}",
                {"table": name},
            )
            disk += int(parts[0]["n"] or 0)
    return len(rows), wire, disk


def _block(table: str, rows: list[Row]) -> pa.Table:
    columns = []
    for field in arrow_schema(table):
        if field.name == "src_offset":
            values: list[object] = [index // 8 for index in range(len(rows))]
        elif field.name in ("received_at", "ts"):
            values = [row.values["ts"] for row in rows]
        elif field.name == "cluster":
            values = ["c"] * len(rows)
        else:
            default: object = {} if pa.types.is_map(field.type) else None if field.nullable else 0
            values = [row.values.get(field.name, default) for row in rows]
        if pa.types.is_map(field.type):
            values = [list(value.items()) if isinstance(value, dict) else value for value in values]
        columns.append(pa.array(values, field.type))
    return pa.table(columns, schema=arrow_schema(table))


if __name__ == "__main__":
    main()
