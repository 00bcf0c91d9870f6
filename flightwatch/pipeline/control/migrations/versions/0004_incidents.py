"""Incidents, their findings, history and notes; silences; needs of alerts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_SEQUENCE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the tables."""
    _incidents()
    _findings()
    _followers()
    _engine()


def _incidents() -> None:
    op.create_table(
        "incidents",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("cluster", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("severity", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("class_", sa.Text),
        sa.Column("scope", sa.Text, nullable=False),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("summary", sa.Text, nullable=False),
        sa.Column("node", sa.Text),
        sa.Column("device", sa.BigInteger),
        sa.Column("rank", sa.BigInteger),
        sa.Column("job", sa.Text),
        sa.Column("run", sa.Text),
        sa.Column("tenant", sa.Text),
        sa.Column("targets", sa.Text, nullable=False),
        sa.Column("opened_at_ms", sa.BigInteger, nullable=False),
        sa.Column("updated_at_ms", sa.BigInteger, nullable=False),
        sa.Column("evidence_at_ms", sa.BigInteger, nullable=False),
        sa.Column("closed_at_ms", sa.BigInteger),
        sa.Column("closed_by", sa.Text),
        sa.Column("root_finding", sa.Text),
        sa.Column("confidence", sa.Float),
        sa.Column("runner_up", sa.Text),
        sa.Column("blames_hardware", sa.Boolean, nullable=False),
        sa.Column("progress", sa.Text, nullable=False),
        sa.Column("gpus_affected", sa.BigInteger),
        sa.Column("loss_gpu_hours_per_hour", sa.Float),
        sa.Column("lost_gpu_hours", sa.Float),
        sa.Column("loss_counted_at_ms", sa.BigInteger),
        sa.Column("assignee", sa.Text),
        sa.Column("acknowledged_by", sa.Text),
        sa.Column("acknowledged_at_ms", sa.BigInteger),
        sa.Column("silenced_by", sa.Text),
        sa.Column("inhibited_by", sa.Text),
        sa.Column("reopened", sa.BigInteger, nullable=False),
        sa.Column("stale", sa.Boolean, nullable=False),
        sa.Column("findings_count", sa.BigInteger, nullable=False),
        sa.Column("merged_into", sa.Text),
        sa.Column("thread", sa.Text, nullable=False),
        sa.Column("announced_severity", sa.Text),
        sa.Column("peak_severity", sa.Text, nullable=False),
        sa.Column("projected_at_ms", sa.BigInteger),
    )
    op.create_index("incidents_newest", "incidents", ["opened_at_ms", "id"])
    op.create_index("incidents_state", "incidents", ["state", "opened_at_ms"])


def _findings() -> None:
    op.create_table(
        "incident_findings",
        sa.Column("finding", sa.Text, primary_key=True),
        sa.Column("incident", sa.Text, nullable=False),
        sa.Column("opens", sa.Text, nullable=False),
        sa.Column("detector", sa.Text, nullable=False),
        sa.Column("detector_version", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("class_", sa.Text),
        sa.Column("scope", sa.Text, nullable=False),
        sa.Column("cluster", sa.Text, nullable=False),
        sa.Column("node", sa.Text),
        sa.Column("device", sa.BigInteger),
        sa.Column("rank", sa.BigInteger),
        sa.Column("hca", sa.Text),
        sa.Column("port", sa.BigInteger),
        sa.Column("job", sa.Text),
        sa.Column("run", sa.Text),
        sa.Column("targets", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("severity", sa.Text, nullable=False),
        sa.Column("score", sa.Float, nullable=False),
        sa.Column("threshold", sa.Float),
        sa.Column("blames_hardware", sa.Boolean, nullable=False),
        sa.Column("confidence", sa.Float),
        sa.Column("expected_gain", sa.Float),
        sa.Column("summary", sa.Text, nullable=False),
        sa.Column("evidence", sa.Text, nullable=False),
        sa.Column("first_seen_at_ms", sa.BigInteger),
        sa.Column("detected_at_ms", sa.BigInteger, nullable=False),
        sa.Column("stated_at_ms", sa.BigInteger, nullable=False),
        sa.Column("cleared_at_ms", sa.BigInteger),
        sa.Column("parent", sa.Text),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("pin", sa.Text),
        sa.Column("fast", sa.Boolean, nullable=False),
    )
    op.create_index("incident_findings_incident", "incident_findings", ["incident", "detected_at_ms"])
    op.create_index("incident_findings_opens", "incident_findings", ["opens"])


def _followers() -> None:
    op.create_table(
        "incident_history",
        sa.Column("sequence", _SEQUENCE, primary_key=True, autoincrement=True),
        sa.Column("incident", sa.Text, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("event", sa.Text, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("incident_history_incident", "incident_history", ["incident", "sequence"])
    op.create_table(
        "incident_notes",
        sa.Column("sequence", _SEQUENCE, primary_key=True, autoincrement=True),
        sa.Column("incident", sa.Text, nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("author", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("incident_notes_incident", "incident_notes", ["incident", "sequence"])
    op.create_table(
        "silences",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("matchers", sa.Text, nullable=False),
        sa.Column("author", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
        sa.Column("starts_at_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_at_ms", sa.BigInteger, nullable=False),
        sa.Column("ended_at_ms", sa.BigInteger),
        sa.Column("ended_by", sa.Text),
    )
    op.create_index("silences_expiry", "silences", ["expires_at_ms"])
    op.create_table(
        "alert_needs",
        sa.Column("sequence", _SEQUENCE, primary_key=True, autoincrement=True),
        sa.Column("incident", sa.Text, nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("handled_at_ms", sa.BigInteger),
        sqlite_autoincrement=True,
    )
    op.create_index("alert_needs_waiting", "alert_needs", ["handled_at_ms", "sequence"])


def _engine() -> None:
    op.create_table(
        "engine_positions",
        sa.Column("topic", sa.Text, primary_key=True),
        sa.Column("partition", sa.BigInteger, primary_key=True),
        sa.Column("incarnation", sa.Text, nullable=False),
        sa.Column("offset", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "projection_intents",
        sa.Column("topic", sa.Text, primary_key=True),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("sequences", sa.Text, nullable=False),
    )
    op.create_table(
        "evidence_pins",
        sa.Column("incident", sa.Text, primary_key=True),
        sa.Column("moment", sa.Text, primary_key=True),
        sa.Column("part", sa.BigInteger, primary_key=True),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("due_ms", sa.BigInteger, nullable=False),
        sa.Column("done_at_ms", sa.BigInteger),
    )
    op.create_index("evidence_pins_due", "evidence_pins", ["done_at_ms", "due_ms"])


def downgrade() -> None:
    """Nothing goes back: restore a backup instead."""
    raise NotImplementedError("the control database migrates forward only")
