-- name: leftover_records
SELECT r.slot, extract(epoch FROM now() - r.updated_at)::float8 AS age
  FROM public.app_outbox_relay r
 WHERE r.slot <> $1 AND r.operation IS NULL
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = r.slot)
 ORDER BY r.slot LIMIT 100

-- name: local_time_zone
-- The time zone of new sessions, unless it is UTC all year.
SELECT z.reset_val AS time_zone FROM pg_catalog.pg_settings z
 WHERE CASE WHEN z.name = 'TimeZone' THEN EXISTS (
         SELECT FROM (VALUES (timestamp '2026-01-15 12:00'), (timestamp '2026-07-15 12:00')) AS v(moment)
          WHERE v.moment AT TIME ZONE z.reset_val <> v.moment AT TIME ZONE 'UTC') END

-- name: neighbours
SELECT ARRAY(SELECT pubname::text FROM pg_catalog.pg_publication ORDER BY 1 LIMIT 1000) AS publications,
       ARRAY(SELECT slot_name::text FROM pg_catalog.pg_replication_slots
              WHERE database = current_database() ORDER BY 1 LIMIT 1000) AS slots,
       ARRAY(SELECT n.nspname || '.' || c.relname
               FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
              WHERE c.relkind IN ('r', 'p') AND n.nspname NOT IN ('pg_catalog', 'information_schema')
              ORDER BY 1 LIMIT 5000) AS tables

-- name: schema_access
SELECT has_schema_privilege(to_regnamespace('public'), 'USAGE') AS is_usable

-- name: server
SELECT current_setting('server_version_num')::int8 AS version_num,
       current_database()::text AS database,
       getdatabaseencoding()::text AS encoding,
       pg_is_in_recovery() AS in_recovery,
       EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'supabase_admin') AS is_supabase,
       current_setting('wal_level') AS wal_level,
       current_setting('max_replication_slots')::int8 AS replication_slots_max,
       (SELECT count(*) FROM pg_catalog.pg_replication_slots) AS replication_slots,
       current_setting('max_wal_senders')::int8 AS wal_senders_max,
       (SELECT count(*) FROM pg_catalog.pg_stat_get_wal_senders()) AS wal_senders,
       (SELECT setting::int8 FROM pg_catalog.pg_settings WHERE name = 'max_slot_wal_keep_size')
         AS slot_wal_keep_megabytes,
       (SELECT setting::int8 FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout')
         AS wal_sender_timeout_millis,
       rolname::text AS role,
       -- On Amazon RDS, no role gets the attribute, and membership in this role has its effect.
       rolreplication OR rolsuper OR EXISTS (
         SELECT FROM pg_catalog.pg_roles r
          WHERE r.rolname = 'rds_replication' AND pg_has_role(current_user, r.oid, 'USAGE')
       ) AS may_replicate,
       CASE WHEN NOT rolsuper THEN least(nullif(rolconnlimit, -1), (
         SELECT nullif(datconnlimit, -1) FROM pg_catalog.pg_database
          WHERE datname = current_database())) END AS connections_max,
       CASE WHEN rolvaliduntil < 'infinity' THEN
         greatest(extract(epoch FROM rolvaliduntil - now()), 0)::float8 END AS password_left,
       ARRAY(SELECT name FROM pg_catalog.pg_settings WHERE name = ANY ($1) ORDER BY name) AS limits,
       ARRAY(SELECT setting FROM pg_catalog.pg_settings WHERE name = ANY ($1) ORDER BY name)
         AS limit_values
  FROM pg_catalog.pg_roles
 WHERE rolname = current_user
