-- name: event_id
SELECT id::text FROM public.app_outbox
 WHERE aggregatetype = $1 AND aggregateid = $2 AND version = $3
