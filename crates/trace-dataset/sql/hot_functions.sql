-- Functions by event and CPU samples: in how many samples they were executing, and in how many they were on the stack.
-- The event is that of the kernel, e.g. `cycles` or `page-faults`, or `go_cpu` or `managed` of a runtime's profiler.
-- Those of .NET's sampler count if the thread had a CPU. Without the kernel's scheduler that is not known: then they
-- include waiting threads.
--
-- Example:
--   event      function                     self  total
--   cpu-clock  NULL                         184   310
--   cpu-clock  __strcmp_avx2                64    66
--   cpu-clock  __strcspn_sse42              25    26
--   cpu-clock  __GI_____strtoll_l_internal  11    11
WITH functions AS (
  SELECT k.recording, k.stack, f.function, min(k.depth) AS depth
  FROM stacks k
  JOIN frames f USING (recording, frame)
  GROUP BY k.recording, k.stack, f.function
), cpu_samples AS (
  SELECT s.recording, s.stack, coalesce(s.event, s.kind) AS event,
         CASE WHEN s.event IS NULL AND s.kind = 'cpu' THEN s.weight ELSE 1 END AS samples
  FROM samples s
  WHERE (s.kind IN ('cpu', 'go_cpu') OR (s.kind = 'managed' AND coalesce(s.kernel, 'on_cpu') = 'on_cpu'))
    AND s.recording IN (SELECT recording FROM recordings)
)
SELECT s.event, f.function, sum(CASE WHEN f.depth = 0 THEN s.samples ELSE 0 END) AS self, sum(s.samples) AS total
FROM cpu_samples s
JOIN functions f USING (recording, stack)
GROUP BY s.event, f.function
ORDER BY self DESC, total DESC, s.event, f.function;
