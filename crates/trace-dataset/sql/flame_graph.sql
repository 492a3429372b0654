-- Stacks of CPU samples as folded lines, outermost function first: input of flame-graph tools. A ; in the name of
-- a function is a : here. Add conditions on the event, and on host, date or process for a cohort.
-- The event is that of the kernel, e.g. `cycles` or `page-faults`, or `go_cpu` or `managed` of a runtime's profiler.
-- Those of .NET's sampler count if the thread had a CPU. Without the kernel's scheduler that is not known: then they
-- include waiting threads.
--
-- In Spark: listagg(…) WITHIN GROUP (ORDER BY …) for string_agg, as `triscope questions flame_graph --spark` prints it.
--
-- Example:
--   event      folded             samples
--   cpu-clock  ?                  74
--   cpu-clock  ?;?;?              48
--   cpu-clock  ?;?;__strcmp_avx2  43
--   cpu-clock  ?;?                24
WITH folded AS (
  SELECT k.recording, k.stack, string_agg(replace(coalesce(f.function, '?'), ';', ':'), ';' ORDER BY k.depth DESC) AS folded
  FROM stacks k
  JOIN frames f USING (recording, frame)
  GROUP BY k.recording, k.stack
)
SELECT coalesce(s.event, s.kind) AS event, f.folded,
       sum(CASE WHEN s.event IS NULL AND s.kind = 'cpu' THEN s.weight ELSE 1 END) AS samples
FROM samples s
JOIN folded f USING (recording, stack)
WHERE (s.kind IN ('cpu', 'go_cpu') OR (s.kind = 'managed' AND coalesce(s.kernel, 'on_cpu') = 'on_cpu'))
  AND s.recording IN (SELECT recording FROM recordings)
GROUP BY coalesce(s.event, s.kind), f.folded
ORDER BY samples DESC, event, f.folded;
