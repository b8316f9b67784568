-- name: snapshot_with_end
SELECT pg_current_snapshot()::text AS snapshot,
       (pg_current_wal_insert_lsn() - '0/0')::text AS wal_end
