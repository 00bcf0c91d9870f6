"""The section `[bus]`: sizes and times of the bus, and how to reach Kafka."""

from __future__ import annotations

from dataclasses import dataclass

from flightwatch.core.settings import setting


@dataclass(frozen=True)
class BusSettings:
    """Settings of both backends; keys that begin with `kafka_` are read for Kafka only."""

    max_unacknowledged_bytes: int = setting(
        32_000_000, "bytes in memory that wait for the bus, per process; then publishers slow down", minimum=100_000
    )
    max_message_bytes: int = setting(5_000_000, "largest message", minimum=100_000)
    session_timeout_seconds: float = setting(
        30.0, "a reader silent for longer loses its partitions to the others", minimum=0.5
    )
    segment_bytes: int = setting(64_000_000, "size of one file of the local log", minimum=1_000_000)
    rows_partitions: int = setting(4, "partitions of each rows topic (Kafka: one for about 500 nodes)", minimum=1)
    blobs_partitions: int = setting(2, "partitions of flightwatch.blobs", minimum=1)
    commands_partitions: int = setting(8, "partitions of flightwatch.commands", minimum=1)
    findings_partitions: int = setting(1, "partitions of flightwatch.findings and flightwatch.dead", minimum=1)
    rows_retention_hours: float = setting(72.0, "how long rows stay on the bus", minimum=0.1)
    rows_retention_bytes: int = setting(4_000_000_000, "bytes kept of each rows topic", minimum=10_000_000)
    blobs_retention_hours: float = setting(24.0, "how long blobs stay on the bus", minimum=0.1)
    blobs_retention_bytes: int = setting(4_000_000_000, "bytes kept of flightwatch.blobs", minimum=10_000_000)
    commands_retention_hours: float = setting(1.0, "how long commands stay on the bus", minimum=0.25)
    findings_retention_hours: float = setting(720.0, "how long findings and dead letters stay on the bus", minimum=0.1)
    findings_retention_bytes: int = setting(
        1_000_000_000, "bytes kept of flightwatch.findings and of flightwatch.dead", minimum=10_000_000
    )
    kafka_replication_factor: int = setting(-1, "copies of each partition; -1: the broker's default", minimum=-1)
    kafka_client_id: str = setting("flightwatch", "client id shown by the broker")
    kafka_linger_ms: int = setting(5, "how long a message waits for others to share a request", minimum=0)
    kafka_delivery_timeout_ms: int = setting(120_000, "after this a message counts as failed", minimum=2_000)
    kafka_security_protocol: str = setting("PLAINTEXT", "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL")
    kafka_sasl_mechanism: str = setting(
        "", "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or AWS_MSK_IAM; empty: none"
    )
    kafka_username: str = setting("", "user of PLAIN and SCRAM")
    kafka_password: str = setting("", "password of PLAIN and SCRAM", secret=True)
    kafka_oauth_token_file: str = setting(
        "", "file with the OAUTHBEARER token; read again before each connection, so that a sidecar can renew it"
    )
    kafka_ssl_cafile: str = setting("", "certificates of trusted authorities; empty: the system's")
    kafka_ssl_certfile: str = setting("", "client certificate")
    kafka_ssl_keyfile: str = setting("", "key of the client certificate")
    kafka_ssl_key_password: str = setting("", "password of the key", secret=True)
    kafka_ssl_check_hostname: bool = setting(True, "refuse a broker whose certificate names another host")
