-- Time on CPUs by host and process, and its share of the CPU time of the host.
--
-- Example:
--   host  process   pid    on_cpu     share
--   test  rustc     17088  418259860  0.1372
--   test  h0        17435  299738683  0.09832
--   test  triscope  17046  296711667  0.09733
--   test  h0        16958  198024395  0.06495
WITH times AS (
  SELECT recording, thread, sum(duration) AS on_cpu FROM sched GROUP BY recording, thread
), sums AS (
  SELECT r.host, p.name AS process, p.pid, sum(CAST(s.on_cpu AS DECIMAL(38, 0))) AS on_cpu
  FROM times s
  JOIN threads t USING (recording, thread)
  JOIN recordings r USING (recording)
  LEFT JOIN processes p ON p.recording = s.recording AND p.process = t.process
  GROUP BY r.host, p.name, p.pid
)
SELECT host, process, pid, on_cpu,
       CAST(on_cpu AS DOUBLE) / sum(CAST(on_cpu AS DOUBLE)) OVER (PARTITION BY host) AS share
FROM sums
ORDER BY on_cpu DESC, host, pid;
