-- What is missing, by host and kind: the number of losses, and of lost records, or of lost bytes of Go traces, as far
-- as it is known.
--
-- Example:
--   host  kind               losses  records  bytes  of_unknown_size
--   test  unreported_switch  27      NULL     NULL   27
--   test  go_trace           1       NULL     8867   0
SELECT r.host, l.kind, count(*) AS losses,
       sum(CASE WHEN l.kind <> 'go_trace' THEN l.count END) AS records,
       sum(CASE WHEN l.kind = 'go_trace' THEN l.count END) AS bytes,
       sum(CASE WHEN l.count IS NULL THEN 1 ELSE 0 END) AS of_unknown_size
FROM losses l
JOIN recordings r USING (recording)
GROUP BY r.host, l.kind
ORDER BY losses DESC, r.host, l.kind;
