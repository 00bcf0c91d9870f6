-- min_program: 0.1.0
-- Every table of the catalogue. Order: samples by hour, then target, so that one hour of one target is
-- contiguous; training tables by job. Daily partitions, monthly where rows live for years (a day's insert
-- touches few parts either way, and a store of two years opens with hundreds of parts instead of thousands).
-- Projections of the control database keep all versions; readers take the newest (argMax, LIMIT 1 BY).
CREATE DATABASE IF NOT EXISTS @database@
;
-- People's queries run with this empty database as the current one: an unqualified name finds nothing.
CREATE DATABASE IF NOT EXISTS @people@
;
CREATE TABLE IF NOT EXISTS @table(schema_versions)@ @columns(schema_versions)@
ENGINE = @merge@
ORDER BY (version, applied_at)
@ttl(schema_versions)@
@settings@
;
CREATE TABLE IF NOT EXISTS @table(device_samples)@ @columns(device_samples)@
ENGINE = @merge@
PARTITION BY toYYYYMMDD(ts)
ORDER BY (cluster, toStartOfHour(ts), node, device, ts)
@ttl(device_samples)@
@settings@
;
CREATE TABLE IF NOT EXISTS @table(node_samples)@ @columns(node_samples)@
ENGINE = @merge@
PARTITION BY toYYYYMMDD(ts)
ORDER BY (cluster, toStartOfHour(ts), node, ts)
@ttl(node_samples)@
@settings@
;
CREATE TABLE IF NOT EXISTS @table(sensor_samples)@ @columns(sensor_samples)@
ENGINE = @merge@
PARTITION BY toYYYYMMDD(ts)
ORDER BY (cluster, toStartOfHour(ts), node, chip, label, quantity, ts)
@ttl(sensor_samples)@
@settings@
;
CREATE TABLE IF NOT EXISTS @table(storage_samples)@ @columns(storage_samples)@
ENGINE = @merge@
PARTITION BY toYYYYMMDD(ts)
ORDER BY (cluster, toStartOfHour(ts), node, target, ts)
@ttl(storage_samples)@
@settings@
;
CREATE TABLE IF NOT EXISTS @table(facility_samples)@ @columns(facility_samples)@
ENGINE = @merge@
PARTITION BY toYYYYMMDD(ts)
ORDER BY (cluster, toStartOfHour(ts), zone, label, quantity, ts)
@ttl(facility_samples)@
@settings@
;
CREATE TABLE IF NOT EXISTS @table(port_samples)@ @columns(port_samples)@
ENGINE = @merge@
PARTITION BY toYYYYMMDD(ts)
ORDER BY (cluster, toStartOfHour(ts), node, hca, port, ts)
@ttl(port_samples)@
@settings@
;
CREATE TABLE IF NOT EXISTS @table(rank_steps)@ @columns(rank_steps)@
ENGINE = @merge@
PARTITION BY toYYYYMMDD(ts)
ORDER BY (cluster, job, run, step, rank)
@ttl(rank_steps)@
@settings@
;
CREATE TABLE IF NOT EXISTS @table(op_timings)@ @columns(op_timings)@
ENGINE = @merge@
PARTITION BY toYYYYMMDD(ts)
ORDER BY (cluster, job, run, kind, op, step, rank)
@ttl(op_timings)@
@settings@
;
CREATE TABLE IF NOT EXISTS @table(training_scalars)@ @columns(training_scalars)@
ENGINE = @merge@
PARTITION BY (toYYYYMM(ts), rank < 0)
ORDER BY (cluster, job, run, name, step, rank)
@ttl(training_scalars)@
@settings@
;
CREATE TABLE IF NOT EXISTS @table(process_groups)@ @columns(process_groups)@
ENGINE = @merge@
PARTITION BY toYYYYMMDD(ts)
ORDER BY (cluster, job, run, process_group, ts)
@ttl(process_groups)@
@settings@
;
CREATE TABLE IF NOT EXISTS @table(collectives)@ @columns(collectives)@
ENGINE = @merge@
PARTITION BY toYYYYMMDD(ts)
ORDER BY (cluster, job, run, capture_id, rank, process_group, ts)
@ttl(collectives)@
@settings@
;
CREATE TABLE IF NOT EXISTS @table(dumps)@ @columns(dumps)@
ENGINE = @merge@
PARTITION BY toYYYYMMDD(ts)
ORDER BY (cluster, job, run, capture_id, rank, ts)
@ttl(dumps)@
@settings@
;
CREATE TABLE IF NOT EXISTS @table(runs)@ @columns(runs)@
ENGINE = @merge@
PARTITION BY toYYYYMM(ts)
ORDER BY (cluster, job, run, phase, ts)
@ttl(runs)@
@settings@
;
CREATE TABLE IF NOT EXISTS @table(placements)@ @columns(placements)@
ENGINE = @merge@
ORDER BY (cluster, job, run, rank, ts)
@ttl(placements)@
@settings@
;
CREATE TABLE IF NOT EXISTS @table(profiles)@ @columns(profiles)@
ENGINE = @merge@
PARTITION BY toYYYYMM(ts)
ORDER BY (cluster, job, id, version)
@ttl(profiles)@
@settings@
;
CREATE TABLE IF NOT EXISTS @table(profile_ops)@ @columns(profile_ops)@
ENGINE = @merge@
PARTITION BY toYYYYMMDD(ts)
ORDER BY (cluster, id, kind, rank, op)
@ttl(profile_ops)@
@settings@
;
CREATE TABLE IF NOT EXISTS @table(events)@ @columns(events)@
ENGINE = @merge@
PARTITION BY toYYYYMM(ts)
ORDER BY (cluster, toStartOfHour(ts), source, node, ts)
@ttl(events)@
@settings@
;
CREATE TABLE IF NOT EXISTS @table(findings)@ @columns(findings)@
ENGINE = @merge@
PARTITION BY toYYYYMM(ts)
ORDER BY (cluster, toStartOfHour(ts), detector, node, id, ts)
@ttl(findings)@
@settings@
;
CREATE TABLE IF NOT EXISTS @table(incidents)@ @columns(incidents)@
ENGINE = @merge@
ORDER BY (cluster, id, version)
@ttl(incidents)@
@settings@
;
CREATE TABLE IF NOT EXISTS @table(incident_notes)@ @columns(incident_notes)@
ENGINE = @merge@
PARTITION BY toYYYYMM(ts)
ORDER BY (cluster, incident, ts, version)
@ttl(incident_notes)@
@settings@
;
CREATE TABLE IF NOT EXISTS @table(alert_deliveries)@ @columns(alert_deliveries)@
ENGINE = @merge@
PARTITION BY toYYYYMM(ts)
ORDER BY (cluster, incident, ts, version)
@ttl(alert_deliveries)@
@settings@
;
CREATE TABLE IF NOT EXISTS @table(actions)@ @columns(actions)@
ENGINE = @merge@
PARTITION BY toYYYYMM(ts)
ORDER BY (cluster, id, version)
@ttl(actions)@
@settings@
;
CREATE TABLE IF NOT EXISTS @table(silences)@ @columns(silences)@
ENGINE = @merge@
PARTITION BY toYYYYMM(ts)
ORDER BY (cluster, id, version)
@ttl(silences)@
@settings@
;
CREATE TABLE IF NOT EXISTS @table(audit_log)@ @columns(audit_log)@
ENGINE = @merge@
PARTITION BY toYYYYMM(ts)
ORDER BY (cluster, ts, actor, version)
@ttl(audit_log)@
@settings@
;
CREATE TABLE IF NOT EXISTS @table(incident_evidence)@ @columns(incident_evidence)@
ENGINE = @merge@
ORDER BY (cluster, incident, moment, role, ts)
@ttl(incident_evidence)@
@settings@
;
CREATE TABLE IF NOT EXISTS @table(inventory)@ @columns(inventory)@
ENGINE = @merge@
ORDER BY (cluster, node, ts)
@ttl(inventory)@
@settings@
;
CREATE TABLE IF NOT EXISTS @table(links)@ @columns(links)@
ENGINE = @merge@
ORDER BY (cluster, from_target, to_target, ts)
@ttl(links)@
@settings@
;
CREATE TABLE IF NOT EXISTS @table(config_facts)@ @columns(config_facts)@
ENGINE = @merge@
PARTITION BY toYYYYMM(ts)
ORDER BY (cluster, node, name, ts)
@ttl(config_facts)@
@settings@
;
CREATE TABLE IF NOT EXISTS @table(self_metrics)@ @columns(self_metrics)@
ENGINE = @merge@
PARTITION BY toYYYYMMDD(ts)
ORDER BY (cluster, toStartOfHour(ts), node, component, instance, name, ts)
@ttl(self_metrics)@
@settings@
;
CREATE TABLE IF NOT EXISTS @table(data_gaps)@ @columns(data_gaps)@
ENGINE = @merge@
PARTITION BY toYYYYMM(ts)
ORDER BY (cluster, node, ts)
@ttl(data_gaps)@
@settings@
;
CREATE TABLE IF NOT EXISTS @table(dead_letters)@ @columns(dead_letters)@
ENGINE = @merge@
PARTITION BY toYYYYMMDD(ts)
ORDER BY (cluster, ts, id, replayed)
@ttl(dead_letters)@
@settings@
;
