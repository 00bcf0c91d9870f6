"""Put the stream on a local bus, each message one node's scrape. Not part of what is measured.

usage: python -m benchmarks.ingest.load FOLDER NODES STEPS INTERVAL START_MS FIRST_NODE LAST_NODE
"""

from __future__ import annotations

import sys
from collections import deque
from concurrent.futures import Future
from typing import Any

from benchmarks.ingest.telemetry import COUNTERS_U64, GPUS, METRICS, Shape, generate, node_name, time_ms
from flightwatch.core.protocols import Row
from flightwatch.core.vocabulary import Topic
from flightwatch.pipeline.batch import Batch, BatchHeader
from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.codec import encode

_IN_FLIGHT = 2_000


def messages(shape: Shape, start_ms: int, nodes: range) -> Any:
    """Yield (node name, message) in order of time."""
    data = generate(shape)
    for step in range(shape.steps):
        ts = time_ms(shape, step, start_ms)
        columns = []
        for name in METRICS:
            cells = data[name][step]
            columns.append(cells.astype("u8").tolist() if name in COUNTERS_U64 else cells.tolist())
        for node in nodes:
            name = node_name(node)
            rows = []
            for device in range(GPUS):
                at = node * GPUS + device
                values: dict[str, Any] = {
                    "ts": ts,
                    "device": device,
                    "vendor": "nvidia",
                    "model": "NVIDIA H100 80GB HBM3",
                    "uuid": f"GPU-{at:08x}-5f3c-4c1e-9a51-0123456789ab",
                    "serial": f"16523{at:08d}",
                    "job": "pretrain-70b",
                    "run": "3",
                    "rank": at,
                }
                for metric, cells in zip(METRICS, columns, strict=True):
                    values[metric] = cells[at]
                rows.append(Row("device_samples", values))
            header = BatchHeader(f"agent{node:027d}", "spool", "samples", step + 1, name, "bench", ts, "0.1.0")
            yield name, encode(Batch(header, rows))


def main() -> None:
    """Publish a part of the nodes."""
    folder, *numbers = sys.argv[1:]
    nodes, steps, interval, start_ms, first, last = (float(number) for number in numbers)
    bus = open_bus(f"sqlite://{folder}")
    waiting: deque[Future[Any]] = deque()
    size = count = 0
    shape = Shape(int(nodes), int(steps), interval)
    for node, message in messages(shape, int(start_ms), range(int(first), int(last))):
        waiting.append(bus.publish(Topic.SAMPLES.value, node, message))
        size += len(message)
        count += 1
        if len(waiting) > _IN_FLIGHT:
            waiting.popleft().result(60)
    while waiting:
        waiting.popleft().result(60)
    bus.close()
    print(count, size)


if __name__ == "__main__":
    main()
