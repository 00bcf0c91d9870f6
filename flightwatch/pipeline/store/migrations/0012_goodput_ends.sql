-- min_program: 0.1.0
-- A job's time and its open phase reach to the end of its newest step, as its productive time does, and back to its
-- first one: a ratio above 1 came of counting that step's duration but not the time it took.
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
    SELECT cluster, toString(job), toString(run), max(l.ts + toIntervalMillisecond(toInt64(ifNull(l.step_us, 0) / 1000)))
    FROM @read(rank_latest)@ AS l GROUP BY cluster, job, run
  )
  GROUP BY cluster, job, run
) AS n ON n.cluster = a.cluster AND n.job = a.job AND n.run = a.run
;
-- Starts are known to the millisecond: what is left above 1 is their rounding.
CREATE OR REPLACE VIEW @view(v_goodput)@ AS
SELECT r.cluster AS cluster, r.job AS job, r.attempts AS attempts,
  least(r.phases_from, ifNull(s.steps_from, r.phases_from)) AS started_at,
  greatest(r.phases_to, ifNull(s.steps_to, r.phases_to)) AS newest_at,
  dateDiff('millisecond', started_at, newest_at) / 1000 AS wall_s, r.phase_s AS phase_s,
  s.steps AS steps, s.steps_repeated AS steps_repeated, s.productive_s AS productive_s,
  if(s.productive_s > wall_s, 1, s.productive_s / nullIf(wall_s, 0)) AS goodput_ratio
FROM (
  SELECT cluster, job, uniqExact(run) AS attempts, min(begin_at) AS phases_from, max(end_at) AS phases_to,
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
    min(begin_at) AS steps_from, max(end_at) AS steps_to
  FROM (
    SELECT cluster, job, step, count() AS times, argMax(step_us_median, started_at) AS last_us,
      min(started_at) AS begin_at,
      max(started_at + toIntervalMillisecond(toInt64(ifNull(step_us_median, 0) / 1000))) AS end_at
    FROM @read(v_step_times)@
    GROUP BY cluster, job, step
  )
  GROUP BY cluster, job
) AS s ON s.cluster = r.cluster AND s.job = r.job
SETTINGS join_use_nulls = 1
;
