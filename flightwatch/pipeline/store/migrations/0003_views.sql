-- min_program: 0.1.0
-- Views of the public contract. Filters on cluster, node, device or job reach the tables below.
CREATE OR REPLACE VIEW @view(v_device_rates)@ AS
SELECT ts, received_at, cluster, node, device, vendor, model, uuid, serial, job, run, rank,
  @rates(device_samples, energy_j_total, ecc_corrected_total, ecc_uncorrected_total, ecc_corrected_lifetime_total, ecc_uncorrected_lifetime_total, retired_pages_total, remapped_rows_total, throttle_thermal_us_total, throttle_power_us_total, pcie_replay_total, pcie_rx_bytes_total, pcie_tx_bytes_total, link_rx_bytes_total, link_tx_bytes_total, link_errors_total)@
FROM (
  SELECT *,
    @rate_inputs(device_samples, energy_j_total, ecc_corrected_total, ecc_uncorrected_total, ecc_corrected_lifetime_total, ecc_uncorrected_lifetime_total, retired_pages_total, remapped_rows_total, throttle_thermal_us_total, throttle_power_us_total, pcie_replay_total, pcie_rx_bytes_total, pcie_tx_bytes_total, link_rx_bytes_total, link_tx_bytes_total, link_errors_total)@
  FROM @read(device_samples)@
  WINDOW earlier AS (PARTITION BY cluster, node, device ORDER BY ts ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
)
;
CREATE OR REPLACE VIEW @view(v_port_rates)@ AS
SELECT ts, received_at, cluster, node, hca, port, link_layer, state, rate_gbps,
  @rates(port_samples, rx_bytes_total, tx_bytes_total, rx_packets_total, tx_packets_total, symbol_errors_total, link_downed_total, link_recovered_total, rcv_errors_total, xmit_discards_total, xmit_wait_total, out_of_sequence_total, packet_seq_err_total, ack_timeout_total, rnr_nak_total, retransmits_total, ecn_marked_total, cnp_sent_total, cnp_handled_total, pfc_rx_pause_total, pfc_tx_pause_total, fec_corrected_total, fec_uncorrected_total)@
FROM (
  SELECT *,
    @rate_inputs(port_samples, rx_bytes_total, tx_bytes_total, rx_packets_total, tx_packets_total, symbol_errors_total, link_downed_total, link_recovered_total, rcv_errors_total, xmit_discards_total, xmit_wait_total, out_of_sequence_total, packet_seq_err_total, ack_timeout_total, rnr_nak_total, retransmits_total, ecn_marked_total, cnp_sent_total, cnp_handled_total, pfc_rx_pause_total, pfc_tx_pause_total, fec_corrected_total, fec_uncorrected_total)@
  FROM @read(port_samples)@
  WINDOW earlier AS (PARTITION BY cluster, node, hca, port ORDER BY ts ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
)
;
CREATE OR REPLACE VIEW @view(v_step_times)@ AS
SELECT cluster, job, run, step, min(t.ts) AS started_at, count() AS ranks,
  quantileExact(0.5)(t.step_us) AS step_us_median, min(t.step_us) AS step_us_min, max(t.step_us) AS step_us_max,
  argMax(t.rank, t.step_us) AS slowest_rank, argMax(t.node, t.step_us) AS slowest_node,
  quantileExact(0.5)(t.compute_us) AS compute_us_median, max(t.compute_us) AS compute_us_max,
  argMax(t.rank, t.compute_us) AS slowest_compute_rank, argMax(t.node, t.compute_us) AS slowest_compute_node,
  quantileExact(0.5)(t.comm_us) AS comm_us_median, quantileExact(0.5)(t.wait_us) AS wait_us_median,
  quantileExact(0.5)(t.data_us) AS data_us_median, max(t.data_us) AS data_us_max,
  sum(t.tokens) AS tokens, sum(t.nonfinite_count) AS nonfinite_count
FROM @read(rank_steps)@ AS t
GROUP BY cluster, job, run, step
;
CREATE OR REPLACE VIEW @view(v_incidents)@ AS
SELECT *
FROM @read(incidents)@
ORDER BY version DESC
LIMIT 1 BY cluster, id
;
CREATE OR REPLACE VIEW @view(v_open_incidents)@ AS
SELECT *, dateDiff('millisecond', opened_at, now64(3)) / 1000 AS open_s
FROM @read(v_incidents)@
WHERE state IN ('open', 'acknowledged')
;
CREATE OR REPLACE VIEW @view(v_lost_gpu_hours)@ AS
SELECT toDate(i.opened_at) AS day, i.cluster AS cluster, i.node AS node, i.device AS device, i.kind AS kind,
  i.job AS job, i.tenant AS tenant, count() AS incidents, countIf(i.state IN ('open', 'acknowledged')) AS open_incidents,
  sum(i.lost_gpu_hours) AS lost_gpu_hours, countIf(isNull(i.lost_gpu_hours)) AS incidents_without_figure
FROM @read(v_incidents)@ AS i
WHERE i.state != 'false_positive'
GROUP BY day, cluster, node, device, kind, job, tenant
;
CREATE OR REPLACE VIEW @view(v_node_history)@ AS
SELECT h.ts AS ts, h.cluster AS cluster, h.node AS node, h.device AS device, nullIf(i.serial, '') AS serial,
  h.source AS source, h.severity AS severity, h.kind AS kind, h.summary AS summary, h.id AS id
FROM (
  SELECT ts, cluster, node, device, 'event' AS source, toString(severity) AS severity, toString(code) AS kind,
    message AS summary, '' AS id
  FROM @read(events)@
  WHERE severity IN ('warning', 'error', 'critical')
  UNION ALL
  SELECT ts, cluster, node, device, 'finding', toString(severity), toString(kind), summary, id FROM @read(findings)@
  UNION ALL
  SELECT ts, cluster, assumeNotNull(node), device, 'incident', toString(severity), toString(kind), title, id
  FROM @read(v_incidents)@
  WHERE isNotNull(node)
  UNION ALL
  SELECT ts, cluster, node, NULL, 'action', '', toString(kind),
    concat(toString(mode), ' ', toString(state), ifNull(concat(': ', outcome), '')), id
  FROM @read(actions)@
  UNION ALL
  SELECT ts, cluster, node, device, 'config', '', toString(name), value, '' FROM @read(config_facts)@
  UNION ALL
  SELECT ts, cluster, node, device, 'inventory', '', ifNull(toString(model), ''),
    concat(ifNull(concat('serial ', serial), 'no serial'), ifNull(concat(', rack ', rack), ''), ifNull(concat(', slot ', slot), '')), ''
  FROM @read(inventory)@
) AS h
ASOF LEFT JOIN (
  SELECT cluster, node, ifNull(device, 65535) AS unit, ts, toString(assumeNotNull(serial)) AS serial
  FROM @read(inventory)@
  WHERE isNotNull(serial) AND isNull(hca)
) AS i ON h.cluster = i.cluster AND h.node = i.node AND ifNull(h.device, 65535) = i.unit AND h.ts >= i.ts
;
CREATE OR REPLACE VIEW @view(v_device_latest)@ AS
SELECT @latest_names(device_latest)@, dateDiff('millisecond', ts, now64(3)) / 1000 AS age_s
FROM @read(device_latest)@
ORDER BY version DESC
LIMIT 1 BY @latest_keys(device_latest)@
;
CREATE OR REPLACE VIEW @view(v_node_latest)@ AS
SELECT @latest_names(node_latest)@, dateDiff('millisecond', ts, now64(3)) / 1000 AS age_s
FROM @read(node_latest)@
ORDER BY version DESC
LIMIT 1 BY @latest_keys(node_latest)@
;
CREATE OR REPLACE VIEW @view(v_port_latest)@ AS
SELECT @latest_names(port_latest)@, dateDiff('millisecond', ts, now64(3)) / 1000 AS age_s
FROM @read(port_latest)@
ORDER BY version DESC
LIMIT 1 BY @latest_keys(port_latest)@
;
CREATE OR REPLACE VIEW @view(v_sensor_latest)@ AS
SELECT @latest_names(sensor_latest)@, dateDiff('millisecond', ts, now64(3)) / 1000 AS age_s
FROM @read(sensor_latest)@
ORDER BY version DESC
LIMIT 1 BY @latest_keys(sensor_latest)@
;
CREATE OR REPLACE VIEW @view(v_storage_latest)@ AS
SELECT @latest_names(storage_latest)@, dateDiff('millisecond', ts, now64(3)) / 1000 AS age_s
FROM @read(storage_latest)@
ORDER BY version DESC
LIMIT 1 BY @latest_keys(storage_latest)@
;
CREATE OR REPLACE VIEW @view(v_facility_latest)@ AS
SELECT @latest_names(facility_latest)@, dateDiff('millisecond', ts, now64(3)) / 1000 AS age_s
FROM @read(facility_latest)@
ORDER BY version DESC
LIMIT 1 BY @latest_keys(facility_latest)@
;
CREATE OR REPLACE VIEW @view(v_rank_latest)@ AS
SELECT @latest_names(rank_latest)@, dateDiff('millisecond', ts, now64(3)) / 1000 AS age_s
FROM @read(rank_latest)@
ORDER BY version DESC
LIMIT 1 BY @latest_keys(rank_latest)@
;
CREATE OR REPLACE VIEW @view(v_self_latest)@ AS
SELECT @latest_names(self_latest)@, dateDiff('millisecond', ts, now64(3)) / 1000 AS age_s
FROM @read(self_latest)@
ORDER BY version DESC
LIMIT 1 BY @latest_keys(self_latest)@
;
CREATE OR REPLACE VIEW @view(v_placements)@ AS
SELECT *
FROM @read(placements)@
ORDER BY ts DESC, src_offset DESC
LIMIT 1 BY cluster, job, run, rank
;
CREATE OR REPLACE VIEW @view(v_coverage)@ AS
SELECT 'job' AS scope, p.cluster AS cluster, p.job AS job, p.run AS run, '' AS node, count() AS expected,
  countIf(r.rank_at >= w.newest - INTERVAL 2 MINUTE) AS reporting, reporting / expected AS coverage_ratio,
  nullIf(max(r.rank_at), toDateTime64(0, 3, 'UTC')) AS newest_at,
  arraySlice(arraySort(groupArrayIf(toString(p.rank), NOT r.rank_at >= w.newest - INTERVAL 2 MINUTE)), 1, 1000) AS silent
FROM @read(v_placements)@ AS p
LEFT JOIN (
  SELECT cluster, job, run, rank, max(received_at) AS rank_at FROM @read(rank_latest)@ GROUP BY cluster, job, run, rank
) AS r ON r.cluster = p.cluster AND r.job = p.job AND r.run = p.run AND r.rank = p.rank
LEFT JOIN (
  SELECT cluster, max(received_at) AS newest FROM @read(rank_latest)@ GROUP BY cluster
) AS w ON w.cluster = p.cluster
WHERE isNull(p.valid_until)
GROUP BY p.cluster, p.job, p.run
UNION ALL
SELECT 'node', e.cluster, '', '', e.node, count(), countIf(d.device_at >= w.newest - INTERVAL 2 MINUTE) AS heard,
  heard / count(), nullIf(max(d.device_at), toDateTime64(0, 3, 'UTC')),
  arraySlice(arraySort(groupArrayIf(toString(e.unit), NOT d.device_at >= w.newest - INTERVAL 2 MINUTE)), 1, 1000)
FROM (
  SELECT DISTINCT cluster, node, assumeNotNull(device) AS unit FROM @read(inventory)@ WHERE isNotNull(device)
) AS e
LEFT JOIN (
  SELECT cluster, node, device, max(received_at) AS device_at FROM @read(device_latest)@ GROUP BY cluster, node, device
) AS d ON d.cluster = e.cluster AND d.node = e.node AND d.device = e.unit
LEFT JOIN (
  SELECT cluster, max(received_at) AS newest FROM @read(device_latest)@ GROUP BY cluster
) AS w ON w.cluster = e.cluster
GROUP BY e.cluster, e.node
;
CREATE OR REPLACE VIEW @view(v_goodput)@ AS
SELECT r.cluster AS cluster, r.job AS job, r.attempts AS attempts, r.started_at AS started_at,
  greatest(r.newest_at, ifNull(s.newest_step_at, r.newest_at)) AS newest_at,
  dateDiff('millisecond', r.started_at, newest_at) / 1000 AS wall_s, r.phase_s AS phase_s,
  s.steps AS steps, s.steps_repeated AS steps_repeated, s.productive_s AS productive_s,
  s.productive_s / nullIf(wall_s, 0) AS goodput_ratio
FROM (
  SELECT cluster, job, uniqExact(run) AS attempts, min(phase_started_at) AS started_at,
    max(ifNull(phase_ended_at, phase_started_at)) AS newest_at,
    sumMap(map(toString(phase), ifNull(dateDiff('millisecond', phase_started_at, phase_ended_at), 0) / 1000)) AS phase_s
  FROM (
    SELECT cluster, job, run, phase, ifNull(started_at, ts) AS phase_started_at, max(ended_at) AS phase_ended_at
    FROM @read(runs)@
    GROUP BY cluster, job, run, phase, phase_started_at
  )
  GROUP BY cluster, job
) AS r
LEFT JOIN (
  SELECT cluster, job, count() AS steps, sum(times - 1) AS steps_repeated, sum(last_us) / 1e6 AS productive_s,
    max(newest) AS newest_step_at
  FROM (
    SELECT cluster, job, step, count() AS times, argMax(step_us_median, started_at) AS last_us,
      max(started_at) AS newest
    FROM @read(v_step_times)@
    GROUP BY cluster, job, step
  )
  GROUP BY cluster, job
) AS s ON s.cluster = r.cluster AND s.job = r.job
SETTINGS join_use_nulls = 1
;
