"""Settings of detectors that people change at run time, what detectors asked agents for, and simulations to erase."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_SEQUENCE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "detector_settings",
        sa.Column("detector", sa.Text, primary_key=True),
        sa.Column("mode", sa.Text, nullable=False),
        sa.Column("thresholds", sa.Text, nullable=False),
        sa.Column("changed_at_ms", sa.BigInteger, nullable=False),
        sa.Column("changed_by", sa.Text, nullable=False),
    )
    op.create_table(
        "detector_requests",
        sa.Column("sequence", _SEQUENCE, primary_key=True, autoincrement=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("cluster", sa.Text, nullable=False),
        sa.Column("job", sa.Text, nullable=False),
        sa.Column("finding", sa.Text, nullable=False),
        sa.Column("requested_at_ms", sa.BigInteger, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "erasures",
        sa.Column("column", sa.Text, primary_key=True),
        sa.Column("value", sa.Text, primary_key=True),
        sa.Column("requested_at_ms", sa.BigInteger, nullable=False),
        sa.Column("done_at_ms", sa.BigInteger),
        sa.Column("rows", sa.BigInteger),
    )
    op.create_index("detector_requests_recent", "detector_requests", ["kind", "requested_at_ms"])


def downgrade() -> None:
    """Nothing goes back: restore a backup instead."""
    raise NotImplementedError("the control database migrates forward only")
