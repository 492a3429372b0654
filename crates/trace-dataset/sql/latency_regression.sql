-- Scheduling latency of two cohorts of recordings, e.g. two releases: the mean of the means of the recordings, their
-- difference, and its 95 % confidence interval, which needs two recordings in each cohort. Here the cohorts are the
-- recordings with an odd and with an even place by number: change the first query.
--
-- Example:
--   before     after      difference  low         high
--   2.855e+06  5.154e+06  2.299e+06   -9.141e+06  1.374e+07
WITH cohorts AS (
  SELECT recording, avg(latency) AS latency, row_number() OVER (ORDER BY recording) % 2 AS cohort
  FROM (SELECT recording, latency FROM sched UNION ALL SELECT recording, latency FROM goroutine_states) l
  WHERE latency IS NOT NULL
  GROUP BY recording
), sums AS (
  SELECT avg(CASE WHEN cohort = 1 THEN latency END) AS before,
         avg(CASE WHEN cohort = 0 THEN latency END) AS after,
         1.96 * sqrt(var_samp(CASE WHEN cohort = 1 THEN latency END) / count(CASE WHEN cohort = 1 THEN 1 END)
           + var_samp(CASE WHEN cohort = 0 THEN latency END) / count(CASE WHEN cohort = 0 THEN 1 END)) AS margin
  FROM cohorts
)
SELECT before, after, after - before AS difference,
       after - before - margin AS low, after - before + margin AS high
FROM sums;
