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

#: Profiler requests. `version` grows with every change of the request or a rank; the projection follows it.
PROFILE_REQUESTS = sa.Table(
    "profile_requests",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("job", sa.Text, nullable=False),
    sa.Column("run", sa.Text, nullable=False),
    sa.Column("steps", sa.BigInteger, nullable=False),
    sa.Column("start_step", sa.BigInteger, nullable=False),
    sa.Column("options", sa.Text, nullable=False),
    sa.Column("max_bytes", sa.BigInteger, nullable=False),
    sa.Column("max_seconds", sa.BigInteger, nullable=False),
    sa.Column("requested_by", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("created_at_ms", sa.BigInteger, nullable=False),
    sa.Column("updated_at_ms", sa.BigInteger, nullable=False),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("published_version", sa.BigInteger, nullable=False),
)

#: One rank of a request: where it runs, how far it is, where its trace lies.
PROFILE_RANKS = sa.Table(
    "profile_ranks",
    METADATA,
    sa.Column("request", sa.Text, primary_key=True),
    sa.Column("rank", sa.BigInteger, primary_key=True),
    sa.Column("node", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("first_step", sa.BigInteger),
    sa.Column("artifact", sa.Text),
    sa.Column("sha256", sa.Text),
    sa.Column("bytes", sa.BigInteger),
    sa.Column("updated_at_ms", sa.BigInteger, nullable=False),
)

#: Ranks that agents see, and why one cannot be profiled ("" when it can).
PROFILE_TARGETS = sa.Table(
    "profile_targets",
    METADATA,
    sa.Column("node", sa.Text, primary_key=True),
    sa.Column("job", sa.Text, primary_key=True),
    sa.Column("run", sa.Text, primary_key=True),
    sa.Column("rank", sa.BigInteger, primary_key=True),
    sa.Column("problem", sa.Text, nullable=False),
    sa.Column("seen_at_ms", sa.BigInteger, nullable=False),
)
