"""Tables of the control database as SQLAlchemy sees them. The migrations make them."""

from __future__ import annotations

import sqlalchemy as sa

METADATA = sa.MetaData()

#: SQLite numbers rows by itself only in a column of type INTEGER.
_SEQUENCE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

#: Who may act in a role. The epoch grows with every new holder and is never reused.
LEASES = sa.Table(
    "leases",
    METADATA,
    sa.Column("role", sa.Text, primary_key=True),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("expires_at_ms", sa.BigInteger, nullable=False),
)

#: Rows on their way to the bus, written in the transaction that made them true.
OUTBOX = sa.Table(
    "outbox",
    METADATA,
    sa.Column("sequence", _SEQUENCE, primary_key=True, autoincrement=True),
    sa.Column("topic", sa.Text, nullable=False),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Column("created_at_ms", sa.BigInteger, nullable=False),
    sa.Column("published_at_ms", sa.BigInteger),
    sa.Index("outbox_waiting", "published_at_ms", "sequence"),
    sqlite_autoincrement=True,
)

#: Public keys with which agents sign their batches; a node may have several while a key is replaced.
AGENT_KEYS = sa.Table(
    "agent_keys",
    METADATA,
    sa.Column("node", sa.Text, primary_key=True),
    sa.Column("public_key", sa.Text, primary_key=True),
    sa.Column("agent_id", sa.Text),
    sa.Column("enrolled_at_ms", sa.BigInteger, nullable=False),
    sa.Column("revoked_at_ms", sa.BigInteger),
)
