-- min_program: 0.1.0
-- Ledgers. An incident that another one took over has no findings and no loss of its own: it is not counted.
CREATE OR REPLACE VIEW @view(v_lost_gpu_hours)@ AS
SELECT toDate(i.opened_at) AS day, i.cluster AS cluster, i.node AS node, i.device AS device, i.kind AS kind,
  i.job AS job, i.tenant AS tenant, count() AS incidents, countIf(i.state IN ('open', 'acknowledged')) AS open_incidents,
  sum(i.lost_gpu_hours) AS lost_gpu_hours, countIf(isNull(i.lost_gpu_hours)) AS incidents_without_figure
FROM @read(v_incidents)@ AS i
WHERE i.state != 'false_positive' AND NOT (i.state = 'resolved' AND empty(i.findings) AND isNull(i.lost_gpu_hours))
GROUP BY day, cluster, node, device, kind, job, tenant
;
-- Each phase of each attempt once, with its end.
CREATE OR REPLACE VIEW @view(v_run_phases)@ AS
SELECT a.cluster AS cluster, a.job AS job, a.run AS run, a.phase AS phase, a.begin_at AS begin_at,
  greatest(a.begin_at, ifNull(a.known_end_at, n.newest_at)) AS end_at, isNull(a.known_end_at) AS open
FROM (
  SELECT cluster, toString(job) AS job, toString(run) AS run, toString(phase) AS phase, ifNull(started_at, ts) AS begin_at,
    max(ended_at) AS known_end_at
  FROM @read(runs)@
  GROUP BY cluster, job, run, phase, begin_at
) AS a
INNER JOIN (
  SELECT cluster, job, run, max(seen_at) AS newest_at
  FROM (
    SELECT cluster, toString(job) AS job, toString(run) AS run, ifNull(ended_at, ifNull(started_at, ts)) AS seen_at
    FROM @read(runs)@
    UNION ALL
    SELECT cluster, toString(job), toString(run), max(ts) FROM @read(rank_latest)@ GROUP BY cluster, job, run
  )
  GROUP BY cluster, job, run
) AS n ON n.cluster = a.cluster AND n.job = a.job AND n.run = a.run
;
-- A phase that has no end lasts until the newest sign of its attempt. Init and train contain other phases, whose time
-- is taken off them: the seconds of all phases together never exceed the attempt.
CREATE OR REPLACE VIEW @view(v_goodput)@ AS
SELECT r.cluster AS cluster, r.job AS job, r.attempts AS attempts, r.started_at AS started_at,
  greatest(r.newest_at, ifNull(s.newest_step_at, r.newest_at)) AS newest_at,
  dateDiff('millisecond', r.started_at, newest_at) / 1000 AS wall_s, r.phase_s AS phase_s,
  s.steps AS steps, s.steps_repeated AS steps_repeated, s.productive_s AS productive_s,
  s.productive_s / nullIf(wall_s, 0) AS goodput_ratio
FROM (
  SELECT cluster, job, uniqExact(run) AS attempts, min(begin_at) AS started_at, max(end_at) AS newest_at,
    sumMap(map(phase, greatest(dateDiff('millisecond', begin_at, end_at) - inside_ms, 0) / 1000)) AS phase_s
  FROM (
    SELECT o.cluster AS cluster, o.job AS job, o.run AS run, o.phase AS phase, o.begin_at AS begin_at,
      max(o.end_at) AS end_at,
      sum(if(o.phase IN ('init', 'train') AND q.phase NOT IN ('init', 'train', ''),
        greatest(dateDiff('millisecond', greatest(o.begin_at, q.begin_at), least(o.end_at, q.end_at)), 0), 0)) AS inside_ms
    FROM @read(v_run_phases)@ AS o
    LEFT JOIN @read(v_run_phases)@ AS q ON q.cluster = o.cluster AND q.job = o.job AND q.run = o.run
    GROUP BY cluster, job, run, phase, begin_at
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
