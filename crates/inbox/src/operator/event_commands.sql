-- part: columns
json_build_object(
  'event_id', i.event_id, 'status', i.status, 'attempts', i.attempts, 'ordering_key', i.ordering_key,
  'event_type', i.event_type, 'version', i.version, 'commit_lsn', i.commit_lsn, 'tx_index', i.tx_index,
  'occurred_at', i.occurred_at, 'received_at', i.received_at, 'done_at', i.done_at,
  'next_attempt_at', CASE WHEN i.next_attempt_at < 'infinity' THEN i.next_attempt_at END,
  'holds_its_key', coalesce(i.next_attempt_at = 'infinity' OR k.held_by = i.event_id, false),
  'error_code', i.error_code, 'last_error', i.last_error,
  'message_bytes', coalesce(octet_length(i.message), 0))

-- part: rows
FROM public.app_inbox AS i LEFT JOIN public.app_inbox_key AS k
   ON k.consumer = i.consumer AND k.generation = i.generation AND k.ordering_key = i.ordering_key
WHERE i.consumer = $1 AND i.generation = $2

-- name: find
SELECT consumer, generation FROM public.app_inbox_consumer
 WHERE consumer = $1 OR $1 IS NULL ORDER BY consumer

-- name: dead_events
SELECT event_id FROM public.app_inbox
 WHERE consumer = $1 AND generation = $2 AND status = 'dead' AND message IS NOT NULL
 ORDER BY commit_lsn, tx_index, arrival

-- name: ordering_key
SELECT ordering_key FROM public.app_inbox
 WHERE consumer = $1 AND generation = $2 AND event_id = $3

-- name: give_up_version
UPDATE public.app_inbox_key AS k SET version = i.version
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
