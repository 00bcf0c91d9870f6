"""The recipes of docs/sql.md, which the SQL page offers; a test holds the two together."""
# ruff: noqa: E501 - queries as docs/sql.md writes them

from __future__ import annotations

#: (key of its title in the words of the console: `example.<key>`, query)
EXAMPLES: tuple[tuple[str, str], ...] = (
    (
        "hottest",
        """SELECT node, device, temp_c, round(age_s, 1) AS age_s
FROM flightwatch.v_device_latest
WHERE age_s < 60
ORDER BY temp_c DESC NULLS LAST
LIMIT 10""",
    ),
    (
        "draw",
        """WITH (
  SELECT (quantileExact(0.5)(power_w), 1.4826 * arrayReduce('quantileExact(0.5)',
          arrayMap(x -> abs(x - quantileExact(0.5)(power_w)), groupArray(assumeNotNull(power_w)))))
  FROM flightwatch.v_device_latest WHERE isNotNull(power_w)
) AS fleet
SELECT node, device, power_w, round((power_w - fleet.1) / greatest(fleet.2, 0.1), 1) AS z
FROM flightwatch.v_device_latest
WHERE isNotNull(power_w)
ORDER BY abs(z) DESC
LIMIT 10""",
    ),
    (
        "heat",
        """SELECT m, node, device, sum(temp_c_sum) / sum(temp_c_n) AS mean_c, max(temp_c_max) AS max_c
FROM flightwatch.device_1m
WHERE m > now() - INTERVAL 1 HOUR
GROUP BY m, node, device
ORDER BY m, node, device""",
    ),
    (
        "memory",
        """SELECT toDate(m) AS day, node, device,
  sum(if(last >= before, toUInt64(last - before), last)) AS errors
FROM (
  SELECT m, node, device, argMaxMerge(ecc_corrected_total_last) AS last,
    lagInFrame(toNullable(last), 1) OVER (PARTITION BY node, device ORDER BY m) AS before
  FROM flightwatch.device_1m
  WHERE m > now() - INTERVAL 7 DAY
  GROUP BY m, node, device
)
WHERE isNotNull(before)
GROUP BY day, node, device
HAVING errors > 0
ORDER BY errors DESC""",
    ),
    (
        "energy",
        """SELECT device, sum(energy_j_delta) / 3.6e6 AS kwh
FROM flightwatch.v_device_rates
WHERE node = 'node-0001' AND ts > now() - INTERVAL 1 HOUR
GROUP BY device
ORDER BY device""",
    ),
    (
        "ports",
        """SELECT node, hca, port, sum(symbol_errors_delta) AS symbol_errors, sum(link_downed_delta) AS link_downs,
  max(has(at_least, 'symbol_errors')) AS lower_bound
FROM flightwatch.v_port_rates
WHERE ts > now() - INTERVAL 1 DAY
GROUP BY node, hca, port
HAVING symbol_errors > 0 OR link_downs > 0
ORDER BY symbol_errors DESC""",
    ),
    (
        "slowest",
        """SELECT slowest_compute_rank AS rank, any(slowest_compute_node) AS node, count() AS steps,
  round(avg(compute_us_max / compute_us_median), 3) AS times_median
FROM (
  SELECT * FROM flightwatch.v_step_times
  WHERE job = (SELECT argMax(job, ts) FROM flightwatch.rank_steps WHERE ts > now() - INTERVAL 10 MINUTE)
  ORDER BY step DESC LIMIT 500
)
GROUP BY rank
ORDER BY steps DESC
LIMIT 5""",
    ),
    (
        "xid",
        """SELECT code, severity, count() AS events, uniqExact(node) AS nodes, max(ts) AS newest
FROM flightwatch.events
WHERE ts > now() - INTERVAL 1 DAY AND severity IN ('error', 'critical')
GROUP BY code, severity
ORDER BY events DESC""",
    ),
    (
        "lost",
        """SELECT node, kind, sum(incidents) AS incidents, round(sum(lost_gpu_hours), 1) AS gpu_hours,
  sum(incidents_without_figure) AS without_figure
FROM flightwatch.v_lost_gpu_hours
WHERE day > today() - 90
GROUP BY node, kind
ORDER BY gpu_hours DESC NULLS LAST""",
    ),
    (
        "history",
        """SELECT ts, source, device, serial, severity, kind, summary
FROM flightwatch.v_node_history
WHERE node = 'node-0001'
ORDER BY ts DESC
LIMIT 200""",
    ),
    (
        "silent",
        """SELECT scope, job, run, node, expected, reporting, round(coverage_ratio, 3) AS coverage, silent
FROM flightwatch.v_coverage
WHERE reporting < expected
ORDER BY coverage""",
    ),
    (
        "goodput",
        """SELECT job, attempts, round(wall_s / 3600, 1) AS hours, steps, steps_repeated, round(goodput_ratio, 3) AS goodput
FROM flightwatch.v_goodput
ORDER BY hours DESC""",
    ),
    (
        "holes",
        """SELECT ts, node, lane, batches, reason
FROM flightwatch.data_gaps
ORDER BY ts DESC
LIMIT 50""",
    ),
    (
        "changed",
        """SELECT ts, device, name, value
FROM flightwatch.config_facts
WHERE node = 'node-0001' AND ts > now() - INTERVAL 1 DAY
ORDER BY ts""",
    ),
    (
        "waits",
        """WITH places AS (
    SELECT rank, argMax(ifNull(tp, -1), ts) AS tp, argMax(ifNull(cp, -1), ts) AS cp, argMax(ifNull(pp, -1), ts) AS pp,
           argMax(ifNull(dp, -1), ts) AS dp
    FROM flightwatch.placements
    WHERE job = 'llama' AND run = (SELECT argMax(run, ts) FROM flightwatch.rank_steps WHERE job = 'llama')
    GROUP BY rank
), spent AS (
    SELECT step, rank, comm_us, comm_by_axis_us, arrayJoin(mapKeys(comm_by_axis_us)) AS axis
    FROM flightwatch.rank_steps
    WHERE job = 'llama' AND run = (SELECT argMax(run, ts) FROM flightwatch.rank_steps WHERE job = 'llama')
      AND ts > now() - INTERVAL 10 MINUTE
), shortest AS (
    SELECT step, rank, comm_us, min(comm_by_axis_us[axis]) OVER (
               PARTITION BY step, axis, if(axis = 'tp', 0, tp), if(axis = 'cp', 0, cp), pp, if(axis = 'dp', 0, dp)
           ) AS axis_us
    FROM spent INNER JOIN places ON spent.rank = places.rank
    WHERE axis IN ('tp', 'cp', 'dp')
), split AS (
    SELECT step, rank, any(comm_us) AS comm, least(sum(axis_us), comm) AS transfer
    FROM shortest GROUP BY step, rank
)
SELECT rank, round(avg(comm - transfer)) AS wait_us, round(avg(transfer)) AS transfer_us, count() AS steps
FROM split GROUP BY rank ORDER BY wait_us LIMIT 20""",
    ),
)
