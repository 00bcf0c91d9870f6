"""The control database: state that people and machines change, in transactions, on SQLite or PostgreSQL."""
