"""Tables of incidents in the control database. Migration 0004 makes them."""

from __future__ import annotations

import sqlalchemy as sa

from flightwatch.pipeline.control.schema import METADATA

#: SQLite numbers rows by itself only in a column of type INTEGER.
_SEQUENCE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

#: One row an incident. `revision` grows with every change that people see.
INCIDENTS = sa.Table(
    "incidents",
    METADATA,
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
    sa.Index("incidents_newest", "opened_at_ms", "id"),
    sa.Index("incidents_state", "state", "opened_at_ms"),
)

#: The newest statement of each finding and the incident it is in. `opens` is the id of the incident that this
#: finding alone would open: every id an incident ever had is found again through it. Findings with the same `pin`
#: were put together by a person; `fast` ones were made from events and not confirmed by the detection loop yet.
INCIDENT_FINDINGS = sa.Table(
    "incident_findings",
    METADATA,
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
    sa.Index("incident_findings_incident", "incident", "detected_at_ms"),
    sa.Index("incident_findings_opens", "opens"),
)

#: What happened to incidents, in order. The engine follows people's entries here.
INCIDENT_HISTORY = sa.Table(
    "incident_history",
    METADATA,
    sa.Column("sequence", _SEQUENCE, primary_key=True, autoincrement=True),
    sa.Column("incident", sa.Text, nullable=False),
    sa.Column("revision", sa.BigInteger, nullable=False),
    sa.Column("at_ms", sa.BigInteger, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("event", sa.Text, nullable=False),
    sa.Column("detail", sa.Text, nullable=False),
    sa.Index("incident_history_incident", "incident", "sequence"),
    sqlite_autoincrement=True,
)

INCIDENT_NOTES = sa.Table(
    "incident_notes",
    METADATA,
    sa.Column("sequence", _SEQUENCE, primary_key=True, autoincrement=True),
    sa.Column("incident", sa.Text, nullable=False),
    sa.Column("at_ms", sa.BigInteger, nullable=False),
    sa.Column("author", sa.Text, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Index("incident_notes_incident", "incident", "sequence"),
    sqlite_autoincrement=True,
)

#: Silences, and maintenance windows (which also keep actions away and may begin later).
SILENCES = sa.Table(
    "silences",
    METADATA,
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
    sa.Index("silences_expiry", "expires_at_ms"),
)

#: Messages that are due: written with the change they tell, handled once by the alerts.
ALERT_NEEDS = sa.Table(
    "alert_needs",
    METADATA,
    sa.Column("sequence", _SEQUENCE, primary_key=True, autoincrement=True),
    sa.Column("incident", sa.Text, nullable=False),
    sa.Column("revision", sa.BigInteger, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("detail", sa.Text, nullable=False),
    sa.Column("at_ms", sa.BigInteger, nullable=False),
    sa.Column("handled_at_ms", sa.BigInteger),
    sa.Index("alert_needs_waiting", "handled_at_ms", "sequence"),
    sqlite_autoincrement=True,
)

#: How far the engine has read the bus, committed with what it made of it. An incarnation names one log.
ENGINE_POSITIONS = sa.Table(
    "engine_positions",
    METADATA,
    sa.Column("topic", sa.Text, primary_key=True),
    sa.Column("partition", sa.BigInteger, primary_key=True),
    sa.Column("incarnation", sa.Text, nullable=False),
    sa.Column("offset", sa.BigInteger, nullable=False),
)

#: Entries of the outbox that are being inserted under one token: a repeat inserts exactly the same block.
PROJECTION_INTENTS = sa.Table(
    "projection_intents",
    METADATA,
    sa.Column("topic", sa.Text, primary_key=True),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("sequences", sa.Text, nullable=False),
)

#: Evidence still to be pinned: rows around `at_ms`, in two parts, because what follows comes later.
EVIDENCE_PINS = sa.Table(
    "evidence_pins",
    METADATA,
    sa.Column("incident", sa.Text, primary_key=True),
    sa.Column("moment", sa.Text, primary_key=True),
    sa.Column("part", sa.BigInteger, primary_key=True),
    sa.Column("at_ms", sa.BigInteger, nullable=False),
    sa.Column("due_ms", sa.BigInteger, nullable=False),
    sa.Column("done_at_ms", sa.BigInteger),
    sa.Index("evidence_pins_due", "done_at_ms", "due_ms"),
)
