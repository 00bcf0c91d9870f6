"""`make bench-ingest`: broker bytes to queryable rows, beside VictoriaMetrics and Prometheus in the same run."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.ingest.peers import fetch_packages, measure
from benchmarks.ingest.telemetry import METRICS, Shape, generate, time_ms
from flightwatch.core.vocabulary import Topic
from flightwatch.pipeline.bus.connect import open_bus

ROOT = Path(__file__).parents[2]
GOALS = "goals: >= 3 M samples per CPU-second with rollups, <= 1.25 bytes per sample, latest and top-k <= 15 ms"


def load(folder: Path, shape: Shape, start_ms: int) -> int:
    """Fill the bus with two loader processes; return the bytes of all messages."""
    bus = open_bus(f"sqlite://{folder}")
    for topic in Topic:
        bus.create_topic(topic.value, 2, None, None)
    bus.close()
    middle = shape.nodes // 2
    sizes = [str(shape.nodes), str(shape.steps), str(shape.interval_seconds), str(start_ms)]
    loaders = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.ingest.load", str(folder), *sizes, str(first), str(last)],
            cwd=ROOT, stdout=subprocess.PIPE, text=True,
        )
        for first, last in ((0, middle), (middle, shape.nodes))
    ]  # fmt: skip
    outputs = [loader.communicate()[0] for loader in loaders]
    if any(loader.returncode for loader in loaders):
        raise SystemExit("loading failed")
    return sum(int(output.split()[1]) for output in outputs)


def ours(bus: Path, folder: Path, insert_rows: int, rollups: bool, end_ms: int) -> dict[str, Any]:
    """Drain a copy of the bus in a process of its own."""
    copy = folder / "bus"
    shutil.copytree(bus, copy)
    (folder / "store").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.ingest.ours", str(copy), str(folder / "store"), str(insert_rows),
         str(int(rollups)), str(end_ms)],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    shutil.rmtree(folder)
    return result


def machine() -> str:
    """Describe the machine in one line."""
    model = next(
        (line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
         if line.startswith("model name")), "unknown",
    )  # fmt: skip
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    load_average = os.getloadavg()[0]
    return (
        f"{os.cpu_count()} cores of {model}, {memory:.0f} GB, {platform.system()} {platform.release()},"
        f" Python {platform.python_version()}, load before the run {load_average:.1f}"
    )


def report(results: dict[str, dict[str, Any]]) -> None:
    """Print the tables and the ratios."""
    best = results["Flightwatch, catching up"]
    print(f"\n{'':34} {'M samples/CPU-s':>16} {'ratio':>7} {'B/sample':>9} {'CPU s':>7} {'wall s':>7}")
    for name, result in results.items():
        speed = result["samples_per_cpu_s"] / 1e6
        ratio = best["samples_per_cpu_s"] / result["samples_per_cpu_s"]
        print(
            f"{name:34} {speed:16.2f} {ratio:6.1f}x {result['bytes_per_sample']:9.3f} {result['cpu_s']:7.1f}"
            f" {result['wall_s']:7.1f}"
        )
    asked = {name: result["queries_ms"] for name, result in results.items() if result["queries_ms"]}
    print(f"\n{'query, ms (median, warm)':34}" + "".join(f"{name[:26]:>28}" for name in asked))
    for question in best["queries_ms"]:
        print(f"{question:34}" + "".join(f"{times[question]:28.1f}" for times in asked.values()))
    print(
        f"\nwith rollups, newest rows and ingest's own rows: {best['bytes_per_sample_with_rollups']} bytes per sample"
    )
    print(f"largest columns, bytes per row: {best['largest_columns_bytes_per_row']}")
    print(GOALS)


def main() -> None:
    """Run everything and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=256, help="nodes of 8 devices (256: the 2,048 GPUs of the goals)")
    parser.add_argument("--steps", type=int, default=720, help="scrapes")
    parser.add_argument("--interval", type=float, default=5.0, help="seconds between scrapes")
    parser.add_argument("--no-peers", action="store_true", help="leave VictoriaMetrics and Prometheus out")
    parser.add_argument("--folder", type=Path, help="where to work (default: a temporary folder)")
    parser.add_argument("--packages", type=Path, default=ROOT / ".bench/packages", help="unpacked Debian packages")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    shape = Shape(arguments.nodes, arguments.steps, arguments.interval)
    start_ms = time.time_ns() // 1_000_000 - round(shape.steps * shape.interval_seconds * 1000) - 20_000
    end_ms = time_ms(shape, shape.steps - 1, start_ms)
    print(f"{machine()}\n{shape.nodes * 8} devices x {len(METRICS)} values x {shape.steps} scrapes every"
          f" {shape.interval_seconds:g} s = {shape.samples / 1e6:.1f} M samples")  # fmt: skip
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        size = load(folder / "bus", shape, start_ms)
        messages = shape.nodes * shape.steps
        print(f"on the bus: {messages} messages, {size / messages:.0f} bytes each,"
              f" {size / shape.samples:.2f} bytes per sample")  # fmt: skip
        runs = {
            "Flightwatch, catching up": (150_000, True),
            "Flightwatch, without rollups": (150_000, False),
            "Flightwatch, 10,000 rows an insert": (10_000, True),
        }
        for label, (rows, rollups) in runs.items():
            work = folder / "run"
            work.mkdir()
            results[label] = ours(folder / "bus", work, rows, rollups, end_ms)
            if results[label]["samples"] != shape.samples:
                raise SystemExit(f"{label}: {results[label]['samples']} samples stored of {shape.samples}")
            print(label, results[label], flush=True)
        if not arguments.no_peers:
            binaries = fetch_packages(arguments.packages)
            data = generate(shape)
            for label in ("VictoriaMetrics", "Prometheus"):
                results[label] = measure(label, binaries, folder / label, shape, data, start_ms)
                print(label, results[label], flush=True)
    report(results)
    if arguments.json:
        arguments.json.write_text(json.dumps({"machine": machine(), "results": results}, indent=1))


if __name__ == "__main__":
    main()
