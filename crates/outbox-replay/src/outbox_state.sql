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

-- name: settled_lsn
SELECT least(
         (SELECT coalesce(max(r.settled_lsn), '0/0') FROM public.app_outbox_relay AS r
           WHERE r.slot = ANY ($1)),
         CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
              ELSE pg_catalog.pg_current_wal_lsn() END) AS settled_lsn
