-- name: read
SELECT system_identifier, timeline, generation, settled_lsn, settled_xid::text AS settled_xid, updated_at,
       operation ->> 'kind' AS operation,
       greatest(pg_snapshot_xmax(pg_current_snapshot())::text::numeric - settled_xid::text::numeric, 0)::int8
         AS settled_age,
       extract(epoch FROM clock_timestamp() - updated_at)::float8 AS age,
       condition ->> 'phase' AS condition_phase,
       (condition -> 'reasons')::text AS condition_reasons,
       (condition ->> 'pid')::int AS condition_pid,
       (published ->> 'rows')::int8 AS published_rows,
       CASE WHEN published ->> 'day' = (now() AT TIME ZONE 'UTC')::date::text
            THEN (published ->> 'today')::int8 ELSE 0 END AS published_today,
       extract(epoch FROM clock_timestamp() - (published ->> 'at')::timestamptz)::float8 AS published_age,
       extract(epoch FROM clock_timestamp() - (condition ->> 'at')::timestamptz)::float8 AS condition_age
  FROM public.app_outbox_relay
 WHERE slot = $1

-- name: write
UPDATE public.app_outbox_relay
   SET settled_lsn = greatest(settled_lsn, $4),
       settled_xid = CASE WHEN operation ->> 'kind' = 'recovery' THEN settled_xid
                          ELSE greatest(settled_xid::text::numeric, $5::numeric)::text::xid8 END,
       published = CASE WHEN $6::int8 = 0 THEN published
                        ELSE jsonb_build_object(
                               'rows', coalesce((published ->> 'rows')::int8, 0) + $6,
                               'day', (now() AT TIME ZONE 'UTC')::date,
                               'today', CASE WHEN published ->> 'day' = (now() AT TIME ZONE 'UTC')::date::text
                                             THEN (published ->> 'today')::int8 ELSE 0 END + $6,
                               'at', now()) END,
       updated_at = now()
 WHERE slot = $1 AND timeline = $2 AND generation = $3
RETURNING coalesce((SELECT confirmed_flush_lsn FROM pg_catalog.pg_replication_slots WHERE slot_name = $1),
                   'FFFFFFFF/FFFFFFFF') AS confirmed,
          pg_snapshot_xmin(pg_current_snapshot())::text AS xmin, pg_current_wal_insert_lsn() AS wal_end

-- name: note_condition
UPDATE public.app_outbox_relay
   SET condition = jsonb_build_object(
         'phase', $4::text, 'reasons', $5::text::jsonb, 'at', clock_timestamp(),
         -- During a recovery, another session of the relay holds the slot.
         'pid', CASE WHEN operation ->> 'kind' = 'recovery'
                     THEN (SELECT active_pid FROM pg_catalog.pg_replication_slots WHERE slot_name = $1)
                     ELSE $6::int4 END)
 WHERE slot = $1 AND timeline = $2 AND generation = $3

-- name: note_wait
UPDATE public.app_outbox_relay AS r
   SET condition = jsonb_build_object(
         'phase', $2::text, 'reasons', $3::text::jsonb, 'pid', NULL, 'at', clock_timestamp())
 WHERE slot = $1
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots AS s
                    WHERE s.slot_name = r.slot AND s.active)

-- name: confirmed
SELECT coalesce((SELECT confirmed_flush_lsn FROM pg_catalog.pg_replication_slots WHERE slot_name = $1),
                'FFFFFFFF/FFFFFFFF') AS confirmed

-- name: horizon
SELECT pg_snapshot_xmin(pg_current_snapshot())::text AS xmin, pg_current_wal_insert_lsn() AS wal_end

-- name: slot_with_oldest
SELECT slot_name, confirmed_flush_lsn, failover,
       (CASE WHEN epoch + xmin > newest THEN epoch + xmin - 4294967296
             ELSE epoch + xmin END)::text::xid8 AS oldest
  FROM (SELECT slot_name, confirmed_flush_lsn, catalog_xmin::text::bigint AS xmin,
               newest, newest / 4294967296 * 4294967296 AS epoch,
               -- Through jsonb, which returns null for a column that a server before 17 lacks.
               (to_jsonb(s) ->> 'failover')::bool AS failover
          FROM pg_catalog.pg_replication_slots AS s,
               (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS newest) AS n
         WHERE slot_name = $1) AS slot

-- name: note_origin
WITH here AS (
  SELECT jsonb_build_object(
    'database', (SELECT oid::text FROM pg_database WHERE datname = current_database()),
    'tables', (SELECT jsonb_object_agg(name, to_regclass(name)::oid::text) FROM unnest($2::text[]) AS name)
  ) AS origin,
  (SELECT (to_jsonb(s) ->> 'failover')::bool FROM pg_catalog.pg_replication_slots AS s WHERE slot_name = $1) AS failover
)
UPDATE public.app_outbox_relay AS r
   SET origin = here.origin, failover = here.failover, written_xid = pg_current_xact_id()
  FROM here
 WHERE r.slot = $1
   AND ((r.origin, r.failover) IS DISTINCT FROM (here.origin, here.failover) OR r.xmin <> r.written_xid::xid)

-- name: is_same_origin
SELECT origin = jsonb_build_object(
         'database', (SELECT oid::text FROM pg_database WHERE datname = current_database()),
         'tables', (SELECT jsonb_object_agg(name, to_regclass(name)::oid::text) FROM unnest($2::text[]) AS name))
       AND pg_snapshot_xmax(pg_current_snapshot()) >= settled_xid
       AND xmin = written_xid::xid AS is_same
  FROM public.app_outbox_relay
 WHERE slot = $1

-- name: advance
UPDATE public.app_outbox_relay SET settled_lsn = greatest(settled_lsn, $2), updated_at = now()
 WHERE slot = $1

-- name: record_skipped
UPDATE public.app_outbox_relay SET last_skipped = $2::text::jsonb WHERE slot = $1

-- name: last_skipped
SELECT last_skipped::text AS last_skipped FROM public.app_outbox_relay WHERE slot = $1 AND last_skipped IS NOT NULL
