-- Utilization of each CPU: time in which a recorded thread had it, by the time of the recording.
--
-- Example:
--   host  cpu  busy        utilization
--   test  0    498457436   0.996
--   test  1    488953881   0.977
--   test  0    1041362765  0.8883
--   test  1    1019868410  0.8699
SELECT r.host, s.cpu, sum(s.duration) AS busy,
       sum(s.duration) * 1.0 / max(r.end_monotonic - r.begin_monotonic) AS utilization
FROM sched s
JOIN recordings r USING (recording)
GROUP BY r.recording, r.host, s.cpu
ORDER BY r.host, r.recording, s.cpu;
