-- name: versions
SELECT aggregateid, version FROM public.app_outbox_aggregate
 WHERE aggregatetype = $1 AND aggregateid = ANY ($2) ORDER BY 1

-- name: forget
DELETE FROM public.app_outbox_aggregate WHERE aggregatetype = $1 AND aggregateid = $2 AND version = $3

-- part: settings
SET lock_timeout = '100ms'; SET synchronous_commit = off
