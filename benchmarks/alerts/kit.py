"""An engine in a process of its own, a bus to write to, and a receiver that notes when messages arrive."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flightwatch import __version__
from flightwatch.core.protocols import Row
from flightwatch.core.vocabulary import Lane, Topic
from flightwatch.incidents.webhook_receiver import WebhookReceiver
from flightwatch.pipeline.batch import Batch, BatchHeader
from flightwatch.pipeline.bus.base import Bus
from flightwatch.pipeline.bus.connect import open_bus
from flightwatch.pipeline.bus.settings import BusSettings
from flightwatch.pipeline.bus.topics import setup_topics
from flightwatch.pipeline.codec import encode
from flightwatch.pipeline.store.client import open_store
from flightwatch.pipeline.store.migrate import migrate
from flightwatch.pipeline.store.settings import StoreSettings

CLUSTER = "bench"


class Arrivals:
    """Messages as they arrive, each with its time; repeats counted by their key."""

    def __init__(self) -> None:
        self.messages: list[tuple[float, Mapping[str, Any]]] = []
        self._changed = threading.Condition()
        self.receiver = WebhookReceiver("127.0.0.1", 0, self._take)
        self.receiver.start()

    def _take(self, message: Mapping[str, Any]) -> None:
        with self._changed:
            self.messages.append((time.monotonic(), message))
            self._changed.notify_all()

    def wait_quiet(self, quiet_seconds: float, most_seconds: float) -> None:
        """Wait until nothing arrived for a while."""
        end = time.monotonic() + most_seconds
        with self._changed:
            while time.monotonic() < end:
                before = len(self.messages)
                if not self._changed.wait(quiet_seconds) and len(self.messages) == before:
                    return


class Installation:
    """A bus, a migrated store and a configuration in a folder, and `flightwatch engine` or `up` on top of them."""

    def __init__(self, folder: Path, port: int, *, alerts: Mapping[str, float], incidents: Mapping[str, float]) -> None:
        self.folder = folder
        self.config = folder / "flightwatch.toml"
        sections: dict[str, dict[str, Any]] = {
            "flightwatch": {"cluster": CLUSTER, "data_dir": str(folder), "node": "bench-host", "log_level": "warning"},
            "outgoing": {"allowed_addresses": [f"127.0.0.1:{port}"]},
            "channels.hook": {"service": "webhook", "url": f"http://127.0.0.1:{port}/", "disclosure": "full"},
            "alerts": dict(alerts),
            "incidents": dict(incidents),
        }
        lines = []
        for name, values in sections.items():
            lines.append(f"[{name}]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        self.config.write_text("\n".join(lines) + "\n", encoding="utf-8")
        self.bus: Bus = open_bus(f"sqlite:///{folder}/bus", BusSettings())
        setup_topics(self.bus, BusSettings())
        store = open_store(f"chdb:///{folder}/store", StoreSettings())
        migrate(store)
        store.close()
        self._seq = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *command: str) -> int:
        """Start a command of flightwatch with this configuration; return its process id once it is ready."""
        arguments = [sys.executable, "-m", "flightwatch.cli", *command, "--config", str(self.config)]
        log = (self.folder / "process.log").open("ab")
        with log:
            self._process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=log, env=dict(os.environ))
        stream = self._process.stdout
        assert stream is not None
        for line in stream:
            if line.startswith(b"READY"):
                threading.Thread(target=stream.read, daemon=True).start()
                return self._process.pid
        raise SystemExit(f"the process did not start: {(self.folder / 'process.log').read_text()[-2000:]}")

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End the process."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            self._process.wait(60)

    def close(self) -> None:
        """End everything."""
        self.stop()
        self.bus.close()

    def publish(self, topic: Topic, key: str, rows: Sequence[Row]) -> float:
        """Send one batch; return when the bus acknowledged it."""
        self._seq += 1
        header = BatchHeader(
            "bench", "bench-spool", Lane.EVENTS.value, self._seq, key, CLUSTER, time.time_ns() // 1_000_000, __version__
        )
        self.bus.publish(topic.value, key, encode(Batch(header, rows))).result(60)
        return time.monotonic()
