-- name: trace_dispatch
SELECT (to_jsonb(d) - 'message')::text FROM public.app_outbox_dispatch AS d
 WHERE d.slot = ANY ($1) AND d.event_id = $2 LIMIT 1
