-- name: read_slot_capacity
SELECT (SELECT count(*) FROM pg_replication_slots) AS used,
       current_setting('max_replication_slots')::int8 AS max,
       (SELECT setting::int8 FROM pg_settings WHERE name = 'max_slot_wal_keep_size') AS keep
