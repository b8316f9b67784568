-- name: holder
SELECT s.active_pid, nullif(a.application_name, ''), s.confirmed_flush_lsn, r.reply_time
  FROM pg_replication_slots s
  LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid
  LEFT JOIN pg_stat_replication r ON r.pid = s.active_pid
 WHERE s.slot_name = $1 AND s.active_pid IS NOT NULL

-- name: end_of_wal
SELECT CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_insert_lsn() END
