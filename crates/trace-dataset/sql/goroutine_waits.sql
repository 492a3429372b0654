-- Waits of goroutines by process and reason.
--
-- Example:
--   process  reason   waits  total      p50      p99
--   damaged  network  295    797770913  1515904  48546112
--   shop     network  357    591935874  1387648  4249984
--   damaged  select   403    511696340  399872   7034688
--   shop     select   483    505314177  410304   3951360
SELECT p.name AS process, s.reason, count(*) AS waits, sum(CAST(s.duration AS DECIMAL(38, 0))) AS total,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY s.duration) AS p50,
       percentile_cont(0.99) WITHIN GROUP (ORDER BY s.duration) AS p99
FROM goroutine_states s
JOIN goroutines g USING (recording, goroutine)
LEFT JOIN processes p USING (recording, process)
WHERE s.state = 'waiting' AND s.recording IN (SELECT recording FROM recordings)
GROUP BY p.name, s.reason
ORDER BY total DESC, s.reason;
