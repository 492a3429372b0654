-- Time on CPUs by host and process, and its share of the CPU time of the host.
--
-- Example:
--   host  process   pid    on_cpu     share
--   test  rustc     17088  418259860  0.1372
--   test  h0        17435  299738683  0.09832
--   test  triscope  17046  296711667  0.09733
--   test  h0        16958  198024395  0.06495
SELECT r.host, p.name AS process, p.pid, sum(s.duration) AS on_cpu,
       sum(s.duration) * 1.0 / sum(sum(s.duration)) OVER (PARTITION BY r.host) AS share
FROM sched s
JOIN threads t USING (recording, thread)
JOIN recordings r USING (recording)
LEFT JOIN processes p ON p.recording = s.recording AND p.process = t.process
GROUP BY r.host, p.name, p.pid
ORDER BY on_cpu DESC, r.host, p.pid;
