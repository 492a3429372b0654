-- Threads that change the CPU most often.
--
-- Example:
--   host  thread       tid    intervals  migrations
--   test  rcu_preempt  15     115        17
--   test  sh           15124  248        9
--   test  rcu_preempt  15     75         7
--   test  opt cgu.05   16374  22         5
WITH moves AS (
  SELECT recording, thread, cpu,
         lag(cpu) OVER (PARTITION BY recording, thread ORDER BY end_monotonic) AS before
  FROM sched
)
SELECT r.host, t.name AS thread, t.tid, count(*) AS intervals,
       sum(CASE WHEN m.cpu <> m.before THEN 1 ELSE 0 END) AS migrations
FROM moves m
JOIN threads t USING (recording, thread)
JOIN recordings r USING (recording)
GROUP BY r.host, r.recording, t.name, t.tid
ORDER BY migrations DESC, r.host, t.tid;
