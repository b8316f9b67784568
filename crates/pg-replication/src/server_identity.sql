-- name: timeline_and_start
SELECT CASE WHEN pg_is_in_recovery() THEN '00000000'
            ELSE left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) END,
       (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::int8::text
