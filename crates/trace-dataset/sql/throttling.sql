-- CPU quotas that were used up: by host and process of the cgroup, throttled time, periods, and throttled time by the
-- time of the recording.
--
-- Example:
--   host  process  cgroup                   throttled  periods  share
--   test  sh       /triscope-answers-21848  500759407  9        0.4271
--   test  grep     /triscope-answers-21848  191934248  3        0.1637
SELECT r.host, p.name AS process, p.cgroup, sum(s.throttled) AS throttled, sum(s.periods) AS periods,
       sum(s.throttled) * 1.0 / max(r.end_monotonic - r.begin_monotonic) AS share
FROM throttles s
JOIN recordings r USING (recording)
LEFT JOIN processes p ON p.recording = s.recording AND p.process = s.process
GROUP BY r.host, r.recording, p.name, p.cgroup
ORDER BY throttled DESC, r.host, p.name;
