"""The control database: state that people and machines change, in transactions, on SQLite or PostgreSQL."""

from flightwatch.pipeline.control.database import Control, open_control

__all__ = ["Control", "open_control"]
