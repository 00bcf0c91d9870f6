"""Tables of the platform about itself."""

from __future__ import annotations

from flightwatch.core.catalogue.model import Table, col, ingested
from flightwatch.core.vocabulary import Lane

SELF_METRICS = ingested(
    "self_metrics",
    "one figure of a Flightwatch process about itself (agent heartbeat included)",
    Lane.SAMPLES,
    14,
    col("component", "word", "", "agent, ingest, detect, engine, console"),
    col("instance", "word", "", "which of several, for example a collector's name"),
    col("name", "word", "", "metric name with its unit"),
    col("value", "f64?", "", "value"),
)

DATA_GAPS = Table(
    "data_gaps",
    "one hole in one agent's sequence of batches, or rows dropped on purpose",
    None,
    (
        col("ts", "time", "", "when the hole was seen", "ingest"),
        col("cluster", "word", "", "cluster name", "ingest"),
        col("node", "word", "", "node whose data is missing", "ingest"),
        col("agent_id", "word", "", "agent that numbered the batches", "ingest"),
        col("lane", "word", "", "lane", "ingest"),
        col("first_seq", "u64?", "", "first missing batch", "ingest"),
        col("last_seq", "u64?", "", "last missing batch", "ingest"),
        col("batches", "u64?", "", "batches missing; NULL when their number cannot be known", "ingest"),
        col("reason", "text", "", "evicted, lost, retention, new spool, ...", "ingest"),
        col("src_partition", "u16", "", "bus partition where it showed", "ingest"),
        col("src_offset", "u64", "", "bus offset where it showed", "ingest"),
    ),
    730,
)

DEAD_LETTERS = Table(
    "dead_letters",
    "one message or row that could not be stored",
    None,
    (
        col("ts", "time", "", "when it was put aside", "ingest"),
        col("cluster", "word", "", "cluster name", "ingest"),
        col("id", "text", "", "deterministic: topic, partition, offset, index", "ingest"),
        col("node", "word?", "", "node it claims to come from", "ingest"),
        col("topic", "word", "", "bus topic", "ingest"),
        col("partition", "u16", "", "bus partition", "ingest"),
        col("offset", "u64", "", "bus offset", "ingest"),
        col("index", "i32", "", "row in the message, -1 for the whole message", "ingest"),
        col("reason", "text", "", "one sentence", "ingest"),
        col("payload", "text", "", "the message or row, base64 where it is not text", "ingest"),
        col("replayed", "bool", "", "it has been replayed", "ingest"),
    ),
    90,
)

SCHEMA_VERSIONS = Table(
    "schema_versions",
    "one applied migration",
    None,
    (
        col("version", "u32", "", "number of the migration", "store"),
        col("name", "text", "", "file name", "store"),
        col("checksum", "text", "", "sha256 of its rendered text", "store"),
        col("min_program", "text", "", "oldest program version that may use the store after it", "store"),
        col("applied_at", "time", "", "when", "store"),
    ),
    None,
)

TABLES = (SELF_METRICS, DATA_GAPS, DEAD_LETTERS, SCHEMA_VERSIONS)
