-- min_program: 0.1.0
-- One-minute rollups (mergeable states only: parts written twice or late merge to the same answer) and the
-- newest row of every target. Every target has its own deduplication window: a replayed block changes neither.
-- A counter's minute is its first and last value: deltas across minutes are computed when read. These states cost
-- the most of an insert, so only counters that are watched over weeks have them; the others are in the raw rows.
;
CREATE TABLE IF NOT EXISTS @table(device_1m)@ (
  m DateTime('UTC') CODEC(DoubleDelta, ZSTD(1)),
  cluster LowCardinality(String),
  node LowCardinality(String),
  device UInt16,
  n SimpleAggregateFunction(sum, UInt64),
  @gauges(device_samples, temp_c, mem_temp_c, hotspot_c, power_w, voltage_mv, sm_clock_mhz, util_pct, tensor_active_ratio, mem_used_bytes, fan_pct)@,
  @counters(device_samples, energy_j_total, ecc_corrected_total, ecc_uncorrected_total, throttle_thermal_us_total, throttle_power_us_total, pcie_replay_total, link_errors_total, link_tx_bytes_total)@,
  throttle_reasons_any SimpleAggregateFunction(groupBitOr, UInt64)
)
ENGINE = @aggregating@
PARTITION BY toYYYYMMDD(m)
ORDER BY (cluster, toStartOfHour(m), node, device, m)
@ttl(device_1m)@
@settings@
;
CREATE MATERIALIZED VIEW IF NOT EXISTS @view(mv_device_1m)@ TO @local(device_1m)@ AS
SELECT toStartOfMinute(ts) AS m, cluster, node, device, count() AS n,
  @gauge_states(device_samples, temp_c, mem_temp_c, hotspot_c, power_w, voltage_mv, sm_clock_mhz, util_pct, tensor_active_ratio, mem_used_bytes, fan_pct)@,
  @counter_states(device_samples, energy_j_total, ecc_corrected_total, ecc_uncorrected_total, throttle_thermal_us_total, throttle_power_us_total, pcie_replay_total, link_errors_total, link_tx_bytes_total)@,
  groupBitOr(ifNull(throttle_reasons, 0)) AS throttle_reasons_any
FROM @local(device_samples)@
GROUP BY m, cluster, node, device
;
CREATE TABLE IF NOT EXISTS @table(node_1m)@ (
  m DateTime('UTC') CODEC(DoubleDelta, ZSTD(1)),
  cluster LowCardinality(String),
  node LowCardinality(String),
  n SimpleAggregateFunction(sum, UInt64),
  @gauges(node_samples, cpu_pct, load1, mem_used_bytes, psu_w, inlet_c, outlet_c, coolant_c, coolant_lpm, fan_rpm_min, io_queue_depth, io_read_ms, io_write_ms, fs_read_ms, fs_write_ms, clock_offset_us)@,
  @counters(node_samples, edac_corrected_total, edac_uncorrected_total)@
)
ENGINE = @aggregating@
PARTITION BY toYYYYMMDD(m)
ORDER BY (cluster, toStartOfHour(m), node, m)
@ttl(node_1m)@
@settings@
;
CREATE MATERIALIZED VIEW IF NOT EXISTS @view(mv_node_1m)@ TO @local(node_1m)@ AS
SELECT toStartOfMinute(ts) AS m, cluster, node, count() AS n,
  @gauge_states(node_samples, cpu_pct, load1, mem_used_bytes, psu_w, inlet_c, outlet_c, coolant_c, coolant_lpm, fan_rpm_min, io_queue_depth, io_read_ms, io_write_ms, fs_read_ms, fs_write_ms, clock_offset_us)@,
  @counter_states(node_samples, edac_corrected_total, edac_uncorrected_total)@
FROM @local(node_samples)@
GROUP BY m, cluster, node
;
CREATE TABLE IF NOT EXISTS @table(port_1m)@ (
  m DateTime('UTC') CODEC(DoubleDelta, ZSTD(1)),
  cluster LowCardinality(String),
  node LowCardinality(String),
  hca LowCardinality(String), port UInt16,
  n SimpleAggregateFunction(sum, UInt64),
  @gauges(port_samples, rate_gbps, optics_rx_power_dbm, optics_tx_power_dbm, optics_temp_c)@,
  @counters(port_samples, rx_bytes_total, tx_bytes_total, symbol_errors_total, link_downed_total, rcv_errors_total, xmit_discards_total, xmit_wait_total, out_of_sequence_total, cnp_handled_total, pfc_rx_pause_total, fec_uncorrected_total)@
)
ENGINE = @aggregating@
PARTITION BY toYYYYMMDD(m)
ORDER BY (cluster, toStartOfHour(m), node, hca, port, m)
@ttl(port_1m)@
@settings@
;
CREATE MATERIALIZED VIEW IF NOT EXISTS @view(mv_port_1m)@ TO @local(port_1m)@ AS
SELECT toStartOfMinute(ts) AS m, cluster, node, hca, port, count() AS n,
  @gauge_states(port_samples, rate_gbps, optics_rx_power_dbm, optics_tx_power_dbm, optics_temp_c)@,
  @counter_states(port_samples, rx_bytes_total, tx_bytes_total, symbol_errors_total, link_downed_total, rcv_errors_total, xmit_discards_total, xmit_wait_total, out_of_sequence_total, cnp_handled_total, pfc_rx_pause_total, fec_uncorrected_total)@
FROM @local(port_samples)@
GROUP BY m, cluster, node, hca, port
;
CREATE TABLE IF NOT EXISTS @table(op_1m)@ (
  m DateTime('UTC') CODEC(DoubleDelta, ZSTD(1)),
  cluster LowCardinality(String),
  node LowCardinality(String),
  job LowCardinality(String),
  run LowCardinality(String),
  rank UInt32,
  level LowCardinality(String),
  kind LowCardinality(String),
  op LowCardinality(String),
  axis LowCardinality(String),
  n SimpleAggregateFunction(sum, UInt64),
  first_step SimpleAggregateFunction(min, UInt64),
  last_step SimpleAggregateFunction(max, UInt64),
  dur_us_sum SimpleAggregateFunction(sum, Float64),
  dur_sq_us2_sum SimpleAggregateFunction(sum, Float64),
  wait_us_sum SimpleAggregateFunction(sum, Float64),
  bytes_sum SimpleAggregateFunction(sum, UInt64),
  dur_us_min SimpleAggregateFunction(min, Nullable(Float32)),
  dur_us_max SimpleAggregateFunction(max, Nullable(Float32))
)
ENGINE = @aggregating@
PARTITION BY toYYYYMMDD(m)
ORDER BY (cluster, job, run, level, kind, op, axis, m, node, rank)
@ttl(op_1m)@
@settings@
;
CREATE MATERIALIZED VIEW IF NOT EXISTS @view(mv_op_1m)@ TO @local(op_1m)@ AS
SELECT toStartOfMinute(ts) AS m, cluster, node, job, run, rank, level, kind, op, ifNull(t.axis, '') AS axis,
  sum(toUInt64(count)) AS n, min(step) AS first_step, max(step + greatest(steps, 1) - 1) AS last_step,
  ifNull(sum(dur_us), 0) AS dur_us_sum, ifNull(sum(dur_sq_us2), 0) AS dur_sq_us2_sum,
  ifNull(sum(wait_us), 0) AS wait_us_sum, ifNull(sum(bytes), 0) AS bytes_sum,
  min(min_us) AS dur_us_min, max(max_us) AS dur_us_max
FROM @local(op_timings)@ AS t
GROUP BY m, cluster, node, job, run, rank, level, kind, op, axis
;
CREATE TABLE IF NOT EXISTS @table(device_latest)@ @latest_columns(device_latest)@
ENGINE = @replacing(version)@
ORDER BY (@latest_keys(device_latest)@)
@ttl(device_latest)@
@settings_rowwise@
;
CREATE MATERIALIZED VIEW IF NOT EXISTS @view(mv_device_latest)@ TO @local(device_latest)@ AS
@latest_select(device_latest)@
;
CREATE TABLE IF NOT EXISTS @table(node_latest)@ @latest_columns(node_latest)@
ENGINE = @replacing(version)@
ORDER BY (@latest_keys(node_latest)@)
@ttl(node_latest)@
@settings_rowwise@
;
CREATE MATERIALIZED VIEW IF NOT EXISTS @view(mv_node_latest)@ TO @local(node_latest)@ AS
@latest_select(node_latest)@
;
CREATE TABLE IF NOT EXISTS @table(port_latest)@ @latest_columns(port_latest)@
ENGINE = @replacing(version)@
ORDER BY (@latest_keys(port_latest)@)
@ttl(port_latest)@
@settings_rowwise@
;
CREATE MATERIALIZED VIEW IF NOT EXISTS @view(mv_port_latest)@ TO @local(port_latest)@ AS
@latest_select(port_latest)@
;
CREATE TABLE IF NOT EXISTS @table(sensor_latest)@ @latest_columns(sensor_latest)@
ENGINE = @replacing(version)@
ORDER BY (@latest_keys(sensor_latest)@)
@ttl(sensor_latest)@
@settings_rowwise@
;
CREATE MATERIALIZED VIEW IF NOT EXISTS @view(mv_sensor_latest)@ TO @local(sensor_latest)@ AS
@latest_select(sensor_latest)@
;
CREATE TABLE IF NOT EXISTS @table(storage_latest)@ @latest_columns(storage_latest)@
ENGINE = @replacing(version)@
ORDER BY (@latest_keys(storage_latest)@)
@ttl(storage_latest)@
@settings_rowwise@
;
CREATE MATERIALIZED VIEW IF NOT EXISTS @view(mv_storage_latest)@ TO @local(storage_latest)@ AS
@latest_select(storage_latest)@
;
CREATE TABLE IF NOT EXISTS @table(facility_latest)@ @latest_columns(facility_latest)@
ENGINE = @replacing(version)@
ORDER BY (@latest_keys(facility_latest)@)
@ttl(facility_latest)@
@settings_rowwise@
;
CREATE MATERIALIZED VIEW IF NOT EXISTS @view(mv_facility_latest)@ TO @local(facility_latest)@ AS
@latest_select(facility_latest)@
;
CREATE TABLE IF NOT EXISTS @table(rank_latest)@ @latest_columns(rank_latest)@
ENGINE = @replacing(version)@
ORDER BY (@latest_keys(rank_latest)@)
@ttl(rank_latest)@
@settings_rowwise@
;
CREATE MATERIALIZED VIEW IF NOT EXISTS @view(mv_rank_latest)@ TO @local(rank_latest)@ AS
@latest_select(rank_latest)@
;
CREATE TABLE IF NOT EXISTS @table(self_latest)@ @latest_columns(self_latest)@
ENGINE = @replacing(version)@
ORDER BY (@latest_keys(self_latest)@)
@ttl(self_latest)@
@settings_rowwise@
;
CREATE MATERIALIZED VIEW IF NOT EXISTS @view(mv_self_latest)@ TO @local(self_latest)@ AS
@latest_select(self_latest)@
;
