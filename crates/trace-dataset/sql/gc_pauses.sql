-- Stop-the-world pauses by runtime, process and reason: their number, percentiles and sum.
--
-- Example:
--   runtime  process   reason                pauses  p50     p99      longest  total
--   .NET     Workload  Gc                    43      366771  1008881  1008881  19598466
--   Go       shop      GC sweep termination  13      151296  358912   358912   2189888
--   Go       damaged   GC sweep termination  12      151296  358912   358912   2081344
--   Go       shop      GC mark termination   13      27648   320832   320832   1065024
SELECT p.runtime, p.name AS process, s.reason, count(*) AS pauses,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY s.duration) AS p50,
       percentile_cont(0.99) WITHIN GROUP (ORDER BY s.duration) AS p99,
       max(s.duration) AS longest, sum(s.duration) AS total
FROM pauses s
LEFT JOIN processes p USING (recording, process)
WHERE s.recording IN (SELECT recording FROM recordings)
GROUP BY p.runtime, p.name, s.reason
ORDER BY total DESC, p.name, s.reason;
