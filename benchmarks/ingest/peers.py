"""VictoriaMetrics and Prometheus (Debian packages) fed the same values by remote write, and asked the same."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.ingest.telemetry import GPUS, METRICS, Array, Shape, node_name, time_ms

#: Samples in one remote-write request.
_REQUEST_SAMPLES = 60_000


def fetch_packages(folder: Path) -> Path:
    """Unpack the Debian packages beside the benchmark, not installed; return the folder of their programs."""
    binaries = folder / "root/usr/bin"
    if not (binaries / "prometheus").exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", "victoria-metrics", "prometheus"], cwd=folder, check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        for package in folder.glob("*.deb"):
            subprocess.run(["dpkg", "-x", package.name, "root"], cwd=folder, check=True)
    return binaries


def disk_bytes(path: Path) -> int:
    """Bytes that a folder takes on disk."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.stat(os.path.join(folder, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _label(name: str, value: str) -> bytes:
    pair = b"".join(
        tag + _varint(len(text)) + text for tag, text in ((b"\x0a", name.encode()), (b"\x12", value.encode()))
    )
    return b"\x0a" + _varint(len(pair)) + pair


class RemoteWrite:
    """Encodes one scrape of all nodes as Prometheus remote-write requests."""

    def __init__(self, shape: Shape) -> None:
        self._labels = {
            metric: [
                _label("__name__", metric) + _label("device", str(at % GPUS)) + _label("node", node_name(at // GPUS))
                for at in range(shape.nodes * GPUS)
            ]
            for metric in METRICS
        }

    def requests(self, data: dict[str, Array], step: int, ts_ms: int) -> list[bytes]:
        """Return snappy-compressed bodies."""
        stamp = b"\x10" + _varint(ts_ms)
        parts: list[bytes] = []
        bodies = []
        for metric in METRICS:
            raw = np.ascontiguousarray(data[metric][step], dtype="<f8").tobytes()
            for at, label in enumerate(self._labels[metric]):
                sample = b"\x09" + raw[8 * at : 8 * at + 8] + stamp
                series = label + b"\x12" + _varint(len(sample)) + sample
                parts.append(b"\x0a" + _varint(len(series)) + series)
            if len(parts) >= _REQUEST_SAMPLES:
                bodies.append(b"".join(parts))
                parts = []
        if parts:
            bodies.append(b"".join(parts))
        return [pa.compress(body, codec="snappy", asbytes=True) for body in bodies]


class Peer:
    """One time-series database under measurement."""

    def __init__(self, name: str, binaries: Path, folder: Path) -> None:
        self.name = name
        self.folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        with open(folder / "log", "wb") as log:
            self.process = subprocess.Popen(self._command(binaries, port), stdout=log, stderr=log)
        self._wait()

    def _command(self, binaries: Path, port: int) -> list[str]:
        if self.name == "Prometheus":
            (self.folder / "p.yml").write_text("global: {scrape_interval: 1h}\n")
            return [
                str(binaries / "prometheus"), f"--config.file={self.folder}/p.yml",
                f"--storage.tsdb.path={self.folder}/data", f"--web.listen-address=127.0.0.1:{port}",
                "--web.enable-remote-write-receiver", "--web.enable-admin-api", "--log.level=error",
            ]  # fmt: skip
        return [
            str(binaries / "victoria-metrics"), f"-storageDataPath={self.folder}/data", "-retentionPeriod=3",
            f"-httpListenAddr=127.0.0.1:{port}", "-loggerLevel=ERROR", "-search.disableCache",
        ]  # fmt: skip

    def _wait(self) -> None:
        path = "/-/ready" if self.name == "Prometheus" else "/health"
        for _ in range(200):
            try:
                urllib.request.urlopen(self.url + path, timeout=1).read()
                return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError(f"{self.name} did not start")

    def cpu_seconds(self) -> float:
        """User and system time of the process."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def post(self, path: str, body: bytes = b"", **headers: str) -> bytes:
        """Send one request."""
        request = urllib.request.Request(self.url + path, data=body, headers=headers, method="POST")
        with urllib.request.urlopen(request, timeout=600) as answer:
            return bytes(answer.read())

    def write(self, body: bytes) -> None:
        """Send one remote-write request."""
        self.post("/api/v1/write", body, **{
            "Content-Encoding": "snappy", "Content-Type": "application/x-protobuf",
            "X-Prometheus-Remote-Write-Version": "0.1.0",
        })  # fmt: skip

    def settle(self) -> int:
        """Let background work finish; return bytes on disk of the data alone."""
        data = self.folder / "data"
        if self.name == "Prometheus":
            answer = json.loads(self.post("/api/v1/admin/tsdb/snapshot"))
            return disk_bytes(data / "snapshots" / answer["data"]["name"])
        for path in ("/internal/force_flush", "/internal/force_merge"):
            urllib.request.urlopen(self.url + path, timeout=600).read()
        last = -1
        while (now := disk_bytes(data)) != last:
            last = now
            time.sleep(2)
        return now

    def ask(self, expression: str, end_s: float, span_s: float = 0, step_s: int = 60) -> float:
        """Return the median milliseconds of one question."""
        path, fields = "/api/v1/query", {"query": expression, "time": str(end_s), "nocache": "1"}
        if span_s:
            path = "/api/v1/query_range"
            fields = {"query": expression, "start": str(end_s - span_s), "end": str(end_s), "step": str(step_s),
                      "nocache": "1"}  # fmt: skip
        url = f"{self.url}{path}?{urllib.parse.urlencode(fields)}"
        taken = []
        for _ in range(6):
            start = time.perf_counter()
            answer = json.loads(urllib.request.urlopen(url, timeout=300).read())
            taken.append(time.perf_counter() - start)
            if not answer["data"]["result"]:
                raise RuntimeError(f"{self.name} found nothing for {expression}")
        return round(statistics.median(taken[1:]) * 1000, 1)

    def stop(self) -> None:
        """End the process and delete its data."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        shutil.rmtree(self.folder, ignore_errors=True)


def measure(label: str, binaries: Path, folder: Path, shape: Shape, data: dict[str, Array], start_ms: int
            ) -> dict[str, Any]:  # fmt: skip
    """Feed one peer and ask it."""
    peer = Peer(label, binaries, folder)
    try:
        encoder = RemoteWrite(shape)
        cpu = peer.cpu_seconds()
        started = time.monotonic()
        for step in range(shape.steps):
            for body in encoder.requests(data, step, time_ms(shape, step, start_ms)):
                peer.write(body)
        wall = time.monotonic() - started
        size = peer.settle()
        used = peer.cpu_seconds() - cpu
        end_s = time_ms(shape, shape.steps - 1, start_ms) / 1000
        span = shape.steps * shape.interval_seconds
        questions = {
            "latest of all": ("temp_c", 0.0),
            "top-k deviation now": ("topk(10, abs(temp_c - scalar(quantile(0.5, temp_c))))", 0.0),
            "heat map 1 h x 1 min": ("max_over_time(temp_c[1m])", min(3600.0, span)),
            "one node one day": ('avg_over_time(temp_c{node="n0007"}[1m])', min(86_400.0, span)),
        }
        return {
            "samples": shape.samples,
            "cpu_s": round(used, 1),
            "wall_s": round(wall, 1),
            "samples_per_cpu_s": round(shape.samples / used),
            "bytes_per_sample": round(size / shape.samples, 3),
            "queries_ms": {name: peer.ask(asked, end_s, over) for name, (asked, over) in questions.items()},
        }
    finally:
        peer.stop()
