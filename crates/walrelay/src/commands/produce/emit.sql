-- name: event_id
SELECT id::text FROM public.app_outbox
 WHERE aggregatetype = $1 AND aggregateid = $2 AND version = $3

-- name: payload_type
SELECT p.proargtypes[3]::regtype::text AS payload_type
  FROM pg_catalog.pg_proc AS p
 WHERE p.oid = to_regproc('public.app_outbox_emit')
