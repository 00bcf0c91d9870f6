"""Alembic migrations of the control database, run when it is opened."""
