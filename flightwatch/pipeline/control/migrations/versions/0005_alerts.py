"""Deliveries, threads and states of channels."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "deliveries",
        sa.Column(
            "sequence", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True
        ),
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
        sqlite_autoincrement=True,
    )
    op.create_index("deliveries_due", "deliveries", ["channel", "state", "due_at_ms"])
    op.create_index("deliveries_incident", "deliveries", ["incident", "sequence"])
    op.create_table(
        "alert_threads",
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
    )
    op.create_index("alert_threads_open", "alert_threads", ["open", "last_at_ms"])
    op.create_index("alert_threads_digest", "alert_threads", ["channel", "digest"])
    op.create_table(
        "channel_states",
        sa.Column("channel", sa.Text, primary_key=True),
        sa.Column("failures", sa.BigInteger, nullable=False),
        sa.Column("failing_since_ms", sa.BigInteger),
        sa.Column("last_error", sa.Text),
        sa.Column("last_ok_at_ms", sa.BigInteger),
        sa.Column("reported_at_ms", sa.BigInteger),
    )


def downgrade() -> None:
    """Nothing goes back: restore a backup instead."""
    raise NotImplementedError("the control database migrates forward only")
