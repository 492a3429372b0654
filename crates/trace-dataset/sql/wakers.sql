-- Who woke the threads of a process, and how often. Interrupts have no waker.
--
-- Example:
--   process          context   waker  wakeups
--   memfd:sealed-91  hard_irq  NULL   248
--   sh               task      true   248
--   triscope         hard_irq  NULL   205
--   rcu_preempt      soft_irq  NULL   189
WITH counts AS (
  SELECT recording, entity, context, waker_thread, count(*) AS wakeups
  FROM wakeups
  WHERE kind = 'wakes' AND entity_kind = 'thread' AND recording IN (SELECT recording FROM recordings)
  GROUP BY recording, entity, context, waker_thread
)
SELECT p.name AS process, w.context, f.name AS waker, sum(w.wakeups) AS wakeups
FROM counts w
JOIN threads t ON t.recording = w.recording AND t.thread = w.entity
LEFT JOIN processes p ON p.recording = w.recording AND p.process = t.process
LEFT JOIN threads f ON f.recording = w.recording AND f.thread = w.waker_thread
GROUP BY p.name, w.context, f.name
ORDER BY wakeups DESC, p.name, f.name;
