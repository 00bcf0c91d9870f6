"""Tables of people, tokens, sessions, audit and what people save. Migration 0007 makes them."""

from __future__ import annotations

import sqlalchemy as sa

from flightwatch.pipeline.control.schema import METADATA

#: SQLite numbers rows by itself only in a column of type INTEGER.
_SEQUENCE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

#: Who wrote what, and who was refused. The newest days; the table `audit_log` of the store keeps two years.
AUDIT = sa.Table(
    "audit_entries",
    METADATA,
    sa.Column("sequence", _SEQUENCE, primary_key=True, autoincrement=True),
    sa.Column("at_ms", sa.BigInteger, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("action", sa.Text, nullable=False),
    sa.Column("target", sa.Text, nullable=False),
    sa.Column("ok", sa.Boolean, nullable=False),
    sa.Column("detail", sa.Text, nullable=False),
    sa.Column("sql", sa.Text),
    sa.Column("rows", sa.BigInteger),
    sa.Column("elapsed_ms", sa.Float),
    sa.Column("address", sa.Text),
    sa.Index("audit_entries_at", "at_ms"),
    sqlite_autoincrement=True,
)

PEOPLE = sa.Table(
    "people",
    METADATA,
    sa.Column("subject", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("created_at_ms", sa.BigInteger, nullable=False),
    sa.Column("seen_at_ms", sa.BigInteger),
    sa.Column("disabled_at_ms", sa.BigInteger),
)

#: What a person may do; tenant "" is everywhere. `source`: "manual" by an admin, "claims" by the last login.
GRANTS = sa.Table(
    "person_grants",
    METADATA,
    sa.Column("subject", sa.Text, primary_key=True),
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("source", sa.Text, primary_key=True),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("granted_by", sa.Text, nullable=False),
    sa.Column("granted_at_ms", sa.BigInteger, nullable=False),
)

#: Accounts of a person on chat services: who pressed a button there.
ACCOUNTS = sa.Table(
    "person_accounts",
    METADATA,
    sa.Column("service", sa.Text, primary_key=True),
    sa.Column("account", sa.Text, primary_key=True),
    sa.Column("subject", sa.Text, nullable=False),
)

#: `secret_hash` is SHA-256 of 256 random bits; `grants` JSON pairs of tenant and role; `scopes` separated by spaces.
TOKENS = sa.Table(
    "api_tokens",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("secret_hash", sa.Text, nullable=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("grants", sa.Text, nullable=False),
    sa.Column("scopes", sa.Text, nullable=False),
    sa.Column("created_at_ms", sa.BigInteger, nullable=False),
    sa.Column("expires_at_ms", sa.BigInteger, nullable=False),
    sa.Column("used_at_ms", sa.BigInteger),
    sa.Column("revoked_at_ms", sa.BigInteger),
)

#: Browser sessions. Ids are stored hashed: a copy of the database opens none.
SESSIONS = sa.Table(
    "sessions",
    METADATA,
    sa.Column("id_hash", sa.Text, primary_key=True),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("token_id", sa.Text),
    sa.Column("csrf", sa.Text, nullable=False),
    sa.Column("address", sa.Text, nullable=False),
    sa.Column("created_at_ms", sa.BigInteger, nullable=False),
    sa.Column("seen_at_ms", sa.BigInteger, nullable=False),
    sa.Column("expires_at_ms", sa.BigInteger, nullable=False),
)

#: Logins that are at the identity provider now.
LOGINS = sa.Table(
    "logins",
    METADATA,
    sa.Column("state_hash", sa.Text, primary_key=True),
    sa.Column("browser_hash", sa.Text, nullable=False),
    sa.Column("nonce", sa.Text, nullable=False),
    sa.Column("verifier", sa.Text, nullable=False),
    sa.Column("next_path", sa.Text, nullable=False),
    sa.Column("expires_at_ms", sa.BigInteger, nullable=False),
)

#: Answers of writes by the key their sender chose; `status` NULL while the write runs.
IDEMPOTENCY = sa.Table(
    "idempotency_keys",
    METADATA,
    sa.Column("subject", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("request_hash", sa.Text, nullable=False),
    sa.Column("status", sa.Integer),
    sa.Column("body", sa.Text),
    sa.Column("created_at_ms", sa.BigInteger, nullable=False),
)

#: Signatures and nonces that were accepted and must not be accepted again.
USED_ONCE = sa.Table(
    "used_once",
    METADATA,
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("value_hash", sa.Text, primary_key=True),
    sa.Column("expires_at_ms", sa.BigInteger, nullable=False),
)

#: Queries and views that people save; `body` is JSON.
SAVED = sa.Table(
    "saved_items",
    METADATA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("shared", sa.Boolean, nullable=False),
    sa.Column("revision", sa.BigInteger, nullable=False),
    sa.Column("created_at_ms", sa.BigInteger, nullable=False),
    sa.Column("updated_at_ms", sa.BigInteger, nullable=False),
    sa.Index("saved_items_owner", "kind", "owner"),
)
