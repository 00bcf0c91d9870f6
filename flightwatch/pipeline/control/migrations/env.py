"""Alembic environment: runs the migrations on the connection and in the transaction of `open_control`."""

from __future__ import annotations

from alembic import context

from flightwatch.pipeline.control.schema import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA)
with context.begin_transaction():
    context.run_migrations()
