-- name: tables
SELECT c.relname::text, format('%I.%I', n.nspname, c.relname),
       (SELECT format('%I.%I', ln.nspname, lc.relname)
          FROM pg_catalog.pg_class AS lc
          JOIN pg_catalog.pg_namespace AS ln ON ln.oid = lc.relnamespace WHERE lc.oid = u.oid),
       ARRAY(SELECT a.attname || ' ' || format_type(a.atttypid, a.atttypmod) FROM pg_catalog.pg_attribute AS a
              WHERE a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' AND a.attrelid = c.oid ORDER BY 1),
       ARRAY(SELECT a.attname || ' ' || format_type(a.atttypid, a.atttypmod) FROM pg_catalog.pg_attribute AS a
              WHERE a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' AND a.attrelid = u.oid ORDER BY 1),
       ARRAY(SELECT quote_ident(a.attname) FROM pg_catalog.pg_attribute AS a
              WHERE a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' AND a.attrelid = c.oid ORDER BY 1)
  FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
 CROSS JOIN LATERAL (SELECT to_regclass(quote_ident(c.relname))::oid AS oid) AS u
 WHERE n.nspname = $1 AND c.relkind IN ('r', 'p') AND NOT c.relispartition ORDER BY 1

-- name: begin
UPDATE public.app_inbox_consumer
   SET rebuilding = generation + 1, rebuilding_in = $2, rebuilding_since = now(), updated_at = now()
 WHERE consumer = $1 AND rebuilding IS NULL RETURNING generation

-- name: compare
SELECT (SELECT count(*) FROM public.app_inbox AS o
         WHERE o.consumer = $1 AND o.generation = $2 AND o.status IN ('done', 'late') AND o.done_at < $3
           AND NOT EXISTS (SELECT FROM public.app_inbox AS n
                            WHERE n.consumer = $1 AND n.generation = $2 + 1 AND n.event_id = o.event_id)),
       (SELECT count(*) FROM public.app_inbox AS n
         WHERE n.consumer = $1 AND n.generation = $2 + 1 AND n.status IN ('retrying', 'dead'))

-- name: switch
UPDATE public.app_inbox_consumer
   SET generation = rebuilding, rebuilding = NULL, rebuilding_in = NULL, rebuilding_since = NULL,
       updated_at = now()
 WHERE consumer = $1 AND rebuilding_in = $2

-- name: abandon
UPDATE public.app_inbox_consumer
   SET subscription = $2, rebuilding = NULL, rebuilding_in = NULL, rebuilding_since = NULL, updated_at = now()
 WHERE consumer = $1 RETURNING generation
