-- name: prune
WITH oldest AS (
  (SELECT event_id, commit_lsn FROM public.app_outbox_dispatch
    WHERE slot = $1 AND status = 'published' AND updated_at < now() - make_interval(secs => $2)
    ORDER BY updated_at LIMIT $3)
  UNION ALL
  (SELECT event_id, commit_lsn FROM public.app_outbox_dispatch
    WHERE slot = $1 AND status = 'discarded' AND updated_at < now() - make_interval(secs => $2)
    ORDER BY updated_at LIMIT $3)
), locked AS MATERIALIZED (
  SELECT event_id FROM public.app_outbox_dispatch
   WHERE slot = $1 AND coalesce(status, '') IN ('published', 'discarded')
     AND event_id = ANY (ARRAY(
       SELECT event_id FROM oldest
        WHERE commit_lsn < coalesce(
              (SELECT confirmed_flush_lsn FROM pg_catalog.pg_replication_slots WHERE slot_name = $1),
              'FFFFFFFF/FFFFFFFF')))
     FOR UPDATE SKIP LOCKED
)
DELETE FROM public.app_outbox_dispatch
 WHERE slot = $1 AND event_id = ANY (ARRAY(SELECT event_id FROM locked))

-- name: all_keys
WITH RECURSIVE head AS (
  (SELECT topic, ordering_key, commit_lsn, tx_index, next_attempt_at, attempts, error_code
     FROM public.app_outbox_dispatch
    WHERE slot = $1 AND status = 'retrying'
    ORDER BY topic, ordering_key, commit_lsn, tx_index
    LIMIT 1)
  UNION ALL
  SELECT next.*
    FROM head AS r
   CROSS JOIN LATERAL (
      SELECT d.topic, d.ordering_key, d.commit_lsn, d.tx_index, d.next_attempt_at, d.attempts, d.error_code
        FROM public.app_outbox_dispatch d
       WHERE d.slot = $1 AND d.status = 'retrying' AND (d.topic, d.ordering_key) > (r.topic, r.ordering_key)
       ORDER BY d.topic, d.ordering_key, d.commit_lsn, d.tx_index
       LIMIT 1
   ) AS next
), dead AS (
  (SELECT topic, ordering_key, commit_lsn, tx_index
     FROM public.app_outbox_dispatch
    WHERE $2 AND slot = $1 AND status = 'dead' AND ordering_key <> ''
    ORDER BY topic, ordering_key, commit_lsn, tx_index
    LIMIT 1)
  UNION ALL
  SELECT next.*
    FROM dead AS r
   CROSS JOIN LATERAL (
      SELECT d.topic, d.ordering_key, d.commit_lsn, d.tx_index
        FROM public.app_outbox_dispatch d
       WHERE d.slot = $1 AND d.status = 'dead' AND d.ordering_key <> ''
         AND (d.topic, d.ordering_key) > (r.topic, r.ordering_key)
       ORDER BY d.topic, d.ordering_key, d.commit_lsn, d.tx_index
       LIMIT 1
   ) AS next
)
SELECT topic, ordering_key,
       dead.commit_lsn IS NOT NULL AND (head.commit_lsn IS NULL
         OR (dead.commit_lsn, dead.tx_index) < (head.commit_lsn, head.tx_index)) AS is_held,
       ordering_key <> '' AND coalesce(head.error_code, '') = 'SPILLED' AS is_spilled,
       extract(epoch FROM CASE WHEN ordering_key <> '' THEN head.next_attempt_at ELSE (
           SELECT loose.next_attempt_at
             FROM public.app_outbox_dispatch loose
            WHERE loose.slot = $1 AND loose.topic = head.topic AND loose.ordering_key = ''
              AND loose.status = 'retrying' AND loose.commit_lsn < $3
            ORDER BY loose.next_attempt_at
            LIMIT 1
         ) END - now())::float8 AS next_attempt_in,
       coalesce(head.attempts, 0) AS attempts
  FROM (SELECT * FROM head WHERE commit_lsn < $3) AS head
  FULL JOIN (SELECT * FROM dead WHERE commit_lsn < $3) AS dead USING (topic, ordering_key)

-- name: heads
SELECT k.topic, k.ordering_key,
       hold.slot IS NOT NULL OR dead.commit_lsn IS NOT NULL AND (head.commit_lsn IS NULL
         OR (dead.commit_lsn, dead.tx_index) < (head.commit_lsn, head.tx_index)) AS is_held,
       coalesce(head.error_code, '') = 'SPILLED' AS is_spilled,
       CASE WHEN hold.slot IS NOT NULL THEN 60
            ELSE extract(epoch FROM coalesce(head.next_attempt_at, loose.next_attempt_at) - now())
       END::float8 AS next_attempt_in,
       coalesce(head.attempts, 0) AS attempts
  FROM unnest($3::text[], $4::text[]) AS k(topic, ordering_key)
  LEFT JOIN LATERAL (
    SELECT commit_lsn, tx_index, next_attempt_at, attempts, error_code
      FROM public.app_outbox_dispatch
     WHERE k.ordering_key <> '' AND slot = $1 AND topic = k.topic AND ordering_key = k.ordering_key
       AND status = 'retrying' AND commit_lsn < $5
     ORDER BY commit_lsn, tx_index
     LIMIT 1
  ) AS head ON true
  LEFT JOIN LATERAL (
    SELECT next_attempt_at, true AS is_there
      FROM public.app_outbox_dispatch
     WHERE k.ordering_key = '' AND slot = $1 AND topic = k.topic AND ordering_key = ''
       AND status = 'retrying' AND commit_lsn < $5
     ORDER BY next_attempt_at
     LIMIT 1
  ) AS loose ON true
  LEFT JOIN LATERAL (
    SELECT commit_lsn, tx_index
      FROM public.app_outbox_dispatch
     WHERE $2 AND k.ordering_key <> '' AND slot = $1 AND topic = k.topic
       AND ordering_key = k.ordering_key AND status = 'dead' AND commit_lsn < $5
     ORDER BY commit_lsn, tx_index
     LIMIT 1
  ) AS dead ON true
  LEFT JOIN LATERAL (
    SELECT slot
      FROM public.app_outbox_hold
     WHERE slot = $1 AND topic = k.topic AND ordering_key = k.ordering_key
     LIMIT 1
  ) AS hold ON true
 WHERE hold.slot IS NOT NULL OR head.commit_lsn IS NOT NULL OR loose.is_there OR dead.commit_lsn IS NOT NULL
