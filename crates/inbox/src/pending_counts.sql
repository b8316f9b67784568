-- name: waiting
WITH due AS MATERIALIZED (
  SELECT i.ordering_key, i.received_at
    FROM public.app_inbox AS i
   WHERE i.consumer = $1 AND i.generation = $2 AND i.status = 'retrying' AND i.next_attempt_at IS NOT NULL
   ORDER BY i.next_attempt_at LIMIT $3
), dead AS MATERIALIZED (
  SELECT i.ordering_key, i.received_at, i.next_attempt_at = 'infinity' AS holds
    FROM public.app_inbox AS i
   WHERE i.consumer = $1 AND i.generation = $2 AND i.status = 'dead'
   ORDER BY i.received_at LIMIT $3
), holding AS (
  SELECT ordering_key, received_at FROM due
  UNION ALL
  SELECT ordering_key, received_at FROM dead WHERE holds
)
SELECT (SELECT count(*)
          FROM (SELECT FROM public.app_inbox AS i
                 WHERE i.consumer = $1 AND i.generation = $2 AND i.status = 'retrying'
                 ORDER BY i.ordering_key, i.commit_lsn, i.tx_index, i.arrival LIMIT $3) AS r),
       (SELECT count(*) FROM dead),
       (SELECT count(DISTINCT ordering_key) FROM holding WHERE ordering_key <> ''),
       (SELECT extract(epoch FROM pg_catalog.now() - min(received_at))::float8 FROM holding),
       (SELECT count(*)
          FROM (SELECT FROM public.app_inbox_key AS k
                 WHERE k.consumer = $1 AND k.generation = $2 AND k.implausible > 0 LIMIT $3) AS i)

-- name: stuck
SELECT s.event_id, s.error_code, pg_catalog.split_part(s.last_error, E'\n', 1), count(*) OVER ()
  FROM (SELECT * FROM public.app_inbox AS i
         WHERE i.consumer = $1 AND i.generation = $2 AND i.status = 'retrying' AND i.next_attempt_at IS NOT NULL
         ORDER BY i.next_attempt_at LIMIT $4) AS s
 WHERE EXISTS (SELECT FROM pg_catalog.unnest($3::text[]) AS code(beginning)
                WHERE pg_catalog.starts_with(s.error_code, code.beginning))
   AND s.received_at < pg_catalog.now() - interval '10 seconds'
 ORDER BY s.received_at LIMIT 1
