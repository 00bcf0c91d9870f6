"""Leases, outbox and keys of agents."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the first tables."""
    op.create_table(
        "leases",
        sa.Column("role", sa.Text, primary_key=True),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("expires_at_ms", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "outbox",
        sa.Column(
            "sequence",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            primary_key=True,
            autoincrement=True,
        ),
        sa.Column("topic", sa.Text, nullable=False),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
        sa.Column("published_at_ms", sa.BigInteger),
        sqlite_autoincrement=True,
    )
    op.create_index("outbox_waiting", "outbox", ["published_at_ms", "sequence"])
    op.create_table(
        "agent_keys",
        sa.Column("node", sa.Text, primary_key=True),
        sa.Column("public_key", sa.Text, primary_key=True),
        sa.Column("agent_id", sa.Text),
        sa.Column("enrolled_at_ms", sa.BigInteger, nullable=False),
        sa.Column("revoked_at_ms", sa.BigInteger),
    )


def downgrade() -> None:
    """Nothing goes back: restore a backup instead."""
    raise NotImplementedError("the control database migrates forward only")
