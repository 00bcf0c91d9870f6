"""Tables of messages in the control database. Migration 0005 makes them."""

from __future__ import annotations

import sqlalchemy as sa

from flightwatch.pipeline.control.schema import METADATA

#: SQLite numbers rows by itself only in a column of type INTEGER.
_SEQUENCE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

#: One message to one channel. States: waiting, intent (a send has begun), sent, failed, dropped (nothing to tell any
#: more), carried (told inside the message `carried_by`).
DELIVERIES = sa.Table(
    "deliveries",
    METADATA,
    sa.Column("sequence", _SEQUENCE, primary_key=True, autoincrement=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("channel", sa.Text, nullable=False),
    sa.Column("thread", sa.Text, nullable=False),
    sa.Column("incident", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("severity", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("loud", sa.Boolean, nullable=False),
    sa.Column("detail", sa.Text, nullable=False),
    sa.Column("attempts", sa.BigInteger, nullable=False),
    sa.Column("may_repeat", sa.Boolean, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("carried_by", sa.Text),
    sa.Column("due_at_ms", sa.BigInteger, nullable=False),
    sa.Column("created_at_ms", sa.BigInteger, nullable=False),
    sa.Column("updated_at_ms", sa.BigInteger, nullable=False),
    sa.Column("http_status", sa.BigInteger),
    sa.Column("error", sa.Text),
    sa.Column("latency_ms", sa.Float),
    sa.Index("deliveries_due", "channel", "state", "due_at_ms"),
    sa.Index("deliveries_incident", "incident", "sequence"),
    sqlite_autoincrement=True,
)

#: What a channel was told about one incident (or several in one message): how to go on below the same message.
ALERT_THREADS = sa.Table(
    "alert_threads",
    METADATA,
    sa.Column("channel", sa.Text, primary_key=True),
    sa.Column("thread", sa.Text, primary_key=True),
    sa.Column("incident", sa.Text, nullable=False),
    sa.Column("severity", sa.Text, nullable=False),
    sa.Column("reference", sa.Text, nullable=False),
    sa.Column("digest", sa.Text),
    sa.Column("open", sa.Boolean, nullable=False),
    sa.Column("reminders", sa.BigInteger, nullable=False),
    sa.Column("first_at_ms", sa.BigInteger, nullable=False),
    sa.Column("last_at_ms", sa.BigInteger, nullable=False),
    sa.Index("alert_threads_open", "open", "last_at_ms"),
    sa.Index("alert_threads_digest", "channel", "digest"),
)

#: How each channel does: failures in a row, and whether the others were told that it is dead.
CHANNEL_STATES = sa.Table(
    "channel_states",
    METADATA,
    sa.Column("channel", sa.Text, primary_key=True),
    sa.Column("failures", sa.BigInteger, nullable=False),
    sa.Column("failing_since_ms", sa.BigInteger),
    sa.Column("last_error", sa.Text),
    sa.Column("last_ok_at_ms", sa.BigInteger),
    sa.Column("reported_at_ms", sa.BigInteger),
)
