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
)
SELECT coalesce(s.event, s.kind) AS event, f.function, sum(CASE WHEN f.depth = 0 THEN 1 ELSE 0 END) AS self, count(*) AS total
FROM samples s
JOIN functions f USING (recording, stack)
WHERE (s.kind IN ('cpu', 'go_cpu') OR (s.kind = 'managed' AND coalesce(s.kernel, 'on_cpu') = 'on_cpu'))
  AND s.recording IN (SELECT recording FROM recordings)
GROUP BY coalesce(s.event, s.kind), f.function
ORDER BY self DESC, total DESC, event, f.function;
