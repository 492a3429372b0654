-- The recordings by host and kernel: how many, how much time from the first event of any source to the last one, for
-- how much of that the kernel's scheduler was recorded, how many of them are damaged or have losses. Answers about
-- a dataset are about these times only. Recordings that overlap count their common time twice.
--
-- Example:
--   host  kernel           recordings  recorded    scheduler   partial  with_losses
--   test  NULL             6           9941528719  NULL        1        1
--   test  6.18.44-fc-v595  3           2077823906  2077823906  0        2
SELECT r.host, r.kernel, count(*) AS recordings,
       sum(r.end_monotonic - r.start_monotonic) AS recorded,
       sum(r.sched_end_monotonic - r.sched_start_monotonic) AS scheduler,
       sum(CASE WHEN r.is_partial THEN 1 ELSE 0 END) AS partial,
       sum(CASE WHEN l.losses > 0 THEN 1 ELSE 0 END) AS with_losses
FROM recordings r
LEFT JOIN (SELECT recording, count(*) AS losses FROM losses GROUP BY recording) l USING (recording)
GROUP BY r.host, r.kernel
ORDER BY recorded DESC, r.host, r.kernel;
