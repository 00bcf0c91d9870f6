"""From the bus into the store, every row exactly once. How, and what breaks it: docs/exactly-once.md."""
