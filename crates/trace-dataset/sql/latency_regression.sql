-- Scheduling latency of two cohorts of recordings, e.g. two releases: the mean of the means of the recordings, their
-- difference, and its 95 % confidence interval by the t distribution, with as many degrees of freedom as the smaller
-- cohort has recordings but one: it needs two recordings in each cohort, and is wide with few. The options --before and
-- --after choose the cohorts; without them, they are the recordings with an odd and with an even place by number.
--
-- Example:
--   before     after      difference  low         high
--   2.855e+06  5.154e+06  2.299e+06   -7.189e+07  7.648e+07
WITH means AS (
  SELECT recording, avg(latency) AS latency
  FROM (SELECT recording, latency FROM sched UNION ALL SELECT recording, latency FROM goroutine_states) l
  WHERE latency IS NOT NULL AND recording IN (SELECT recording FROM recordings)
  GROUP BY recording
), cohorts AS (
  SELECT recording, CASE row_number() OVER (ORDER BY recording) % 2 WHEN 1 THEN 'before' ELSE 'after' END AS cohort
  FROM means
), sums AS (
  SELECT avg(CASE WHEN c.cohort = 'before' THEN m.latency END) AS before,
         avg(CASE WHEN c.cohort = 'after' THEN m.latency END) AS after,
         least(count(CASE WHEN c.cohort = 'before' THEN 1 END), count(CASE WHEN c.cohort = 'after' THEN 1 END)) - 1
           AS freedom,
         sqrt(
           var_samp(CASE WHEN c.cohort = 'before' THEN m.latency END) / count(CASE WHEN c.cohort = 'before' THEN 1 END)
           + var_samp(CASE WHEN c.cohort = 'after' THEN m.latency END) / count(CASE WHEN c.cohort = 'after' THEN 1 END)
         ) AS deviation
  FROM means m
  JOIN cohorts c USING (recording)
), margins AS (
  SELECT before, after, deviation * CASE
           WHEN freedom <= 1 THEN 12.71
           WHEN freedom = 2 THEN 4.30
           WHEN freedom = 3 THEN 3.18
           WHEN freedom = 4 THEN 2.78
           WHEN freedom = 5 THEN 2.57
           WHEN freedom = 6 THEN 2.45
           WHEN freedom = 7 THEN 2.36
           WHEN freedom = 8 THEN 2.31
           WHEN freedom = 9 THEN 2.26
           WHEN freedom < 15 THEN 2.23
           WHEN freedom < 30 THEN 2.13
           WHEN freedom < 60 THEN 2.04
           ELSE 2.00
         END AS margin
  FROM sums
)
SELECT before, after, after - before AS difference,
       after - before - margin AS low, after - before + margin AS high
FROM margins;
