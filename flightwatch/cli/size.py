"""`flightwatch size`: what a cluster of a given size needs."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from flightwatch.core.errors import ConfigError
from flightwatch.core.vocabulary import ExitCode
from flightwatch.pipeline.sizing import REPLICAS, Load, ingest_cores, sizes

HELP = "Print rows per second, bus traffic, cores and disk that a cluster needs, from measured figures."
EPILOG = "example:\n  flightwatch size --gpus 10000 --step-seconds 5"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare arguments."""
    parser.add_argument("--gpus", type=int, required=True, help="accelerators of the cluster")
    parser.add_argument("--step-seconds", type=float, default=5.0, help="duration of a training step (default: 5)")
    parser.add_argument("--gpus-per-node", type=int, default=8, help="default: 8")
    parser.add_argument(
        "--device-interval", type=float, default=1.0, help="seconds between device samples (default: 1)"
    )
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")


def run(arguments: argparse.Namespace) -> int:
    """Print the table."""
    numbers = (arguments.gpus, arguments.step_seconds, arguments.gpus_per_node, arguments.device_interval)
    if min(numbers) <= 0:
        raise ConfigError("--gpus, --step-seconds, --gpus-per-node and --device-interval must be above 0")
    load = Load(
        arguments.gpus,
        arguments.step_seconds,
        gpus_per_node=arguments.gpus_per_node,
        device_interval_seconds=arguments.device_interval,
    )
    if arguments.format == "json":
        body = {
            "tables": [asdict(size) for size in sizes(load)],
            "ingest_cores": ingest_cores(load),
            "nodes": load.nodes,
        }
        print(json.dumps(body))
    else:
        print(size_text(load))
    return ExitCode.DONE


def size_text(load: Load) -> str:
    """Render the sizes of one cluster as a table."""
    rows = sizes(load)
    lines = [
        f"{load.gpus:,} accelerators on {load.nodes:,} nodes, {load.step_seconds:g} s steps; one copy of the data",
        f"{'table':16} {'rows/s':>12} {'bus MB/s':>9} {'GB/day':>9} {'GB kept':>9}",
    ]
    for size in rows:
        lines.append(
            f"{size.table:16} {size.rows_per_second:>12,.1f} {size.wire_bytes_per_second / 1e6:>9.3f}"
            f" {size.disk_bytes_per_day / 1e9:>9.2f} {size.disk_bytes_kept / 1e9:>9.1f}"
        )
    total_wire = sum(size.wire_bytes_per_second for size in rows)
    lines.append(
        f"{'sum':16} {sum(size.rows_per_second for size in rows):>12,.1f} {total_wire / 1e6:>9.3f}"
        f" {sum(size.disk_bytes_per_day for size in rows) / 1e9:>9.2f}"
        f" {sum(size.disk_bytes_kept for size in rows) / 1e9:>9.1f}"
    )
    lines.append(
        f"ingest: {ingest_cores(load):.2f} cores on average; bus and store: times {REPLICAS} with {REPLICAS} replicas"
    )
    return "\n".join(lines)
