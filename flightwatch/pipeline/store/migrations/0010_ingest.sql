-- min_program: 0.1.0
-- What ingest remembers with the rows: the last sequence number of every lane of every agent, one row for
-- each lane of each committed range. Not part of the public tables. A lane silent for longer than the TTL is
-- taken up again without looking for a gap.
CREATE TABLE IF NOT EXISTS @table(ingest_lanes)@ (
  ts DateTime64(3, 'UTC') CODEC(Delta(8), ZSTD(1)),
  topic LowCardinality(String),
  src_partition UInt16,
  incarnation LowCardinality(String),
  agent_id LowCardinality(String),
  spool_id LowCardinality(String),
  lane LowCardinality(String),
  seq UInt64 CODEC(Delta(8), ZSTD(1)),
  src_offset UInt64 CODEC(Delta(8), ZSTD(1)),
  blocks UInt32 CODEC(ZSTD(1))
)
ENGINE = @merge@
PARTITION BY toYYYYMMDD(ts)
ORDER BY (topic, src_partition, agent_id, spool_id, lane, src_offset)
TTL toDateTime(ts) + toIntervalDay(30)
@settings@
