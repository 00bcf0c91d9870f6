"""Tables of detection in the control database as SQLAlchemy sees them. Migration 0003 makes them."""

from __future__ import annotations

import sqlalchemy as sa

from flightwatch.pipeline.control.schema import METADATA

_SEQUENCE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

#: What people changed about a detector. `mode` is on, shadow or off; "" leaves it to the configuration file.
DETECTOR_SETTINGS = sa.Table(
    "detector_settings",
    METADATA,
    sa.Column("detector", sa.Text, primary_key=True),
    sa.Column("mode", sa.Text, nullable=False),
    sa.Column("thresholds", sa.Text, nullable=False),
    sa.Column("changed_at_ms", sa.BigInteger, nullable=False),
    sa.Column("changed_by", sa.Text, nullable=False),
)

#: Evidence and profiles that findings asked agents for: what the limits count.
DETECTOR_REQUESTS = sa.Table(
    "detector_requests",
    METADATA,
    sa.Column("sequence", _SEQUENCE, primary_key=True, autoincrement=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("cluster", sa.Text, nullable=False),
    sa.Column("job", sa.Text, nullable=False),
    sa.Column("finding", sa.Text, nullable=False),
    sa.Column("requested_at_ms", sa.BigInteger, nullable=False),
    sa.Index("detector_requests_recent", "kind", "requested_at_ms"),
    sqlite_autoincrement=True,
)

#: Simulations whose traces are to be removed: rows with this value in this column (cluster or job).
ERASURES = sa.Table(
    "erasures",
    METADATA,
    sa.Column("column", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, primary_key=True),
    sa.Column("requested_at_ms", sa.BigInteger, nullable=False),
    sa.Column("done_at_ms", sa.BigInteger),
    sa.Column("rows", sa.BigInteger),
)
