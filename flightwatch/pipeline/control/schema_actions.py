"""Tables of actions: what was proposed and done, who may approve it, which drains are ours."""

from __future__ import annotations

import sqlalchemy as sa

from flightwatch.pipeline.control.schema import METADATA

#: One action on one node. `revision` is the incident's when it was proposed; an approval must match it.
ACTIONS = sa.Table(
    "actions",
    METADATA,
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
    sa.Index("actions_state", "state", "created_at_ms"),
    sa.Index("actions_incident", "incident"),
    sa.Index("actions_node", "node", "applied_at_ms"),
)

#: The right to approve one action once, for some minutes, at one revision of the incident. Only a digest is kept.
APPROVALS = sa.Table(
    "approvals",
    METADATA,
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("action", sa.Text, nullable=False),
    sa.Column("revision", sa.BigInteger, nullable=False),
    sa.Column("target", sa.Text, nullable=False),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("expires_at_ms", sa.BigInteger, nullable=False),
    sa.Column("used_at_ms", sa.BigInteger),
)

#: Nodes that are out because Flightwatch took them out; only these are ever brought back.
DRAINS = sa.Table(
    "drains",
    METADATA,
    sa.Column("node", sa.Text, primary_key=True),
    sa.Column("actuator", sa.Text, nullable=False),
    sa.Column("action", sa.Text, nullable=False),
    sa.Column("placed_at_ms", sa.BigInteger, nullable=False),
)

#: Switches for everything at once ("actions_stopped").
SWITCHES = sa.Table(
    "switches",
    METADATA,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("is_on", sa.Boolean, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("at_ms", sa.BigInteger, nullable=False),
)
