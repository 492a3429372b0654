-- Scheduling latency of two cohorts of recordings, e.g. two releases: the mean of the means of the recordings, their
-- difference, and its 95 % confidence interval, which needs two recordings in each cohort. The options --before and --after
-- choose the cohorts; without them, they are the recordings with an odd and with an even place by number.
--
-- Example:
--   before     after      difference  low         high
--   2.855e+06  5.154e+06  2.299e+06   -9.141e+06  1.374e+07
WITH means AS (
  SELECT recording, avg(latency) AS latency
  FROM (SELECT recording, latency FROM sched UNION ALL SELECT recording, latency FROM goroutine_states) l
  WHERE latency IS NOT NULL
  GROUP BY recording
), cohorts AS (
  SELECT recording, CASE row_number() OVER (ORDER BY recording) % 2 WHEN 1 THEN 'before' ELSE 'after' END AS cohort
  FROM means
), sums AS (
  SELECT avg(CASE WHEN c.cohort = 'before' THEN m.latency END) AS before,
         avg(CASE WHEN c.cohort = 'after' THEN m.latency END) AS after,
         1.96 * sqrt(
           var_samp(CASE WHEN c.cohort = 'before' THEN m.latency END) / count(CASE WHEN c.cohort = 'before' THEN 1 END)
           + var_samp(CASE WHEN c.cohort = 'after' THEN m.latency END) / count(CASE WHEN c.cohort = 'after' THEN 1 END)
         ) AS margin
  FROM means m
  JOIN cohorts c USING (recording)
)
SELECT before, after, after - before AS difference,
       after - before - margin AS low, after - before + margin AS high
FROM sums;
