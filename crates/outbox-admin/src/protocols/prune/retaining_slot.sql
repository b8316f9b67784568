-- name: oldest_record
SELECT r.slot, r.settled_xid::text AS settled_xid,
       EXISTS (SELECT FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = r.slot) AS is_there
  FROM public.app_outbox_relay r ORDER BY r.settled_xid, 3, 1 LIMIT 1
