-- The longest tasks, activities and requests, with the shares of their critical paths: on a CPU, waiting for a CPU or
-- for a P, in the garbage collector or another work of the runtime, waiting, blocked in the kernel, and not
-- known. They sum to 1; NULL is a task that is not among the longest ones of its recording. Tasks that had not ended
-- are left out.
--
-- Example:
--   process         kind      name                    duration   running  queued  runtime  waiting  blocked  unknown
--   aspire-managed  activity  Rust-DiagIpc-Test/Work  102262563  0        0       0        0        0        1
--   aspire-managed  activity  Rust-DiagIpc-Test/Work  78882948   0        0       0        0        0        1
--   aspire-managed  activity  Rust-DiagIpc-Test/Work  78806323   0        0       0        0        0        1
--   aspire-managed  activity  Rust-DiagIpc-Test/Work  78732143   0        0       0        0        0        1
WITH slowest AS (
  SELECT * FROM tasks
  WHERE NOT is_open AND recording IN (SELECT recording FROM recordings)
  ORDER BY duration DESC, recording, span LIMIT 100
), pieces AS (
  SELECT c.recording, c.span, c.duration,
         CASE WHEN c.during IS NOT NULL THEN 'runtime'
              WHEN c.what IN ('on_cpu', 'running', 'syscall') THEN 'running'
              WHEN c.what IN ('waits_for_cpu', 'waits_for_p', 'throttled', 'queued') THEN 'queued'
              WHEN c.what = 'waits' THEN 'waiting'
              WHEN c.what IN ('blocked', 'stopped') THEN 'blocked'
              ELSE 'unknown' END AS cause
  FROM critical_paths c
  JOIN slowest s USING (recording, span)
), sums AS (
  SELECT recording, span,
         sum(CASE WHEN cause = 'running' THEN duration ELSE 0 END) AS running,
         sum(CASE WHEN cause = 'queued' THEN duration ELSE 0 END) AS queued,
         sum(CASE WHEN cause = 'runtime' THEN duration ELSE 0 END) AS runtime,
         sum(CASE WHEN cause = 'waiting' THEN duration ELSE 0 END) AS waiting,
         sum(CASE WHEN cause = 'blocked' THEN duration ELSE 0 END) AS blocked,
         sum(CASE WHEN cause = 'unknown' THEN duration ELSE 0 END) AS unknown
  FROM pieces
  GROUP BY recording, span
)
SELECT p.name AS process, t.kind, t.name, t.duration,
       s.running * 1.0 / nullif(t.duration, 0) AS running,
       s.queued * 1.0 / nullif(t.duration, 0) AS queued,
       s.runtime * 1.0 / nullif(t.duration, 0) AS runtime,
       s.waiting * 1.0 / nullif(t.duration, 0) AS waiting,
       s.blocked * 1.0 / nullif(t.duration, 0) AS blocked,
       s.unknown * 1.0 / nullif(t.duration, 0) AS unknown
FROM slowest t
LEFT JOIN processes p ON p.recording = t.recording AND p.process = t.process
LEFT JOIN sums s ON s.recording = t.recording AND s.span = t.span
ORDER BY t.duration DESC, t.recording, t.span;
