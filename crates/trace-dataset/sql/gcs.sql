-- Garbage collections by process, runtime and name: their number and durations. In Go the duration is that of the
-- concurrent mark phase; in .NET the name is the generation and the reason. Those that had not ended are left out.
--
-- Example:
--   process   runtime  name               gcs  total     p50      p99      longest
--   damaged   Go       mark               11   19457152  1041152  9368320  9368320
--   shop      Go       mark               13   13426432  1041152  1912256  1912256
--   Workload  .NET     gen 1, AllocSmall  24   6311176   264890   619901   619901
--   Workload  .NET     gen 2, AllocSmall  5    3936243   772331   873111   873111
SELECT p.name AS process, p.runtime, g.name, count(*) AS gcs,
       sum(g.duration) AS total,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY g.duration) AS p50,
       percentile_cont(0.99) WITHIN GROUP (ORDER BY g.duration) AS p99,
       max(g.duration) AS longest
FROM gc g
LEFT JOIN processes p USING (recording, process)
WHERE g.kind = 'gc' AND NOT g.is_open AND g.recording IN (SELECT recording FROM recordings)
GROUP BY p.name, p.runtime, g.name
ORDER BY total DESC, p.name, g.name;
