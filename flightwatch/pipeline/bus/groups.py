"""Topics, consumer groups and committed positions of a local bus, in one SQLite file (`bus.db`).

A partition changes hands in two steps: the group decides who is wanted, the owner lets go at its
next poll (or is expelled when its session ended), and only then does the next owner get it, under a
new generation. A commit is one transaction that checks owner and generation.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flightwatch.core.clock import Clock
from flightwatch.core.errors import StaleGeneration, TransientError
from flightwatch.pipeline.bus.base import Committed, Partition
from flightwatch.pipeline.bus.folder import create_private
from flightwatch.pipeline.bus.segment import Damaged, connect, explain

_SCHEMA = """
CREATE TABLE IF NOT EXISTS topics (
    name TEXT PRIMARY KEY, partitions INTEGER NOT NULL, retention_ms INTEGER, retention_bytes INTEGER
);
CREATE TABLE IF NOT EXISTS members (
    name TEXT PRIMARY KEY, consumers TEXT NOT NULL, topics TEXT NOT NULL, seen_s REAL NOT NULL, process TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS owners (
    consumers TEXT NOT NULL, topic TEXT NOT NULL, number INTEGER NOT NULL, owner TEXT, wanted TEXT,
    generation INTEGER NOT NULL, PRIMARY KEY (consumers, topic, number)
);
CREATE TABLE IF NOT EXISTS positions (
    consumers TEXT NOT NULL, topic TEXT NOT NULL, number INTEGER NOT NULL, offset INTEGER NOT NULL,
    metadata TEXT NOT NULL, incarnation TEXT NOT NULL, PRIMARY KEY (consumers, topic, number)
);
"""


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic and its retention (None: no limit)."""

    name: str
    partitions: int
    retention_ms: int | None
    retention_bytes: int | None


@dataclass(frozen=True, slots=True)
class Holding:
    """What a member holds: partitions with their generation, and those it must let go."""

    held: Mapping[Partition, int]
    unwanted: Sequence[Partition]
    expelled: bool


class GroupTable:
    """One connection to `bus.db`. Not thread-safe.

    Parameters
    ----------
    session_seconds: a member silent for longer may be expelled by another one.
    """

    def __init__(self, folder: Path, clock: Clock, session_seconds: float) -> None:
        self.path = folder / "bus.db"
        self._clock = clock
        self._session_seconds = session_seconds
        try:
            if not self.path.exists():
                try:
                    create_private(self.path)
                except FileExistsError:
                    pass
            self._connection = connect(self.path, "FULL")
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.executescript(_SCHEMA)
        except (sqlite3.Error, OSError) as error:
            raise self._clear(error) from error
        self._version = -1

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    @contextmanager
    def _transaction(self, durable: bool = True) -> Iterator[sqlite3.Connection]:
        connection = self._connection
        try:
            # A heartbeat lost in a power cut costs nothing, so it does not wait for the disk.
            connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise self._clear(error) from error

    def _clear(self, error: sqlite3.Error | OSError) -> Exception:
        cause = explain(error, self.path)
        return TransientError(str(cause)) if isinstance(cause, Damaged) else cause

    def _rows(self, statement: str, values: Sequence[object] = ()) -> list[tuple]:  # type: ignore[type-arg]
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise self._clear(error) from error

    def changed(self) -> bool:
        """Say whether another connection wrote since the last call."""
        version = int(self._rows("PRAGMA data_version")[0][0])
        before, self._version = self._version, version
        return before != version

    def topics(self) -> list[Topic]:
        """Return all topics."""
        return [Topic(*row) for row in self._rows("SELECT name, partitions, retention_ms, retention_bytes FROM topics")]

    def put_topic(self, topic: Topic) -> Topic:
        """Create the topic or update its retention; an existing one keeps its number of partitions."""
        with self._transaction() as connection:
            connection.execute(
                "INSERT INTO topics VALUES (?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET"
                " retention_ms = excluded.retention_ms, retention_bytes = excluded.retention_bytes",
                (topic.name, topic.partitions, topic.retention_ms, topic.retention_bytes),
            )
        return next(known for known in self.topics() if known.name == topic.name)

    def join(self, consumers: str, member: str, topics: Sequence[str]) -> None:
        """Add a member and decide anew who should own what."""
        values = (member, consumers, json.dumps(sorted(topics)), self._clock.monotonic_s(), own_process())
        with self._transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO members VALUES (?, ?, ?, ?, ?)", values)
            self._expel_dead(connection, consumers, member)
            self._rebalance(connection, consumers)

    def leave(self, consumers: str, member: str) -> None:
        """Remove a member; its partitions go to the others at once."""
        with self._transaction() as connection:
            connection.execute("DELETE FROM members WHERE name = ?", (member,))
            self._rebalance(connection, consumers)

    def beat(self, consumers: str, member: str) -> None:
        """Say that the member is alive, and expel those that are not."""
        with self._transaction(durable=False) as connection:
            connection.execute("UPDATE members SET seen_s = ? WHERE name = ?", (self._clock.monotonic_s(), member))
            if self._expel_dead(connection, consumers, member):
                self._rebalance(connection, consumers)

    def holding(self, consumers: str, member: str) -> Holding:
        """Return what the member owns now."""
        rows = self._rows(
            "SELECT topic, number, generation, wanted FROM owners WHERE consumers = ? AND owner = ?",
            (consumers, member),
        )
        held = {Partition(topic, number): generation for topic, number, generation, _ in rows}
        unwanted = [Partition(topic, number) for topic, number, _, wanted in rows if wanted != member]
        expelled = not self._rows("SELECT 1 FROM members WHERE name = ?", (member,))
        return Holding(held, unwanted, expelled)

    def release(self, consumers: str, member: str, partitions: Sequence[Partition]) -> None:
        """Hand partitions over to the members that are to have them."""
        with self._transaction() as connection:
            for partition in partitions:
                connection.execute(
                    "UPDATE owners SET owner = wanted, generation = generation + 1"
                    " WHERE consumers = ? AND topic = ? AND number = ? AND owner = ?",
                    (consumers, partition.topic, partition.number, member),
                )

    def commit(
        self, consumers: str, member: str, partition: Partition, generation: int, position: Committed, incarnation: str
    ) -> None:
        """Store a position durably, or raise StaleGeneration and store nothing."""
        key = (consumers, partition.topic, partition.number)
        with self._transaction() as connection:
            row = connection.execute(
                "SELECT owner, generation FROM owners WHERE consumers = ? AND topic = ? AND number = ?", key
            ).fetchone()
            if row != (member, generation):
                raise StaleGeneration(f"{partition.topic}/{partition.number} belongs to another member of {consumers}")
            connection.execute(
                "INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?, ?, ?)",
                (*key, position.offset, position.metadata, incarnation),
            )

    def positions(self, consumers: str) -> dict[Partition, tuple[Committed, str]]:
        """Return stored positions with the incarnation of the log they are about."""
        rows = self._rows(
            "SELECT topic, number, offset, metadata, incarnation FROM positions WHERE consumers = ?", (consumers,)
        )
        return {Partition(row[0], row[1]): (Committed(row[2], row[3]), row[4]) for row in rows}

    def _expel_dead(self, connection: sqlite3.Connection, consumers: str, member: str) -> bool:
        now = self._clock.monotonic_s()
        rows = connection.execute(
            "SELECT name, seen_s, process FROM members WHERE consumers = ? AND name != ?", (consumers, member)
        ).fetchall()
        # A heartbeat from the future was written before the machine was restarted.
        dead = [
            name for name, seen, process in rows if not now - self._session_seconds <= seen <= now or is_gone(process)
        ]
        connection.executemany("DELETE FROM members WHERE name = ?", [(name,) for name in dead])
        return bool(dead)

    def _rebalance(self, connection: sqlite3.Connection, consumers: str) -> None:
        members = {
            name: set(json.loads(topics))
            for name, topics in connection.execute("SELECT name, topics FROM members WHERE consumers = ?", (consumers,))
        }
        owners = {
            Partition(topic, number): owner
            for topic, number, owner in connection.execute(
                "SELECT topic, number, owner FROM owners WHERE consumers = ?", (consumers,)
            )
        }
        counts = dict(connection.execute("SELECT name, partitions FROM topics"))
        for topic in sorted(set().union(*members.values()) & set(counts)) if members else []:
            for number in range(counts[topic]):
                owners.setdefault(Partition(topic, number), None)
        wanted = balance(owners, members)
        for partition, owner in owners.items():
            goal = wanted.get(partition)
            free = owner not in members
            connection.execute(
                "INSERT INTO owners VALUES (?, ?, ?, ?, ?, 1) ON CONFLICT DO UPDATE SET wanted = excluded.wanted,"
                " owner = excluded.owner, generation = generation + ?",
                (consumers, partition.topic, partition.number, goal if free else owner, goal, int(free)),
            )


def balance(owners: Mapping[Partition, str | None], members: Mapping[str, set[str]]) -> dict[Partition, str]:
    """Spread the partitions of each topic evenly over its members, moving as few as possible.

    Parameters
    ----------
    owners: partition to present owner (None or unknown names: free).
    members: member to the topics it wants.
    """
    wanted: dict[Partition, str] = {}
    load = dict.fromkeys(members, 0)
    for topic in sorted({partition.topic for partition in owners}):
        takers = sorted(name for name, topics in members.items() if topic in topics)
        if not takers:
            continue
        partitions = sorted(partition for partition in owners if partition.topic == topic)
        floor, extra = divmod(len(partitions), len(takers))
        share = dict.fromkeys(takers, 0)
        for partition in partitions:
            owner = owners[partition]
            if owner in share and (share[owner] < floor or (share[owner] == floor and extra > 0)):
                extra -= share[owner] == floor
                share[owner] += 1
                wanted[partition] = owner
        for partition in partitions:
            if partition not in wanted:
                taker = min(takers, key=lambda name: (share[name], load[name] + share[name], name))
                share[taker] += 1
                wanted[partition] = taker
        for name, count in share.items():
            load[name] += count
    return wanted


def own_process() -> str:
    """Name this process so that others on this machine can see whether it still runs."""
    return f"{_pid_namespace()} {os.getpid()} {_start_time(os.getpid())}"


def is_gone(process: str) -> bool:
    """Say whether the process of `own_process` has certainly ended; False when that cannot be seen from here."""
    namespace, pid, started = process.split(" ")
    if namespace != _pid_namespace() or namespace == "?":
        return False
    return _start_time(int(pid)) != started


def _pid_namespace() -> str:
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return "?"


def _start_time(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return "?"
    # A process that was killed and not yet waited for is a zombie: it will not come back.
    return "?" if fields[0] in "ZX" else fields[19]
