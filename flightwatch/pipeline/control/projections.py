"""Projections: rows of the control database's truth on their way into the store's tables, each exactly once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import sqlalchemy as sa

from flightwatch.core.catalogue import TABLES
from flightwatch.core.errors import BadRecord
from flightwatch.pipeline.control.database import Control
from flightwatch.pipeline.control.leases import Lease
from flightwatch.pipeline.control.schema import OUTBOX
from flightwatch.pipeline.control.schema_incidents import PROJECTION_INTENTS
from flightwatch.pipeline.store.client import Store
from flightwatch.pipeline.store.schema import arrow_schema

PREFIX = "projection:"
#: Bits of a version below the epoch.
SEQUENCE_BITS = 40
_DAY_MS = 86_400_000


def project(control: Control, connection: sa.Connection, table: str, key: str, row: Mapping[str, Any]) -> int:
    """Queue a row of a projection table in the open transaction; return its sequence number.

    Parameters
    ----------
    table: `incidents`, `incident_notes`, `alert_deliveries`, `actions`, `silences`, `audit_log` or `incident_evidence`.
    row: columns of the table, times in milliseconds. `version` is set by the writer, and `cluster` where it is absent.
    """
    return control.outbox.append(connection, PREFIX + table, key, row)


def project_many(
    control: Control, connection: sa.Connection, table: str, entries: Sequence[tuple[str, Mapping[str, Any]]]
) -> None:
    """Queue many rows, as (key, row), as `project` does one."""
    if entries:
        now_ms = control.now_ms(connection)
        connection.execute(
            sa.insert(OUTBOX),
            [{"topic": PREFIX + table, "key": key, "payload": json.dumps(row, ensure_ascii=False, allow_nan=False),
              "created_at_ms": now_ms} for key, row in entries],
        )  # fmt: skip


class ProjectionWriter:
    """Moves waiting rows into the store. Only the holder of the lease it is given writes.

    What one insert holds is written down before it: a writer that died in between is followed by one that
    repeats the identical block under the same token, which the store drops.

    Parameters
    ----------
    cluster: name for rows that name none. rows: most rows of one insert.
    """

    def __init__(self, control: Control, store: Store, cluster: str, rows: int = 2_000) -> None:
        self._control, self._store, self._cluster, self._rows = control, store, cluster, rows
        #: Rows that the store refused for good since this writer began.
        self.refused = 0

    def step(self, lease: Lease) -> int:
        """Write what waits, one insert a table; return how many rows.

        Raises
        ------
        TransientError: the store or the database is away; nothing is lost.
        StaleGeneration: the lease is over; the next holder writes the rest.
        """
        return sum(self._write(lease, topic) for topic in self._waiting_topics())

    def sweep(self, days: float = 1.0) -> None:
        """Forget rows that were written more than some days ago."""
        with self._control.reading() as connection:
            now_ms = self._control.now_ms(connection)
        self._control.outbox.forget(now_ms - round(days * _DAY_MS))

    def _waiting_topics(self) -> list[str]:
        waiting = sa.select(OUTBOX.c.topic).where(OUTBOX.c.published_at_ms.is_(None), OUTBOX.c.topic.like(PREFIX + "%"))
        with self._control.reading() as connection:
            found = connection.execute(waiting.distinct()).scalars().all()
        return sorted(str(topic) for topic in found)

    def _write(self, lease: Lease, topic: str) -> int:
        epoch, sequences = self._intend(lease, topic)
        if not sequences:
            return 0
        with self._control.reading() as connection:
            rows = connection.execute(
                sa.select(OUTBOX.c.sequence, OUTBOX.c.payload)
                .where(OUTBOX.c.sequence.in_(sequences))
                .order_by(OUTBOX.c.sequence)
            ).all()
        table = topic.removeprefix(PREFIX)
        entries = [(int(row.sequence), json.loads(row.payload)) for row in rows]
        self._insert(table, [(version_of(epoch, sequence), row) for sequence, row in entries])
        with self._control.leases.guarded(lease) as connection:
            connection.execute(
                sa.update(OUTBOX)
                .where(OUTBOX.c.sequence.in_(sequences))
                .values(published_at_ms=self._control.now_ms(connection))
            )
            connection.execute(sa.delete(PROJECTION_INTENTS).where(PROJECTION_INTENTS.c.topic == topic))
        return len(entries)

    def _intend(self, lease: Lease, topic: str) -> tuple[int, list[int]]:
        """Return the epoch and the entries of the next insert: those of an unfinished one first."""
        with self._control.leases.guarded(lease) as connection:
            row = connection.execute(
                sa.select(PROJECTION_INTENTS).where(PROJECTION_INTENTS.c.topic == topic)
            ).one_or_none()
            if row is not None:
                return int(row.epoch), json.loads(row.sequences)
            waiting = sa.select(OUTBOX.c.sequence).where(OUTBOX.c.topic == topic, OUTBOX.c.published_at_ms.is_(None))
            sequences = list(connection.execute(waiting.order_by(OUTBOX.c.sequence).limit(self._rows)).scalars())
            if sequences:
                connection.execute(
                    sa.insert(PROJECTION_INTENTS).values(
                        topic=topic, epoch=lease.epoch, sequences=json.dumps(sequences)
                    )
                )
            return lease.epoch, sequences

    def _insert(self, table: str, rows: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
        """Insert rows as one block; where the store refuses the block, one by one, leaving out the bad ones."""
        token = "projection:" + hashlib.sha256(f"{table}|{[version for version, _ in rows]}".encode()).hexdigest()[:32]
        if table not in TABLES:
            self.refused += len(rows)
            return
        try:
            self._store.insert_block(table, self._block(table, rows), token)
        except BadRecord:
            if len(rows) == 1:
                self.refused += 1
                return
            for version, row in rows:
                self._insert(table, [(version, row)])

    def _block(self, table: str, rows: Iterable[tuple[int, Mapping[str, Any]]]) -> pa.Table:
        schema = arrow_schema(table)
        cells = [_filled(row, schema, self._cluster) | {"version": version} for version, row in rows]
        try:
            return pa.Table.from_pylist(cells, schema=schema)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise BadRecord(f"a row of {table} does not fit its table: {error}") from error


def version_of(epoch: int, sequence: int) -> int:
    """Return the version of a projected row: what is written later is greater, whoever writes it."""
    return (epoch << SEQUENCE_BITS) | sequence


_EMPTY: tuple[tuple[Callable[[pa.DataType], bool], Any], ...] = (
    (pa.types.is_string, ""), (pa.types.is_boolean, False), (pa.types.is_list, []), (pa.types.is_map, []),
)  # fmt: skip


def _filled(row: Mapping[str, Any], schema: pa.Schema, cluster: str) -> dict[str, Any]:
    """Return the cells of a row; a map as pairs; what must not be NULL and is absent is empty."""
    cells = {}
    for field in schema:
        value = row.get(field.name)
        if isinstance(value, Mapping):
            value = list(value.items())
        if value is None and not field.nullable:
            value = next((empty for fits, empty in _EMPTY if fits(field.type)), None)
        cells[field.name] = value
    cells["cluster"] = cells.get("cluster") or cluster
    return cells
