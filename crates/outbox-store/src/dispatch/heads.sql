-- name: heads
WITH RECURSIVE head AS (
  (SELECT topic, ordering_key, next_attempt_at IS NOT NULL AS is_timed
     FROM public.app_outbox_dispatch
    WHERE slot = $1 AND status = 'retrying' AND ordering_key <> ''
      AND (topic, ordering_key) > ($2, $3)
    ORDER BY topic, ordering_key, commit_lsn, tx_index
    LIMIT 1)
  UNION ALL
  SELECT next.*
    FROM head
   CROSS JOIN LATERAL (
      SELECT d.topic, d.ordering_key, d.next_attempt_at IS NOT NULL AS is_timed
        FROM public.app_outbox_dispatch d
       WHERE d.slot = $1 AND d.status = 'retrying' AND d.ordering_key <> ''
         AND (d.topic, d.ordering_key) > (head.topic, head.ordering_key)
       ORDER BY d.topic, d.ordering_key, d.commit_lsn, d.tx_index
       LIMIT 1
   ) AS next
)
SELECT topic, ordering_key, is_timed FROM head LIMIT $4
