-- The time of threads: on a CPU, preempted, waiting for one after a wake-up, sleeping, blocked, stopped, not known.
--
-- Example:
--   recording            tid    thread    on_cpu     preempted  woken    sleeping  blocked  stopped  unknown
--   4689984299619020130  17435  h0        299738683  562631184  4913504  67670     0        0        145923374
--   4689984299619020130  17093  rustc     291771470  745661112  0        0         0        0        134926336
--   4689984299619020130  17046  triscope  279576877  678855848  0        0         0        0        25450
--   2065747100805742473  16958  h0        154090264  341257691  0        0         0        0        5099463
WITH states AS (
  SELECT recording, thread, 'on_cpu' AS state, sum(duration) AS total
  FROM sched
  GROUP BY recording, thread
  UNION ALL
  SELECT recording, thread, coalesce(state, 'unknown'), sum(duration)
  FROM thread_states
  GROUP BY recording, thread, state
)
SELECT t.recording, t.tid, t.name AS thread,
       coalesce(sum(s.total) FILTER (WHERE s.state = 'on_cpu'), 0) AS on_cpu,
       coalesce(sum(s.total) FILTER (WHERE s.state = 'preempted'), 0) AS preempted,
       coalesce(sum(s.total) FILTER (WHERE s.state = 'woken'), 0) AS woken,
       coalesce(sum(s.total) FILTER (WHERE s.state = 'sleeping'), 0) AS sleeping,
       coalesce(sum(s.total) FILTER (WHERE s.state = 'blocked'), 0) AS blocked,
       coalesce(sum(s.total) FILTER (WHERE s.state = 'stopped'), 0) AS stopped,
       coalesce(sum(s.total) FILTER (WHERE s.state = 'unknown'), 0) AS unknown
FROM states s
JOIN threads t USING (recording, thread)
WHERE t.recording IN (SELECT recording FROM recordings)
GROUP BY t.recording, t.thread, t.tid, t.name
ORDER BY on_cpu DESC, t.recording, t.tid;
