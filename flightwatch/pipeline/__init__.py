"""From the bus to rows in SQL: bus, codec, spool, ingest, store, control database, detection loop."""
