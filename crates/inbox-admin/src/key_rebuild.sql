-- name: decided
SELECT count(*) FILTER (WHERE status <> 'discarded' AND edited_at IS NOT NULL),
       count(*) FILTER (WHERE status = 'discarded' AND error_code IS DISTINCT FROM 'BEHIND_POSITION'),
       count(*) FILTER (WHERE status IN ('retrying', 'dead'))
  FROM public.app_inbox WHERE consumer = $1 AND generation = $2 AND ordering_key = ANY ($3)

-- name: applied
SELECT event_id FROM public.app_inbox
 WHERE consumer = $1 AND generation = $2 AND ordering_key = ANY ($3) AND status IN ('done', 'late')

-- name: set_aside
UPDATE public.app_inbox SET generation = -generation
 WHERE consumer = $1 AND generation = $2 AND ordering_key = ANY ($3)

-- name: forget_positions
UPDATE public.app_inbox_key
   SET commit_lsn = NULL, tx_index = NULL, system_identifier = NULL, version = NULL, held_by = NULL,
       updated_at = now()
 WHERE consumer = $1 AND generation = $2 AND ordering_key = ANY ($3)

-- name: forget
WITH old AS (DELETE FROM public.app_inbox AS o
       WHERE o.consumer = $1 AND o.generation = 0 - $2::int4 AND o.ordering_key = ANY ($3)
       RETURNING o.event_id, o.status)
SELECT count(*), min(n.event_id || ': ' || n.last_error) FILTER (WHERE n.last_error IS NOT NULL)
  FROM old LEFT JOIN public.app_inbox AS n
       ON n.consumer = $1 AND n.generation = $2 AND n.event_id = old.event_id
 WHERE old.status IN ('done', 'late') AND (n.status IN ('done', 'late')) IS NOT TRUE
