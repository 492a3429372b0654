-- Time of goroutines by process and entry function: running, of which without a CPU if the kernel was recorded,
-- runnable, in system calls, waiting; and the percentiles of the scheduling latency.
--
-- Example:
--   process  entry                   goroutines  running   without_cpu  runnable  syscall  waiting    latency_p50  latency_p99
--   shop     net/http.(*conn).serve  3           24127228  NULL         16557056  4195011  214479105  1152         311744
--   damaged  net/http.(*conn).serve  3           20345702  NULL         36587466  3595910  203918629  1024         1484736
--   shop     runtime.gcBgMarkWorker  2           14716864  NULL         978240    NULL     171536256  256          503424
--   damaged  runtime.gcBgMarkWorker  2           12944707  NULL         16631812  NULL     157520825  256          8176898
SELECT p.name AS process, g.entry,
       count(DISTINCT CAST(s.recording AS STRING) || '/' || CAST(g.goroutine AS STRING)) AS goroutines,
       sum(CAST(s.duration AS DECIMAL(38, 0))) FILTER (WHERE s.state = 'running') AS running,
       sum(CAST(s.duration AS DECIMAL(38, 0))) FILTER (WHERE s.state = 'running' AND s.kernel <> 'on_cpu') AS without_cpu,
       sum(CAST(s.duration AS DECIMAL(38, 0))) FILTER (WHERE s.state = 'runnable') AS runnable,
       sum(CAST(s.duration AS DECIMAL(38, 0))) FILTER (WHERE s.state = 'syscall') AS syscall,
       sum(CAST(s.duration AS DECIMAL(38, 0))) FILTER (WHERE s.state = 'waiting') AS waiting,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY s.latency) AS latency_p50,
       percentile_cont(0.99) WITHIN GROUP (ORDER BY s.latency) AS latency_p99
FROM goroutine_states s
JOIN goroutines g USING (recording, goroutine)
LEFT JOIN processes p USING (recording, process)
WHERE s.recording IN (SELECT recording FROM recordings)
GROUP BY p.name, g.entry
ORDER BY running DESC NULLS LAST, g.entry;
