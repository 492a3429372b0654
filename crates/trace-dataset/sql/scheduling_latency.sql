-- How long threads waited for a CPU until they ran, by host, release of the kernel and process.
--
-- Example:
--   host  kernel           process        waits  p50       p99        longest    total
--   test  6.18.44-fc-v595  rustc          553    13326049  82824109   136001858  10790618358
--   test  6.18.44-fc-v595  sh             403    10970     181243510  219728427  4099662361
--   test  6.18.44-fc-v595  clippy-driver  166    11304678  51974487   82981099   2651447819
--   test  6.18.44-fc-v595  triscope       415    797990    44158861   79968697   2339800633
SELECT r.host, r.kernel, p.name AS process, count(s.latency) AS waits,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY s.latency) AS p50,
       percentile_cont(0.99) WITHIN GROUP (ORDER BY s.latency) AS p99,
       max(s.latency) AS longest, sum(CAST(s.latency AS DECIMAL(38, 0))) AS total
FROM recordings r
JOIN threads t USING (recording)
LEFT JOIN processes p ON p.recording = t.recording AND p.process = t.process
JOIN sched s ON s.recording = t.recording AND s.thread = t.thread
WHERE s.latency IS NOT NULL
GROUP BY r.host, r.kernel, p.name
ORDER BY total DESC, r.host, p.name;
