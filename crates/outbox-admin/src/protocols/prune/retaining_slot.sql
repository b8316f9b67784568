-- name: oldest_record
SELECT r.slot, age(r.settled_xid::xid) AS age,
       EXISTS (SELECT FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = r.slot) AS is_there
  FROM public.app_outbox_relay r ORDER BY 2 DESC, 3, 1 LIMIT 1
