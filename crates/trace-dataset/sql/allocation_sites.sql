-- Bytes of sampled allocations by process and allocating function, which is the innermost frame of the stack that
-- has a name. The runtimes sample allocations by bytes.
--
-- Example:
--   process   function                                                      samples  bytes
--   Workload  Workload.Allocate()                                           5208     595014336
--   Workload  System.Diagnostics.Tracing.EventSource.AddEventDescriptor(va  1        127440
--   Workload  System.ModuleHandle.ResolveMethodHandle(int32,value class Sy  1        109992
--   Workload  System.Reflection.MdFieldInfo.get_FieldType()                 1        109864
SELECT p.name AS process, f.function, count(*) AS samples, sum(s.weight) AS bytes
FROM samples s
LEFT JOIN processes p USING (recording, process)
LEFT JOIN stacks k ON k.recording = s.recording AND k.stack = s.stack AND k.depth = 0
LEFT JOIN frames f ON f.recording = k.recording AND f.frame = k.frame
WHERE s.kind = 'allocation'
GROUP BY p.name, f.function
ORDER BY bytes DESC, p.name, f.function;
