-- Waits of .NET threads for locks and tasks, of work items in the queue of the thread pool and of tasks that are
-- scheduled, and awaits, by process and kind. A task that is scheduled can be a work item, too. Those that had not ended
-- are left out.
--
-- Example:
--   process   kind  waits  total      p99      longest
--   Workload  lock  325    480329591  5044644  7964936
SELECT p.name AS process, w.kind, count(*) AS waits, sum(CAST(w.duration AS DECIMAL(38, 0))) AS total,
       percentile_cont(0.99) WITHIN GROUP (ORDER BY w.duration) AS p99, max(w.duration) AS longest
FROM waits w
LEFT JOIN processes p USING (recording, process)
WHERE NOT w.is_open AND w.recording IN (SELECT recording FROM recordings)
GROUP BY p.name, w.kind
ORDER BY total DESC, p.name, w.kind;
