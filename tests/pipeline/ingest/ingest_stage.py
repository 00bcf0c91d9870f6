"""A bus, a store and senders for the tests of ingest; other processes reach the store over a socket."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import pyarrow as pa

from flightwatch.core.errors import FlightwatchError, TransientError
from flightwatch.core.protocols import Row
from flightwatch.core.vocabulary import DATABASE, Topic
from flightwatch.pipeline.batch import Batch, BatchHeader
from flightwatch.pipeline.bus.base import Bus
from flightwatch.pipeline.codec import encode
from flightwatch.pipeline.ingest.consumer import Consumer
from flightwatch.pipeline.ingest.runner import BULK_TOPICS, FAST_TOPICS, Ingest
from flightwatch.pipeline.ingest.settings import GROUP, IngestSettings, fast_group
from flightwatch.pipeline.store.client import Store

SAMPLES = Topic.SAMPLES.value
EVENTS = Topic.EVENTS.value
DEAD = Topic.DEAD.value
TABLES = ("device_samples", "node_samples", "events", "data_gaps", "dead_letters", "ingest_lanes", "device_1m",
          "node_1m", "findings", "self_metrics", "device_latest")  # fmt: skip


def setup_topics(bus: Bus, partitions: int = 2) -> None:
    for topic in Topic:
        bus.create_topic(topic.value, partitions, None, None)


def empty(store: Store) -> None:
    """Forget all rows of earlier tests, deduplication windows included."""
    for table in TABLES:
        store.command(f"TRUNCATE TABLE {DATABASE}.{table}")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Agent:
    """Numbers, encodes and publishes batches of one node, and remembers what must arrive."""

    def __init__(self, bus: Bus, node: str = "n1", agent_id: str = "", spool_id: str = "s1") -> None:
        self.bus = bus
        self.node = node
        self.agent_id = agent_id or f"agent-of-{node}"
        self.spool_id = spool_id
        self.seq: dict[str, int] = {}
        self.sent: list[dict[str, Any]] = []

    def batch(self, rows: Sequence[Row], lane: str = "samples", sign: Callable[[bytes], bytes] | None = None) -> bytes:
        self.seq[lane] = self.seq.get(lane, 0) + 1
        header = BatchHeader(self.agent_id, self.spool_id, lane, self.seq[lane], self.node, "c1", now_ms(), "0.1.0")
        return encode(Batch(header, rows), sign)

    def publish(self, message: bytes, topic: str = SAMPLES) -> None:
        self.bus.publish(topic, self.node, message).result(120)

    def send(self, rows: Sequence[Row], topic: str = SAMPLES) -> bytes:
        message = self.batch(rows, topic.rpartition(".")[2])
        self.publish(message, topic)
        self.sent += [{"node": self.node, **row.values} for row in rows if row.table == "device_samples"]
        return message

    def samples(self, number: int, devices: int = 2, at_ms: int | None = None) -> list[Row]:
        """Rows whose content follows from node and number."""
        ts = now_ms() if at_ms is None else at_ms
        return [
            Row(
                "device_samples",
                {
                    "ts": ts,
                    "device": device,
                    "vendor": "nvidia",
                    "temp_c": float(number % 90),
                    "link_rx_bytes_total": 2**63 + number * 10 + device,
                },
            )
            for device in range(devices)
        ]


def stored(store: Store, table: str = "device_samples", columns: str = "") -> list[dict[str, Any]]:
    """All rows of a table in a fixed order."""
    names = columns or "ts, node, device, vendor, temp_c, link_rx_bytes_total"
    return store.rows(f"SELECT {names} FROM {DATABASE}.{table} ORDER BY ALL")


def expected(*agents: Agent) -> list[dict[str, Any]]:
    """What `stored` must return."""
    names = ("ts", "node", "device", "vendor", "temp_c", "link_rx_bytes_total")
    rows = [{name: row.get(name) for name in names} for agent in agents for row in agent.sent]
    return sorted(rows, key=lambda row: tuple(row.values()))


class Inline(Executor):
    """Runs jobs at once, on the caller's thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


SETTINGS = IngestSettings(events_linger_seconds=0.0, samples_linger_seconds=0.0, retry_seconds=0.2)


def consumer(ingest: Ingest, topics: Sequence[str] = BULK_TOPICS, executor: Executor | None = None) -> Consumer:
    return ingest.consumer(topics, executor or Inline(), 0.0)


def drain(*consumers: Consumer, bus: Bus, seconds: float = 300.0) -> None:
    """Turn until everything on the bus is stored."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for each in consumers:
            each.turn(0.01)
        if not any(each.busy for each in consumers) and is_stored(bus, [t for each in consumers for t in each.topics]):
            return
    raise AssertionError("ingest did not catch up")


def is_stored(bus: Bus, topics: Sequence[str]) -> bool:
    """Whether the group has committed the end of every partition."""
    positions = {**bus.group_positions(GROUP), **bus.group_positions(fast_group())}
    for topic in topics:
        for partition in bus.partitions(topic):
            committed = positions.get(partition)
            if (committed.offset if committed else 0) < bus.end_offset(partition):
                return False
            if committed and committed.metadata:
                return False
    return True


def ingest_all(ingest: Ingest, bus: Bus) -> None:
    """Store everything, letters included, and leave the group."""
    bulk, fast = consumer(ingest), consumer(ingest, FAST_TOPICS)
    drain(bulk, fast, bus=bus)
    for each in (bulk, fast):
        stop = threading.Event()
        stop.set()
        each.run(stop)


class StoreServer:
    """Lets other processes use the store of this one."""

    def __init__(self, store: Store, address: Path) -> None:
        self._store = store
        self.address = str(address)
        self._listener = Listener(self.address, "AF_UNIX")
        self._pool = ThreadPoolExecutor(8)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        with connection:
            while True:
                try:
                    method, arguments = connection.recv()
                except (EOFError, OSError):
                    return
                try:
                    answer: Any = getattr(self._store, method)(*arguments)
                except FlightwatchError as error:
                    answer = error
                try:
                    connection.send(answer)
                except OSError:
                    return

    def close(self) -> None:
        self._listener.close()
        self._pool.shutdown(wait=False)


class RemoteStore:
    """The calls of Store that ingest uses, answered by a StoreServer. One connection a thread."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._local = threading.local()

    def _call(self, method: str, *arguments: Any) -> Any:
        if not hasattr(self._local, "connection"):
            self._local.connection = Client(self._address, "AF_UNIX")
        try:
            self._local.connection.send((method, arguments))
            answer = self._local.connection.recv()
        except (EOFError, OSError) as error:
            del self._local.connection
            raise TransientError("the store is away") from error
        if isinstance(answer, FlightwatchError):
            raise answer
        return answer

    def rows(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        answer: list[dict[str, Any]] = self._call("rows", sql, parameters)
        return answer

    def insert_block(self, table: str, block: pa.Table, token: str) -> None:
        self._call("insert_block", table, block, token)


def finish(process: subprocess.Popen[bytes], bus: Bus, seconds: float = 300.0) -> None:
    """Wait until everything is stored, then end the process cleanly."""
    deadline = time.monotonic() + seconds
    while not is_stored(bus, BULK_TOPICS):
        assert process.poll() is None, "the worker ended by itself"
        assert time.monotonic() < deadline, "ingest did not catch up"
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(300) == 0


def check(store: Store, *agents: Agent) -> None:
    assert stored(store) == expected(*agents)
    rollup = store.rows(f"SELECT sum(n) AS n, sum(temp_c_sum) AS temperature FROM {DATABASE}.device_1m")[0]
    assert rollup["n"] == sum(len(agent.sent) for agent in agents)
    assert rollup["temperature"] == sum(row["temp_c"] for agent in agents for row in agent.sent)
    assert store.rows(f"SELECT count() AS n FROM {DATABASE}.data_gaps")[0]["n"] == 0


class Flaky:
    """A store whose inserts can be made to fail before or after they happened."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.inserted: list[tuple[str, str, int]] = []
        self.before: Callable[[str, pa.Table], None] = lambda table, block: None
        self.after: Callable[[str, pa.Table], None] = lambda table, block: None

    def rows(self, *arguments: Any) -> list[dict[str, Any]]:
        return self._store.rows(*arguments)

    def insert_block(self, table: str, block: pa.Table, token: str) -> None:
        self.before(table, block)
        self._store.insert_block(table, block, token)
        self.inserted.append((table, token, block.num_rows))
        self.after(table, block)


class Times:
    """Raises an error the first `count` times it is called for one table."""

    def __init__(self, count: int, error: Exception, table: str = "device_samples") -> None:
        self.count, self.error, self.table = count, error, table

    def __call__(self, table: str, block: pa.Table) -> None:
        if table == self.table and self.count > 0:
            self.count -= 1
            raise self.error


def rollup_rows(store: Store) -> int:
    return int(store.rows(f"SELECT sum(n) AS n FROM {DATABASE}.device_1m")[0]["n"])


def over(bus: Bus, store: Any, settings: IngestSettings = SETTINGS, **options: Any) -> Ingest:
    return Ingest(bus, store, settings, cluster="c1", node="ingest-node", **options)


class Later(Inline):
    """Keeps jobs until told to run them: a thread that the machine does not let run."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        future: Future[Any] = Future()

        def job() -> None:
            done = super(Later, self).submit(fn, *args, **kwargs)
            if done.exception() is not None:
                future.set_exception(done.exception())
            else:
                future.set_result(done.result())

        self.waiting.append(job)
        return future

    def run_all(self) -> None:
        jobs, self.waiting = self.waiting, []
        for job in jobs:
            job()
