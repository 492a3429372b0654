-- CPU quotas that were used up: by host and directory of the cgroup, the first name of a process in it or below it, the
-- most processes that a reading was of, throttled time, periods, and throttled time by the time in which the recordings
-- that have it recorded the kernel's scheduler. A reading counts once, not for each process. Recordings of older versions
-- lack the directory: their cgroup is that of the processes, or NULL if these are in several ones.
--
-- Example:
--   host  cgroup                                    process  processes  throttled  periods  share
--   test  /sys/fs/cgroup/cpu/triscope-answers-9058  grep     3          623186217  10       0.5876
WITH readings AS (
  -- A process that came later has the reading with another begin.
  SELECT s.recording, coalesce(s.cgroup, CASE WHEN min(p.cgroup) = max(p.cgroup) THEN min(p.cgroup) END) AS cgroup,
         s.throttled, max(s.periods) AS periods, min(p.name) AS process, count(*) AS processes
  FROM throttles s
  LEFT JOIN processes p ON p.recording = s.recording AND p.process = s.process
  GROUP BY s.recording, s.cgroup, s.monotonic, s.throttled
), cgroups AS (
  SELECT recording, cgroup, min(process) AS process, max(processes) AS processes, sum(throttled) AS throttled,
         sum(periods) AS periods
  FROM readings
  GROUP BY recording, cgroup
)
SELECT r.host, c.cgroup, min(c.process) AS process, max(c.processes) AS processes, sum(c.throttled) AS throttled,
       sum(c.periods) AS periods,
       sum(c.throttled) * 1.0 / sum(coalesce(r.sched_end_monotonic - r.sched_start_monotonic,
                                             r.end_monotonic - r.start_monotonic)) AS share
FROM cgroups c
JOIN recordings r USING (recording)
GROUP BY r.host, c.cgroup
ORDER BY throttled DESC, r.host, c.cgroup;
