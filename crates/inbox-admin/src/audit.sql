-- name: settled_by
SELECT r.settled_xid::text FROM public.app_outbox_relay AS r WHERE r.slot = ANY ($1)
 ORDER BY r.settled_xid LIMIT 1

-- name: trace
SELECT (to_jsonb(i) - 'message' || jsonb_build_object(
          'next_attempt_at', nullif(i.next_attempt_at, 'infinity'),
          'holds_its_key', coalesce(i.next_attempt_at = 'infinity' OR k.held_by = i.event_id, false)))::text
  FROM public.app_inbox AS i LEFT JOIN public.app_inbox_key AS k
    ON k.consumer = i.consumer AND k.generation = i.generation AND k.ordering_key = i.ordering_key
 WHERE i.consumer = $1 AND i.generation = $2 AND i.event_id = $3

-- name: may_be_absent
SELECT coalesce(greatest(pruned_before, registered_at) > coalesce($2::text::timestamptz, '-infinity'), false)
  FROM public.app_inbox_consumer WHERE consumer = $1

-- name: begin
SELECT c.pruned_before,
       least(c.registered_at,
             (SELECT min(i.occurred_at) FROM public.app_inbox AS i
               WHERE i.consumer = c.consumer AND i.generation = $2)) AS began
  FROM public.app_inbox_consumer AS c WHERE c.consumer = $1

-- name: held
SELECT event_id, status FROM public.app_inbox
 WHERE consumer = $1 AND generation = $2 AND event_id = ANY ($3)
   AND NOT (status = 'discarded' AND error_code IS NOT DISTINCT FROM 'BEHIND_POSITION')

-- name: seen
SELECT floor(extract(epoch FROM occurred_at) / 60)::int8, count(*),
       bit_xor(hashtextextended(event_id, 0)), status, min(occurred_at)
  FROM public.app_inbox
 WHERE consumer = $1 AND generation = $2 AND occurred_at >= $3 AND occurred_at < $4
   AND NOT (status = 'discarded' AND error_code IS NOT DISTINCT FROM 'BEHIND_POSITION')
 GROUP BY 1, status
