-- name: slots
SELECT slot_name::text, plugin::text, slot_type, database::text, active_pid, restart_lsn,
       confirmed_flush_lsn, wal_status, safe_wal_size, two_phase,
       (to_jsonb(s) ->> 'failover')::bool AS failover,
       to_jsonb(s) ->> 'invalidation_reason' AS invalidation_reason,
       (to_jsonb(s) ->> 'conflicting')::bool AS conflicting,
       CASE WHEN pg_is_in_recovery() THEN coalesce(pg_last_wal_replay_lsn(), '0/0')
            ELSE pg_current_wal_lsn()
       END AS wal_end
  FROM pg_catalog.pg_replication_slots s

-- name: create
SELECT lsn
  FROM (SELECT set_config('lock_timeout', '0', true) AS off OFFSET 0) AS wait,
       LATERAL pg_create_logical_replication_slot(CASE wait.off WHEN '0' THEN $1::text END, 'pgoutput', false, false)
