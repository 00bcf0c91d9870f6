"""Actions, approvals, drains that were placed, switches."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "actions",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("incident", sa.Text),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("node", sa.Text, nullable=False),
        sa.Column("job", sa.Text),
        sa.Column("rank", sa.BigInteger),
        sa.Column("tenant", sa.Text),
        sa.Column("mode", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("cost", sa.Text, nullable=False),
        sa.Column("waits_for", sa.Text),
        sa.Column("actuator", sa.Text),
        sa.Column("outcome", sa.Text),
        sa.Column("undo", sa.Text),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
        sa.Column("updated_at_ms", sa.BigInteger, nullable=False),
        sa.Column("applied_at_ms", sa.BigInteger),
    )
    op.create_index("actions_state", "actions", ["state", "created_at_ms"])
    op.create_index("actions_incident", "actions", ["incident"])
    op.create_index("actions_node", "actions", ["node", "applied_at_ms"])
    op.create_table(
        "approvals",
        sa.Column("digest", sa.Text, primary_key=True),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("expires_at_ms", sa.BigInteger, nullable=False),
        sa.Column("used_at_ms", sa.BigInteger),
    )
    op.create_table(
        "drains",
        sa.Column("node", sa.Text, primary_key=True),
        sa.Column("actuator", sa.Text, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("placed_at_ms", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "switches",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("is_on", sa.Boolean, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    """Nothing goes back: restore a backup instead."""
    raise NotImplementedError("the control database migrates forward only")
