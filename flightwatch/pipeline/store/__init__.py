"""The store: measurements and history in ClickHouse, embedded (chdb) or on servers. All SQL stands here."""
