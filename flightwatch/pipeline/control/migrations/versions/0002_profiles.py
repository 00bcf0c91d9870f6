"""Profiler requests, their ranks, and the ranks that agents say can be profiled."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "profile_requests",
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
    op.create_table(
        "profile_ranks",
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
    op.create_table(
        "profile_targets",
        sa.Column("node", sa.Text, primary_key=True),
        sa.Column("job", sa.Text, primary_key=True),
        sa.Column("run", sa.Text, primary_key=True),
        sa.Column("rank", sa.BigInteger, primary_key=True),
        sa.Column("problem", sa.Text, nullable=False),
        sa.Column("seen_at_ms", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    """Nothing goes back: restore a backup instead."""
    raise NotImplementedError("the control database migrates forward only")
