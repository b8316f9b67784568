-- name: trace_dispatch
SELECT (to_jsonb(d) - 'message')::text FROM public.app_outbox_dispatch AS d
 WHERE d.slot = ANY ($1) AND d.event_id = $2 LIMIT 1

-- name: dispatch_ids_like
SELECT DISTINCT event_id FROM public.app_outbox_dispatch
 WHERE slot = ANY ($1) AND starts_with(event_id, $2) ORDER BY 1 LIMIT 6
