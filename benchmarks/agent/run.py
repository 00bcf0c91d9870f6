"""Cost of the node agent beside node_exporter, in one run: CPU of one core and resident memory.

python -m benchmarks.agent.run [--seconds 60] [--node-exporter PATH]

Two machines: this one, and a recorded tree of 8 GPUs, 8 RDMA ports and 200 sensors. Two buses: SQLite and
Kafka (noida-db, a test broker). The agent collects devices every 1 s and files every 5 s, signs, sends,
and reads its commands; node_exporter (Debian's prometheus-node-exporter, fetched when absent) reads the same
trees and is scraped every 1 s, another one every 5 s. CPU is user and system time of the process with its
threads between two reads of /proc/PID/stat, after a warm-up. The brokers and the scraper are not counted.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import importlib.resources
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.agent.machine import write
from flightwatch.collectors.identity import make_identity
from flightwatch.core.ed25519 import signing_key
from flightwatch.core.vocabulary import Topic
from flightwatch.pipeline.bus.connect import open_bus

WARM_UP_SECONDS = 35
ROOT = Path(__file__).parents[2]
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Subject:
    """One measured process."""

    machine: str
    name: str
    process: subprocess.Popen[bytes]
    cpu_at_start_s: float = 0.0
    cpu_s: float = 0.0
    rss_mb: float = 0.0
    peak_mb: float = 0.0

    def cpu_now_s(self) -> float:
        """User and system time so far, seconds."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def read_memory(self) -> None:
        """Read resident memory now and at its peak."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                self.rss_mb = int(line.split()[1]) / 1024
            elif line.startswith("VmHWM:"):
                self.peak_mb = int(line.split()[1]) / 1024


def free_port() -> int:
    """Return a free TCP port on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a process listens on a port."""
    for _ in range(400):
        if process.poll() is not None:
            raise SystemExit(f"a process of the benchmark ended with status {process.returncode}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            return
        time.sleep(0.05)
    raise SystemExit("a process of the benchmark does not listen")


@contextlib.contextmanager
def broker(folder: Path) -> Iterator[str]:
    """Run noida-db; yields the bus URL."""
    folder.mkdir()
    port = free_port()
    # The program itself: the script beside the interpreter does not pass SIGTERM on to it.
    binary = Path(str(importlib.resources.files("noida_db"))) / "noida-db"
    binary.chmod(0o755)
    arguments = ["start", "--data-dir", str(folder), "--only", "kafka", "--kafka-port", str(port)]
    process = subprocess.Popen([str(binary), *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(port, process)
        yield f"kafka://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def make_topics(url: str) -> None:
    """Create the topics an agent uses."""
    bus = open_bus(url)
    for topic in (Topic.EVENTS, Topic.SAMPLES, Topic.COMMANDS):
        bus.create_topic(topic.value, 4, 3_600_000, 500_000_000)
    bus.close()


def install(folder: Path) -> Path:
    """Copy the package with its bytecode, as an installation has it; returns the folder for PYTHONPATH."""
    shutil.copytree(ROOT / "flightwatch", folder / "flightwatch", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "benchmarks/agent", folder / "benchmarks/agent")
    compileall.compile_dir(str(folder), quiet=1)
    return folder


def start_agent(folder: Path, root: str, url: str, paths: list[Path]) -> subprocess.Popen[bytes]:
    """Start `flightwatch agent` over a root folder, sending to a bus, with signatures and commands."""
    folder.mkdir(parents=True)
    make_identity(str(folder / "agent"))
    key = signing_key(b"k" * 32).public_key.hex()
    (folder / "flightwatch.toml").write_text(
        f'[flightwatch]\nnode = "bench-node"\ndata_dir = "{folder}"\nbus = "{url}"\nlog_level = "warning"\n'
        f'[agent]\nroot = "{root}"\nkeep_recorded_open = true\ncontrol_keys = ["{key}"]\n'
    )
    environment = {**os.environ, "PYTHONPATH": ":".join(map(str, paths))}
    command = [sys.executable, "-m", "flightwatch.cli", "agent", "--config", str(folder / "flightwatch.toml")]
    return subprocess.Popen(command, env=environment, cwd=folder)


def announce_devices(folder: Path) -> Path:
    """Announce the eight devices as a third party's collector; returns the folder for PYTHONPATH."""
    info = folder / "eight_devices-1.dist-info"
    info.mkdir(parents=True)
    (info / "entry_points.txt").write_text(
        "[flightwatch.collectors]\neight-devices = benchmarks.agent.devices:DevicesCollector\n"
    )
    return folder


def find_node_exporter(given: str | None, folder: Path) -> str:
    """Return node_exporter's path: the argument, PATH, or unpacked from Debian's package."""
    found = given or shutil.which("prometheus-node-exporter")
    if found:
        return found
    folder.mkdir()
    subprocess.run(["apt-get", "download", "prometheus-node-exporter"], cwd=folder, check=True, capture_output=True)
    package = next(folder.glob("*.deb"))
    subprocess.run(["dpkg", "-x", str(package), str(folder / "root")], check=True)
    return str(folder / "root/usr/bin/prometheus-node-exporter")


def start_node_exporter(binary: str, root: str, port: int) -> subprocess.Popen[bytes]:
    """Start node_exporter over a root folder."""
    base = root.rstrip("/")
    process = subprocess.Popen(
        [binary, f"--path.procfs={base}/proc", f"--path.sysfs={base}/sys", f"--path.rootfs={base or '/'}",
         f"--web.listen-address=127.0.0.1:{port}", "--collector.mountstats", "--log.level=error"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_for(port, process)
    return process


def scrape(interval_by_port: dict[int, int], stop: threading.Event) -> None:
    """Read every node_exporter at its interval, in whole seconds."""
    second = 0
    while not stop.wait(1.0):
        second += 1
        for port in (port for port, interval in interval_by_port.items() if second % interval == 0):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                answer.read()


def measure(subjects: list[Subject], seconds: float) -> float:
    """Fill in the figures; returns the seconds measured."""
    time.sleep(WARM_UP_SECONDS)
    started = time.monotonic()
    for subject in subjects:
        subject.cpu_at_start_s = subject.cpu_now_s()
    time.sleep(seconds)
    elapsed = time.monotonic() - started
    for subject in subjects:
        if subject.process.poll() is not None:
            raise SystemExit(f"{subject.machine}, {subject.name} ended with status {subject.process.returncode}")
        subject.cpu_s = subject.cpu_now_s() - subject.cpu_at_start_s
        subject.read_memory()
    return elapsed


def report(subjects: list[Subject], elapsed: float) -> None:
    """Print the table."""
    print("| machine | process | CPU % of a core | RSS MB | peak MB | CPU against node_exporter, 1 s |")
    print("|---|---|---|---|---|---|")
    for subject in subjects:
        peer = next(
            other for other in subjects if other.machine == subject.machine and other.name == "node_exporter, 1 s"
        )
        percent, ratio = 100 * subject.cpu_s / elapsed, subject.cpu_s / peer.cpu_s if peer.cpu_s else float("nan")
        print(
            f"| {subject.machine} | {subject.name} | {percent:.2f} | {subject.rss_mb:.1f} | {subject.peak_mb:.1f}"
            f" | {ratio:.2f} |"
        )


def main() -> None:
    """Run everything at once, measure, print, stop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--node-exporter")
    arguments = parser.parse_args()
    subjects: list[Subject] = []
    stop = threading.Event()
    with tempfile.TemporaryDirectory() as temporary, broker(Path(temporary) / "broker") as kafka:
        folder = Path(temporary)
        write(folder / "tree")
        installed, plug_in = install(folder / "installed"), announce_devices(folder / "plug_in")
        exporter = find_node_exporter(arguments.node_exporter, folder / "exporter")
        make_topics(kafka)
        intervals: dict[int, int] = {}
        try:
            for machine, root in (("this one", "/"), ("8 GPUs, 8 ports, 200 sensors", str(folder / "tree"))):
                paths = [installed, plug_in] if root != "/" else [installed]
                for bus in ("sqlite", "kafka"):
                    name = f"{'here' if root == '/' else 'tree'}-{bus}"
                    url = kafka if bus == "kafka" else f"sqlite:///{folder}/{name}-bus"
                    if bus == "sqlite":
                        make_topics(url)
                    subjects.append(Subject(machine, f"agent, {bus} bus", start_agent(folder / name, root, url, paths)))
                for interval in (1, 5):
                    port = free_port()
                    intervals[port] = interval
                    process = start_node_exporter(exporter, root, port)
                    subjects.append(Subject(machine, f"node_exporter, {interval} s", process))
            threading.Thread(target=scrape, args=(intervals, stop), daemon=True).start()
            elapsed = measure(subjects, arguments.seconds)
        finally:
            stop.set()
            for subject in subjects:
                subject.process.send_signal(signal.SIGTERM)
            for subject in subjects:
                subject.process.wait(30)
    report(subjects, elapsed)


if __name__ == "__main__":
    main()
