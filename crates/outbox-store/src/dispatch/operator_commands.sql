-- name: lock
SELECT status FROM public.app_outbox_dispatch
 WHERE slot = $1 AND event_id = $2 FOR UPDATE

-- name: refuse_incomplete
SELECT event_id, error_code FROM public.app_outbox_dispatch
 WHERE slot = $1 AND event_id = ANY ($2) AND error_code = ANY ($3)
   AND status IN ('dead', 'discarded')
 LIMIT 1

-- name: wake_next
WITH head AS MATERIALIZED (
  SELECT d.event_id
    FROM public.app_outbox_dispatch d
   WHERE d.slot = $1 AND d.status = 'retrying' AND d.event_id = (
     SELECT n.event_id
       FROM public.app_outbox_dispatch g
      CROSS JOIN LATERAL (
        SELECT event_id FROM public.app_outbox_dispatch
         WHERE slot = $1 AND topic = g.topic AND ordering_key = g.ordering_key AND status = 'retrying'
         ORDER BY commit_lsn, tx_index
         LIMIT 1
      ) AS n
      WHERE g.slot = $1 AND g.event_id = $2 AND g.ordering_key <> '')
     FOR UPDATE SKIP LOCKED
)
UPDATE public.app_outbox_dispatch
   SET next_attempt_at = now()
 WHERE slot = $1 AND event_id = ANY (ARRAY(SELECT event_id FROM head))

-- name: ids_like
SELECT event_id FROM public.app_outbox_dispatch
 WHERE slot = $1 AND starts_with(event_id, $2) ORDER BY event_id LIMIT 6
