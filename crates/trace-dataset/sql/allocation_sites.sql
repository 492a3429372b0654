-- Bytes of sampled allocations by process and allocating function, which is the innermost frame of the stack that
-- has a name. The runtimes sample allocations by bytes.
--
-- Example:
--   process   function                                                      samples  bytes
--   Workload  Workload.Allocate()                                           5208     595014336
--   Workload  System.Diagnostics.Tracing.EventSource.AddEventDescriptor(va  1        127440
--   Workload  System.ModuleHandle.ResolveMethodHandle(int32,value class Sy  1        109992
--   Workload  System.Reflection.MdFieldInfo.get_FieldType()                 1        109864
WITH sites AS (
  SELECT recording, process, stack, count(*) AS samples, sum(weight) AS bytes
  FROM samples
  WHERE kind = 'allocation' AND recording IN (SELECT recording FROM recordings)
  GROUP BY recording, process, stack
),
named AS (
  SELECT k.recording, k.stack, min(k.depth) AS depth
  FROM stacks k
  JOIN frames f USING (recording, frame)
  WHERE f.function IS NOT NULL
  GROUP BY k.recording, k.stack
)
SELECT p.name AS process, f.function, sum(s.samples) AS samples, sum(s.bytes) AS bytes
FROM sites s
LEFT JOIN processes p USING (recording, process)
LEFT JOIN named n ON n.recording = s.recording AND n.stack = s.stack
LEFT JOIN stacks k ON k.recording = n.recording AND k.stack = n.stack AND k.depth = n.depth
LEFT JOIN frames f ON f.recording = k.recording AND f.frame = k.frame
GROUP BY p.name, f.function
ORDER BY bytes DESC, p.name, f.function;
