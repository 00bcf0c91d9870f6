"""`make bench-alerts`: from an event on the bus to a message at a webhook; a storm; a kill in the middle of one."""

from __future__ import annotations

import argparse
import random
import resource
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.alerts.kit import CLUSTER, Arrivals, Installation
from flightwatch.core.protocols import Row
from flightwatch.core.vocabulary import FindingKind, FindingScope, Severity, Topic
from flightwatch.detectors.contract import Finding
from flightwatch.pipeline.control.alerts import AlertRecords
from flightwatch.pipeline.control.database import open_control
from flightwatch.pipeline.control.incident_rows import IncidentFilter
from flightwatch.pipeline.control.incidents import IncidentRecords
from flightwatch.pipeline.control.settings import ControlSettings

_BY_INGEST = ("received_at", "src_partition", "src_offset")


def now_ms() -> int:
    """Return the time of this machine, milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def event(node: str, code: str, severity: str, message: str, device: int | None = None) -> Row:
    """Return a row of `events` as a kernel log gives it, stamped now."""
    values: dict[str, Any] = {"ts": now_ms(), "cluster": CLUSTER, "node": node, "device": device,
                              "source": "kernel", "code": code, "severity": severity, "message": message,
                              "attrs": {}}  # fmt: skip
    return Row("events", values)


def background(where: Installation, rate: int, stop: threading.Event) -> None:
    """Ordinary warnings of 1,000 nodes, in batches as agents send them."""
    dice, batch = random.Random(7), 20
    due = time.monotonic()
    while not stop.is_set():
        node = f"node-{dice.randrange(1000):04d}"
        rows = [event(node, "pcie:corrected", "warning", "corrected PCIe error") for _ in range(batch)]
        where.publish(Topic.EVENTS, node, rows)
        due += batch / rate
        time.sleep(max(0.0, due - time.monotonic()))


def latency(folder: Path, probes: int, rate: int, command: Sequence[str]) -> dict[str, float]:
    """Fatal errors one a second beside the background, each on a node of its own."""
    arrivals = Arrivals()
    # Every probe is an incident of its own: the limits that calm a storm are lifted, and named in the table.
    where = Installation(
        folder, arrivals.receiver.port, alerts={"burst": 10_000}, incidents={"storm_incidents": 10_000}
    )  # fmt: skip
    acknowledged: dict[str, float] = {}
    stop = threading.Event()
    noise = threading.Thread(target=background, args=(where, rate, stop))
    try:
        where.start(*command)
        noise.start()
        time.sleep(10)
        for number in range(probes):
            node = f"probe-{number:04d}"
            row = event(node, "xid:79", "critical", "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus", 2)
            acknowledged[node] = where.publish(Topic.EVENTS, node, [row])
            time.sleep(1.0)
        arrivals.wait_quiet(8, 60)
    finally:
        stop.set()
        noise.join()
        where.close()
        arrivals.receiver.stop()
    took: dict[str, float] = {}
    for at, message in arrivals.messages:
        place = (message.get("incident") or {}).get("node")
        if place in acknowledged and place not in took:
            took[place] = at - acknowledged[place]
    values = sorted(took.values())
    return {
        "sent": probes, "received": len(values), "p50": statistics.median(values),
        "p99": values[min(len(values) - 1, round(0.99 * len(values)))], "worst": values[-1],
    }  # fmt: skip


def storm_rows(number: int, causes: int, seed: int) -> list[Row]:
    """Findings of some causes: racks that overheat, each with its 8 nodes' devices stating over and over."""
    dice = random.Random(seed)
    rows = []
    for _ in range(number):
        cause, node, device = dice.randrange(causes), dice.randrange(8), dice.randrange(8)
        name, at = f"r{cause:02d}-n{node}", now_ms()
        one = Finding(
            detector="overheat", detector_version="1", kind=FindingKind.OVERHEAT, scope=FindingScope.DEVICE,
            summary=f"{name} device {device} is 9.0 K hotter than its power, place and peers explain: its own fan.",
            score=9.0, severity=Severity.P3, detected_at=at, first_seen_at=at - 60_000, cluster=CLUSTER, node=name,
            device=device, targets=(f"{name} device {device}",), confidence=0.9, blames_hardware=True,
        )  # fmt: skip
        values = {key: value for key, value in one.to_row().items() if key not in _BY_INGEST}
        rows.append(Row("findings", values))
    return rows


def inventory(where: Installation, causes: int) -> None:
    """Tell the installation which nodes stand in which rack, one rack a cause."""
    rows = [
        Row("inventory", {"ts": now_ms(), "cluster": CLUSTER, "node": f"r{rack:02d}-n{node}", "rack": f"r{rack:02d}"})
        for rack in range(causes)
        for node in range(8)
    ]  # fmt: skip
    where.publish(Topic.EVENTS, "inventory", rows)


def storm(folder: Path, number: int, causes: int, seconds: float, *, kill: bool) -> dict[str, Any]:
    """Findings at a constant rate; `kill`: the engine is killed with -9 in the middle and starts again."""
    arrivals = Arrivals()
    where = Installation(folder, arrivals.receiver.port, alerts={}, incidents={})
    try:
        pid = where.start("up", "--no-agent", "--port", "18731")
        inventory(where, causes)
        time.sleep(20)
        began, batch = time.monotonic(), 500
        memory = 0
        killed = False
        for start in range(0, number, batch):
            where.publish(Topic.FINDINGS, f"storm-{start}", storm_rows(batch, causes, seed=start))
            memory = max(memory, resident(pid))
            if kill and not killed and start >= number // 2:
                where.stop(signal.SIGKILL)
                killed = True
                pid = where.start("up", "--no-agent", "--port", "18731")
            time.sleep(max(0.0, began + seconds * (start + batch) / number - time.monotonic()))
        published = time.monotonic() - began
        arrivals.wait_quiet(45, 180)
        in_storm = sum(1 for _, message in arrivals.messages if message["reason"] != "resolved")
    finally:
        where.close()
        arrivals.receiver.stop()
    url = f"sqlite:///{folder}/control.db"
    with closing(open_control(url, ControlSettings())) as control:
        incidents = IncidentRecords(control).page(IncidentFilter(kinds=("overheat", "cooling")), limit=1000).items
        open_ = [one for one in incidents if one.merged_into is None]
        told = AlertRecords(control).threads({one.thread or one.id for one in open_})
        deliveries = AlertRecords(control).deliveries(limit=10_000)
    return {
        "findings": number, "seconds": published, "incidents": len(open_), "untold": len(open_) - len(told),
        "messages": in_storm, "may_repeat": sum(one.may_repeat for one in deliveries), "peak_mb": memory // 1024,
    }  # fmt: skip


def resident(pid: int) -> int:
    """Return the resident memory of a process in kB."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS")), 0)


def main() -> None:
    """Measure and print both tables: event to webhook, and a storm."""
    parser = argparse.ArgumentParser(prog="benchmarks.alerts", description=__doc__)
    parser.add_argument("--probes", type=int, default=100, help="fatal errors, one a second (default: 100)")
    parser.add_argument("--rate", type=int, default=1000, help="background events a second (default: 1000)")
    parser.add_argument("--findings", type=int, default=100_000, help="findings of the storm (default: 100000)")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of the storm (default: 60)")
    parser.add_argument("--causes", type=int, default=40, help="racks that overheat in the storm (default: 40)")
    parser.add_argument("--only", choices=("latency", "storm", "kill"), help="one part (default: all)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flightwatch-bench-") as text:
        if options.only in (None, "latency"):
            print("From the bus's acknowledgement of an event (Xid 79) to the webhook; storm limits lifted:")
            print(
                "| process | background | probes | received | P50 s | P99 s | worst s |\n|---|---|---|---|---|---|---|"
            )
            for name, command in (("engine", ("engine",)), ("up", ("up", "--no-agent", "--port", "18730"))):
                folder = Path(text) / f"latency-{name}"
                folder.mkdir()
                got = latency(folder, options.probes, options.rate, command)
                print(f"| {name} | {options.rate}/s | {got['sent']} | {got['received']} | {got['p50']:.2f} |"
                      f" {got['p99']:.2f} | {got['worst']:.2f} |")  # fmt: skip
            print("\nEvery first message waits incidents.settle_seconds (0.3 s) for findings of one cause; in a storm")
            print("incidents.storm_settle_seconds (8 s). Kinds that detectors find over time are not in this table.")
        parts = [name for name in ("storm", "kill") if options.only in (None, name)]
        if parts:
            print(f"\nA storm of {options.findings:,} findings of {options.causes} racks in {options.seconds:.0f} s:")
            print("| part | published in s | incidents | not told | messages | may repeat | peak MB |")
            print("|---|---|---|---|---|---|---|")
        for name in parts:
            folder = Path(text) / name
            folder.mkdir()
            got = storm(folder, options.findings, options.causes, options.seconds, kill=name == "kill")
            print(f"| {'killed with -9' if name == 'kill' else 'plain'} | {got['seconds']:.0f} | {got['incidents']} |"
                  f" {got['untold']} | {got['messages']} | {got['may_repeat']} | {got['peak_mb']} |")  # fmt: skip
    print(f"\nCPU of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_utime:.0f} s")


if __name__ == "__main__":
    main()
