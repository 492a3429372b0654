-- Whose threads had the CPU while threads of a process waited for it: after a preemption, and after a wake-up.
--
-- Example:
--   host  process  occupant_kind  neighbour      preempted   woken
--   test  rustc    thread         rustc          4199181213  77583946
--   test  rustc    thread         h0             1858623559  43103451
--   test  rustc    thread         triscope       1828412529  36083626
--   test  rustc    thread         clippy-driver  1462751141  4122864
WITH waits AS (
  SELECT recording, thread, occupant_kind, occupant, sum(duration) AS total,
         sum(duration) FILTER (WHERE state = 'preempted') AS preempted,
         sum(duration) FILTER (WHERE state = 'woken') AS woken
  FROM thread_states
  WHERE state IN ('preempted', 'woken')
  GROUP BY recording, thread, occupant_kind, occupant
)
SELECT r.host, p.name AS process, w.occupant_kind, o.name AS neighbour,
       sum(CAST(w.preempted AS DECIMAL(38, 0))) AS preempted, sum(CAST(w.woken AS DECIMAL(38, 0))) AS woken
FROM waits w
JOIN recordings r USING (recording)
JOIN threads t USING (recording, thread)
LEFT JOIN processes p ON p.recording = w.recording AND p.process = t.process
LEFT JOIN threads ot ON ot.recording = w.recording AND ot.thread = w.occupant
LEFT JOIN processes o ON o.recording = w.recording AND o.process = ot.process
GROUP BY r.host, p.name, w.occupant_kind, o.name
ORDER BY sum(CAST(w.total AS DECIMAL(38, 0))) DESC, r.host, p.name, o.name;
