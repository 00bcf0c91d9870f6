"""People, tokens, sessions, idempotency keys, audit, saved queries and views."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "audit_entries",
        sa.Column(
            "sequence", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True
        ),
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
        sqlite_autoincrement=True,
    )
    op.create_index("audit_entries_at", "audit_entries", ["at_ms"])
    op.create_table(
        "people",
        sa.Column("subject", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
        sa.Column("seen_at_ms", sa.BigInteger),
        sa.Column("disabled_at_ms", sa.BigInteger),
    )
    op.create_table(
        "person_grants",
        sa.Column("subject", sa.Text, primary_key=True),
        sa.Column("tenant", sa.Text, primary_key=True),
        sa.Column("source", sa.Text, primary_key=True),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("granted_by", sa.Text, nullable=False),
        sa.Column("granted_at_ms", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "person_accounts",
        sa.Column("service", sa.Text, primary_key=True),
        sa.Column("account", sa.Text, primary_key=True),
        sa.Column("subject", sa.Text, nullable=False),
    )
    op.create_table(
        "api_tokens",
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
    op.create_table(
        "sessions",
        sa.Column("id_hash", sa.Text, primary_key=True),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("token_id", sa.Text),
        sa.Column("csrf", sa.Text, nullable=False),
        sa.Column("address", sa.Text, nullable=False),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
        sa.Column("seen_at_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_at_ms", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "logins",
        sa.Column("state_hash", sa.Text, primary_key=True),
        sa.Column("browser_hash", sa.Text, nullable=False),
        sa.Column("nonce", sa.Text, nullable=False),
        sa.Column("verifier", sa.Text, nullable=False),
        sa.Column("next_path", sa.Text, nullable=False),
        sa.Column("expires_at_ms", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("subject", sa.Text, primary_key=True),
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("request_hash", sa.Text, nullable=False),
        sa.Column("status", sa.Integer),
        sa.Column("body", sa.Text),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "used_once",
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("value_hash", sa.Text, primary_key=True),
        sa.Column("expires_at_ms", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "saved_items",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("shared", sa.Boolean, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
        sa.Column("updated_at_ms", sa.BigInteger, nullable=False),
    )
    op.create_index("saved_items_owner", "saved_items", ["kind", "owner"])


def downgrade() -> None:
    """Nothing goes back: restore a backup instead."""
    raise NotImplementedError("the control database migrates forward only")
