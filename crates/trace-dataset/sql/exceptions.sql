-- Exceptions by process and type.
--
-- Example:
--   process   exception                         thrown
--   Workload  System.InvalidOperationException  248
SELECT p.name AS process, e.name AS exception, count(*) AS thrown
FROM events e
LEFT JOIN processes p USING (recording, process)
WHERE e.kind = 'exception' AND e.recording IN (SELECT recording FROM recordings)
GROUP BY p.name, e.name
ORDER BY thrown DESC, p.name, e.name;
