-- Functions whose share of the CPU samples of an event differs most between two cohorts, with the functions that they
-- call. The event is that of the kernel, e.g. `cycles` or `page-faults`, or `go_cpu` or `managed` of a runtime's profiler.
-- There is no difference for an event that only one cohort has.
-- The options --before and --after choose the cohorts; without them, they are the recordings of samples in the first and
-- the second half by number.
-- Those of .NET's sampler count if the thread had a CPU. Without the kernel's scheduler that is not known: then they
-- include waiting threads.
--
-- Example:
--   event   function                                      before  after  difference
--   go_cpu  bufio.(*Writer).Flush                         1       1      0
--   go_cpu  internal/poll.(*FD).Write                     1       1      0
--   go_cpu  internal/poll.ignoringEINTRIO                 1       1      0
--   go_cpu  internal/runtime/atomic.(*Pointer[...]).Load  1       1      0
WITH cpu_samples AS (
  SELECT s.recording, s.stack, coalesce(s.event, s.kind) AS event,
         CASE WHEN s.event IS NULL AND s.kind = 'cpu' THEN s.weight ELSE 1 END AS samples
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
  SELECT s.event, f.function,
         sum(CASE WHEN c.cohort = 'before' THEN s.samples ELSE 0 END) AS before,
         sum(CASE WHEN c.cohort = 'after' THEN s.samples ELSE 0 END) AS after
  FROM cpu_samples s
  JOIN cohorts c USING (recording)
  JOIN functions f USING (recording, stack)
  GROUP BY s.event, f.function
), totals AS (
  SELECT s.event,
         sum(CASE WHEN c.cohort = 'before' THEN s.samples ELSE 0 END) AS before,
         sum(CASE WHEN c.cohort = 'after' THEN s.samples ELSE 0 END) AS after
  FROM cpu_samples s
  JOIN cohorts c USING (recording)
  GROUP BY s.event
)
SELECT c.event, c.function, c.before, c.after,
       c.after * 1.0 / nullif(t.after, 0) - c.before * 1.0 / nullif(t.before, 0) AS difference
FROM counts c
JOIN totals t ON t.event = c.event
ORDER BY abs(c.after * 1.0 / nullif(t.after, 0) - c.before * 1.0 / nullif(t.before, 0)) DESC NULLS LAST, c.event,
         c.function;
