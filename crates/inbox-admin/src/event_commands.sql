-- part: columns
i.event_id, i.status, i.attempts, i.ordering_key, i.event_type, i.version,
i.commit_lsn::text AS commit_lsn, i.tx_index, i.occurred_at, i.received_at, i.done_at,
CASE WHEN i.next_attempt_at < 'infinity' THEN i.next_attempt_at END AS next_attempt_at,
coalesce(i.next_attempt_at = 'infinity' OR k.held_by = i.event_id, false) AS holds_its_key,
i.error_code, i.last_error, coalesce(octet_length(i.message), 0) AS message_bytes

-- part: rows
FROM public.app_inbox AS i LEFT JOIN public.app_inbox_key AS k
   ON k.consumer = i.consumer AND k.generation = i.generation AND k.ordering_key = i.ordering_key
WHERE i.consumer = $1 AND i.generation = $2

-- part: condition
AND i.status = ANY ($3) AND ($4::text IS NULL OR i.ordering_key = $4)
AND ($5::text IS NULL OR i.error_code = $5)
AND ($6::float8 IS NULL OR i.received_at < coalesce($7, now()) - make_interval(secs => $6))
AND ($7::timestamptz IS NULL OR i.received_at < $7)
AND ($8::text IS NULL OR i.event_type = $8)

-- part: behind
AND ($9::text IS NULL
     OR (coalesce(i.commit_lsn, 'FFFFFFFF/FFFFFFFF'), coalesce(i.tx_index, 2147483647), i.arrival)
        > (SELECT coalesce(b.commit_lsn, 'FFFFFFFF/FFFFFFFF'), coalesce(b.tx_index, 2147483647), b.arrival
             FROM public.app_inbox AS b
            WHERE b.consumer = $1 AND b.generation = $2 AND b.event_id = $9))
AND ($10::text IS NULL
     OR (coalesce(i.commit_lsn, 'FFFFFFFF/FFFFFFFF'), coalesce(i.tx_index, 2147483647)::int8)
        > ($10::pg_lsn, $11::int8))
ORDER BY i.commit_lsn, i.tx_index, i.arrival

-- name: ids_like
SELECT event_id FROM public.app_inbox
 WHERE consumer = $1 AND generation = $2 AND starts_with(event_id, $3) ORDER BY event_id LIMIT 6

-- name: find
SELECT consumer, generation FROM public.app_inbox_consumer
 WHERE consumer = $1 OR $1 IS NULL ORDER BY consumer

-- name: ordering_key
SELECT ordering_key FROM public.app_inbox
 WHERE consumer = $1 AND generation = $2 AND event_id = $3

-- name: give_up_version
UPDATE public.app_inbox_key AS k SET version = i.version, updated_at = now()
  FROM public.app_inbox AS i
 WHERE i.consumer = $1 AND i.generation = $2 AND i.event_id = $3
   AND k.consumer = $1 AND k.generation = $2 AND k.ordering_key = i.ordering_key
   AND k.version < i.version

-- name: decided
SELECT count(*) FILTER (WHERE status <> 'discarded' AND edited_at IS NOT NULL),
       count(*) FILTER (WHERE status = 'discarded' AND error_code IS DISTINCT FROM 'BEHIND_POSITION'),
       count(*) FILTER (WHERE status IN ('retrying', 'dead'))
  FROM public.app_inbox WHERE consumer = $1 AND generation = $2

-- name: earlier
SELECT count(*), min(coalesce(i.occurred_at, i.received_at)),
       (SELECT c.pruned_before FROM public.app_inbox_consumer AS c WHERE c.consumer = $1)
  FROM public.app_inbox AS i
 WHERE i.consumer = $1 AND i.generation = $2 AND i.status <> 'discarded'
   AND coalesce(i.occurred_at, i.received_at) < $3
