-- name: edited_bytes
SELECT coalesce(sum(octet_length(d.message)), 0)::int8 AS bytes
  FROM public.app_outbox_dispatch AS d
 WHERE d.slot = ANY ($1) AND d.replay_id = '' AND d.edited_at IS NOT NULL
   AND d.status IN ('published', 'retrying')

-- name: edited
SELECT d.event_id, d.message
  FROM public.app_outbox_dispatch AS d
 WHERE d.slot = ANY ($1) AND d.replay_id = '' AND d.edited_at IS NOT NULL
   AND d.status IN ('published', 'retrying')
 ORDER BY d.edited_at
