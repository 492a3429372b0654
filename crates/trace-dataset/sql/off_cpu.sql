-- Time of threads without a CPU by process and reason. Sleeping threads may simply have nothing to do.
-- A wait for a CPU has an interval for each thread that has that CPU meanwhile: scheduling_latency has whole waits.
--
-- Example:
--   host  process          state      intervals  total        longest
--   test  memfd:sealed-91  sleeping   248        11850832049  50055176
--   test  rustc            preempted  12079      10961707034  8005275
--   test  cargo            sleeping   29         9200903587   793880428
--   test  triscope         sleeping   351        7790915892   996945734
WITH waits AS (
  SELECT recording, thread, state, count(*) AS intervals, sum(duration) AS total, max(duration) AS longest
  FROM thread_states
  WHERE state IS NOT NULL
  GROUP BY recording, thread, state
)
SELECT r.host, p.name AS process, w.state, sum(w.intervals) AS intervals,
       sum(CAST(w.total AS DECIMAL(38, 0))) AS total, max(w.longest) AS longest
FROM waits w
JOIN recordings r USING (recording)
JOIN threads t USING (recording, thread)
LEFT JOIN processes p ON p.recording = w.recording AND p.process = t.process
GROUP BY r.host, p.name, w.state
ORDER BY total DESC, r.host, p.name, w.state;
