-- name: tables
SELECT c.relname::text AS name, format('%I.%I', n.nspname, c.relname) AS staged,
       ln.nspname::text AS live_schema, lc.relname::text AS live_name,
       ARRAY(SELECT a.attname || ' ' || format_type(a.atttypid, a.atttypmod) FROM pg_catalog.pg_attribute AS a
              WHERE a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' AND a.attrelid = c.oid ORDER BY 1) AS columns,
       ARRAY(SELECT a.attname || ' ' || format_type(a.atttypid, a.atttypmod) FROM pg_catalog.pg_attribute AS a
              WHERE a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' AND a.attrelid = lc.oid ORDER BY 1) AS live_columns,
       ARRAY(SELECT quote_ident(a.attname) FROM pg_catalog.pg_attribute AS a
              WHERE a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' AND a.attrelid = c.oid ORDER BY 1) AS quoted,
       CASE c.relkind WHEN 'r' THEN 'ONLY ' ELSE '' END || format('%I.%I', n.nspname, c.relname) AS staged_rows,
       CASE lc.relkind WHEN 'r' THEN 'ONLY ' ELSE '' END || quote_ident(ln.nspname) || '.' || quote_ident(lc.relname) AS live_rows
  FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
  LEFT JOIN pg_catalog.pg_class AS lc ON lc.oid = to_regclass(quote_ident(c.relname))
  LEFT JOIN pg_catalog.pg_namespace AS ln ON ln.oid = lc.relnamespace
 WHERE n.nspname = $1 AND c.relkind IN ('r', 'p') AND NOT c.relispartition ORDER BY 1

-- name: claim
SELECT pg_try_advisory_lock(hashtextextended('walrelay rebuild ' || $1, 0)),
       CASE WHEN pg_catalog.version() LIKE '%linux%'
         THEN pg_catalog.set_config('client_connection_check_interval', '1000', false) END

-- name: holder
SELECT l.pid, a.backend_start
  FROM hashtextextended('walrelay rebuild ' || $1, 0) AS k(id)
  JOIN pg_catalog.pg_locks AS l
    ON l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
   AND l.classid = ((k.id >> 32) & 4294967295)::oid AND l.objid = (k.id & 4294967295)::oid
   AND l.database = (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = current_database())
  LEFT JOIN pg_catalog.pg_stat_activity AS a ON a.pid = l.pid
 LIMIT 1

-- name: last_position
SELECT coalesce(max(commit_lsn) - '0/0'::pg_lsn, 0)::bigint FROM public.app_inbox
 WHERE consumer = $1 AND generation = $2

-- name: files
SELECT coalesce(array_agg(format('%s:%s', c.oid, coalesce(pg_catalog.pg_relation_filenode(c.oid), 0))), '{}')
  FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
 WHERE n.nspname = $1 AND c.relkind IN ('r', 'p')

-- name: has_files
SELECT coalesce(rebuilding_files <@ $2, false) FROM public.app_inbox_consumer WHERE consumer = $1

-- name: begin
UPDATE public.app_inbox_consumer
   SET rebuilding = generation + 1, rebuilding_in = $2, rebuilding_files = $3, rebuilding_since = now(),
       updated_at = now()
 WHERE consumer = $1 AND (rebuilding IS NULL OR rebuilding_in = $2) RETURNING generation

-- name: compare
SELECT (SELECT count(*) FROM (
          SELECT FROM public.app_inbox AS i
           WHERE i.consumer = $1 AND i.generation IN ($2, $2 + 1)
           GROUP BY i.event_id
          HAVING bool_or(i.generation = $2 AND i.status IN ('done', 'late') AND i.done_at < $3)
             AND NOT bool_or(i.generation = $2 + 1)) AS missing),
       (SELECT count(*) FROM public.app_inbox AS n
         WHERE n.consumer = $1 AND n.generation = $2 + 1 AND n.status IN ('retrying', 'dead'))

-- name: switch
UPDATE public.app_inbox_consumer
   SET generation = rebuilding, rebuilding = NULL, rebuilding_in = NULL, rebuilding_files = NULL,
       rebuilding_since = NULL, updated_at = now()
 WHERE consumer = $1 AND rebuilding_in = $2

-- name: abandon
UPDATE public.app_inbox_consumer
   SET rebuilding = NULL, rebuilding_in = NULL, rebuilding_files = NULL, rebuilding_since = NULL,
       updated_at = now()
 WHERE consumer = $1 RETURNING generation
