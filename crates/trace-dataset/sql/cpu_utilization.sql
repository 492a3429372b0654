-- Utilization of each CPU: time in which a recorded thread had it, by the time in which the kernel's scheduler
-- was recorded.
--
-- Example:
--   host  cpu  busy        utilization
--   test  0    498457436   0.996
--   test  1    488953881   0.977
--   test  0    1041362765  0.8883
--   test  1    1019868410  0.8699
WITH used AS (
  SELECT recording, cpu, sum(duration) AS busy
  FROM sched
  GROUP BY recording, cpu
)
SELECT r.host, c.cpu, coalesce(u.busy, 0) AS busy,
       coalesce(u.busy, 0) * 1.0 / coalesce(r.sched_end_monotonic - r.sched_start_monotonic,
                                            r.end_monotonic - r.start_monotonic) AS utilization
FROM cpus c
JOIN recordings r USING (recording)
LEFT JOIN used u ON u.recording = c.recording AND u.cpu = c.cpu
WHERE c.recording IN (SELECT recording FROM used)
ORDER BY r.host, r.recording, c.cpu;
