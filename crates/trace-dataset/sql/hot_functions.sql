-- Functions by CPU samples: in how many samples they were executing, and in how many they were on the stack.
-- Those of .NET's sampler count if the thread had a CPU. Without the kernel's scheduler that is not known: then they
-- include waiting threads.
--
-- Example:
--   function                     self  total
--   NULL                         60    88
--   __strcmp_evex                17    17
--   __GI_____strtoll_l_internal  5     5
--   __strcspn_sse42              4     4
WITH functions AS (
  SELECT k.recording, k.stack, f.function, min(k.depth) AS depth
  FROM stacks k
  JOIN frames f USING (recording, frame)
  GROUP BY k.recording, k.stack, f.function
)
SELECT f.function, sum(CASE WHEN f.depth = 0 THEN 1 ELSE 0 END) AS self, count(*) AS total
FROM samples s
JOIN functions f USING (recording, stack)
WHERE (s.kind IN ('cpu', 'go_cpu') OR (s.kind = 'managed' AND coalesce(s.kernel, 'on_cpu') = 'on_cpu'))
  AND s.recording IN (SELECT recording FROM recordings)
GROUP BY f.function
ORDER BY self DESC, total DESC, f.function;
