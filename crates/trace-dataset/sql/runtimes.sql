-- Processes by runtime and name, with the hosts that run them.
--
-- Example:
--   runtime  process         processes  hosts
--   .NET     aspire-managed  2          1
--   .NET     Workload        1          1
--   .NET     Workload.dll    1          1
--   Go       damaged         1          1
SELECT p.runtime, p.name AS process, count(*) AS processes, count(DISTINCT r.host) AS hosts
FROM processes p
JOIN recordings r USING (recording)
WHERE p.runtime IS NOT NULL
GROUP BY p.runtime, p.name
ORDER BY processes DESC, p.runtime, p.name;
