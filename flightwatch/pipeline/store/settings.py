"""The section `[store]`: retention, limits and credentials of the ClickHouse store."""

from __future__ import annotations

from dataclasses import dataclass

from flightwatch.core.settings import setting


@dataclass(frozen=True)
class StoreSettings:
    """What an operator may change about the store; everything else is pinned in code."""

    password: str = setting("", "password of the user in the clickhouse:// URL", secret=True)
    secure: bool = setting(False, "use TLS towards clickhouse://")
    ca_file: str = setting("", "file with the certificate authority of the servers; empty: the system's")
    cluster: str = setting("", "name of the ClickHouse cluster; empty: one server or the embedded engine")
    connect_timeout_seconds: int = setting(5, "longest wait for a connection", minimum=1)
    query_timeout_seconds: int = setting(120, "longest run of one internal query", minimum=1)
    threads: int = setting(2, "threads of one query", minimum=1)
    query_memory_bytes: int = setting(2_000_000_000, "memory one internal query may use", minimum=50_000_000)
    samples_days: int = setting(14, "days to keep raw telemetry", minimum=1)
    facility_days: int = setting(90, "days to keep facility readings", minimum=1)
    rollup_days: int = setting(90, "days to keep the one-minute rollups", minimum=1)
    op_detail_days: int = setting(3, "days to keep op_timings and collectives", minimum=1)
    rank_steps_days: int = setting(30, "days to keep rank_steps, process groups and dumps", minimum=1)
    rank_scalars_days: int = setting(14, "days to keep scalars of single ranks", minimum=1)
    history_days: int = setting(730, "days to keep events, findings, job scalars, runs and the audit log", minimum=1)
    dead_letters_days: int = setting(90, "days to keep dead letters and profiles' op sums", minimum=1)
    people_user: str = setting("", "SELECT-only user of the servers for people's SQL; empty: the user of the URL")
    people_password: str = setting("", "password of people_user", secret=True)
    people_timeout_seconds: int = setting(10, "longest run of one query of a person", minimum=1)
    people_memory_bytes: int = setting(1_000_000_000, "memory one query of a person may use", minimum=10_000_000)
    people_rows: int = setting(100_000, "rows one query of a person may return", minimum=1)
    people_result_bytes: int = setting(200_000_000, "bytes one query of a person may return", minimum=1_000)
    people_read_rows: int = setting(2_000_000_000, "rows one query of a person may read", minimum=1_000)
    people_threads: int = setting(2, "threads of one query of a person", minimum=1)
    people_concurrency: int = setting(4, "queries of people that may run at once", minimum=1)
    people_concurrency_each: int = setting(2, "queries of one person that may run at once", minimum=1)
