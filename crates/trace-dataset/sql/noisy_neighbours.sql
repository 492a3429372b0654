-- Whose threads had the CPU while threads of a process waited for it: after a preemption, and after a wake-up.
--
-- Example:
--   host  process  occupant_kind  neighbour      preempted   woken
--   test  rustc    thread         rustc          4199181213  77583946
--   test  rustc    thread         h0             1858623559  43103451
--   test  rustc    thread         triscope       1828412529  36083626
--   test  rustc    thread         clippy-driver  1462751141  4122864
SELECT r.host, p.name AS process, s.occupant_kind, o.name AS neighbour,
       sum(s.duration) FILTER (WHERE s.state = 'preempted') AS preempted,
       sum(s.duration) FILTER (WHERE s.state = 'woken') AS woken
FROM thread_states s
JOIN recordings r USING (recording)
JOIN threads t USING (recording, thread)
LEFT JOIN processes p ON p.recording = s.recording AND p.process = t.process
LEFT JOIN threads ot ON ot.recording = s.recording AND ot.thread = s.occupant
LEFT JOIN processes o ON o.recording = s.recording AND o.process = ot.process
WHERE s.state IN ('preempted', 'woken')
GROUP BY r.host, p.name, s.occupant_kind, o.name
ORDER BY sum(s.duration) DESC, r.host, p.name, o.name;
