-- Functions whose share of the CPU samples differs most between two cohorts, with the functions that they call.
-- The options --before and --after choose the cohorts; without them, they are the recordings of samples in the first and
-- the second half by number.
-- Those of .NET's sampler count if the thread had a CPU. Without the kernel's scheduler that is not known: then they
-- include waiting threads.
--
-- Example:
--   function                before  after  difference
--   runtime.goexit          5       5      0.9565
--   net/http.(*conn).serve  4       4      0.7652
--   main.serve.func1        3       3      0.5739
--   main.serve.func1.1      3       3      0.5739
WITH cpu_samples AS (
  SELECT s.recording, s.stack
  FROM samples s
  WHERE (s.kind IN ('cpu', 'go_cpu') OR (s.kind = 'managed' AND coalesce(s.kernel, 'on_cpu') = 'on_cpu'))
    AND s.recording IN (SELECT recording FROM recordings)
), cohorts AS (
  SELECT recording, CASE ntile(2) OVER (ORDER BY recording) WHEN 1 THEN 'before' ELSE 'after' END AS cohort
  FROM (SELECT DISTINCT recording FROM cpu_samples) s
), functions AS (
  SELECT DISTINCT k.recording, k.stack, f.function
  FROM stacks k
  JOIN frames f USING (recording, frame)
  WHERE f.function IS NOT NULL
), counts AS (
  SELECT f.function,
         sum(CASE WHEN c.cohort = 'before' THEN 1 ELSE 0 END) AS before,
         sum(CASE WHEN c.cohort = 'after' THEN 1 ELSE 0 END) AS after
  FROM cpu_samples s
  JOIN cohorts c USING (recording)
  JOIN functions f USING (recording, stack)
  GROUP BY f.function
), totals AS (
  SELECT sum(CASE WHEN c.cohort = 'before' THEN 1 ELSE 0 END) AS before,
         sum(CASE WHEN c.cohort = 'after' THEN 1 ELSE 0 END) AS after
  FROM cpu_samples s
  JOIN cohorts c USING (recording)
)
SELECT c.function, c.before, c.after,
       c.after * 1.0 / nullif(t.after, 0) - c.before * 1.0 / nullif(t.before, 0) AS difference
FROM counts c CROSS JOIN totals t
ORDER BY abs(c.after * 1.0 / nullif(t.after, 0) - c.before * 1.0 / nullif(t.before, 0)) DESC, c.function;
