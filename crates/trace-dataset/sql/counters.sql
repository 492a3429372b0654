-- Counters by process, entity of it and name: number of values, least, greatest and mean value. The mean is that of the
-- values, not weighted by time. Values that are not finite are left out. Entities are the parts of the heap of .NET, and
-- its thread pool; NULL is the process.
--
-- Example:
--   process   of_name      name                                unit  samples  least      mean       greatest
--   shop      NULL         /memory/classes/heap/objects:bytes  B     1179     2.875e+06  4.396e+06  5.792e+06
--   damaged   NULL         /memory/classes/heap/objects:bytes  B     957      2.875e+06  4.397e+06  5.792e+06
--   Workload  thread pool  workers                             NULL  153      1          2.948      4
--   shop      NULL         /sched/gomaxprocs:threads           NULL  28       2          2          2
SELECT p.name AS process, c.of_name, c.name, c.unit, count(*) AS samples,
       min(c.value) AS least, avg(c.value) AS mean, max(c.value) AS greatest
FROM counters c
LEFT JOIN processes p USING (recording, process)
WHERE c.recording IN (SELECT recording FROM recordings) AND abs(c.value) < CAST('Infinity' AS DOUBLE)
GROUP BY p.name, c.of_name, c.name, c.unit
ORDER BY samples DESC, p.name, c.of_name, c.name;
