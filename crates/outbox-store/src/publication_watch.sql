-- name: wal_end
SELECT pg_current_wal_insert_lsn() AS wal_end,
       (SELECT relname::text FROM pg_catalog.pg_class
         WHERE relnamespace = 'public'::regnamespace AND relname = ANY ($1::text[]) AND relpersistence <> 'p'
         ORDER BY 1 LIMIT 1) AS unlogged

-- part: look
SELECT wanted.schema || '.' || wanted.name AS name, format('%I.%I', wanted.schema, wanted.name) AS quoted,
       p.oid IS NOT NULL AS has_publication, c.oid IS NOT NULL AS has_table,
       r.oid IS NOT NULL AS has_entry, coalesce(p.pubinsert, false) AS publishes_inserts,
       concat_ws(', ', CASE WHEN p.pubupdate THEN 'update' END, CASE WHEN p.pubdelete THEN 'delete' END,
                 CASE WHEN p.pubtruncate THEN 'truncate' END) AS surplus,
       format('%s %s %s %s %s', p.oid, p.xmin, c.oid, r.oid, r.xmin) AS identity,
       ARRAY(SELECT format('%I.%I', s.nspname, other.relname)
               FROM pg_catalog.pg_publication_rel listed
               JOIN pg_catalog.pg_class other ON other.oid = listed.prrelid
               JOIN pg_catalog.pg_namespace s ON s.oid = other.relnamespace
              WHERE listed.prpubid = p.oid
                AND NOT EXISTS (SELECT FROM unnest($2::text[], $3::text[]) AS known(schema, name)
                                 WHERE known.schema = s.nspname AND known.name = other.relname)
              ORDER BY 1) AS others,
       $unstreamed,
       marks.in_progress, marks.finished
  FROM unnest($2::text[], $3::text[]) AS wanted(schema, name)
  LEFT JOIN pg_catalog.pg_publication p ON p.pubname = $1
  LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = wanted.schema
  LEFT JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name
  LEFT JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
 CROSS JOIN LATERAL (
   SELECT coalesce(array_agg(xid::text) FILTER (WHERE status = 'in progress'), '{}') AS in_progress,
          coalesce(array_agg(xid::text) FILTER (WHERE status = 'committed'), '{}') AS finished
     FROM (SELECT xid, CASE WHEN xid >= newest THEN 'in progress'
                            ELSE pg_catalog.pg_xact_status(greatest(xid, 0)::text::xid8) END AS status
             FROM (SELECT newest + ((mark.xmax::text::bigint - newest) % 4294967296 + 6442450944) % 4294967296
                                 - 2147483648 AS xid, newest
                     FROM (VALUES (p.xmax), (r.xmax), (c.xmax)) AS mark(xmax),
                          (SELECT pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())::text::bigint)
                            AS snapshot(newest)
                    WHERE mark.xmax <> '0'::xid) AS full_ids) AS statuses
   ) AS marks
 ORDER BY 1

-- name: note
WITH noted AS (
  SELECT r.slot, jsonb_build_object('name', $2::text, 'system', r.system_identifier, 'database', d.oid::text,
                                    'tables', $3::text::jsonb, 'filters', filters.of_tables) AS publication
    FROM public.app_outbox_relay AS r, pg_catalog.pg_database AS d,
         (SELECT coalesce(jsonb_object_agg(format('%I.%I', n.nspname, c.relname), pg_get_expr(l.prqual, l.prrelid)),
                          '{}') AS of_tables
            FROM pg_catalog.pg_publication AS p
            JOIN pg_catalog.pg_publication_rel AS l ON l.prpubid = p.oid
            JOIN pg_catalog.pg_class AS c ON c.oid = l.prrelid
            JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
           WHERE p.pubname = $2::text AND l.prqual IS NOT NULL) AS filters
   WHERE r.slot = $1 AND d.datname = current_database())
UPDATE public.app_outbox_relay AS r SET publication = noted.publication
  FROM noted
 WHERE r.slot = noted.slot AND r.publication IS DISTINCT FROM noted.publication

-- name: row_filters
SELECT t.key AS name, t.value AS row_filter
  FROM public.app_outbox_relay AS r
 CROSS JOIN LATERAL jsonb_each_text(r.publication -> 'filters') AS t
 WHERE r.slot = $1 AND r.publication ->> 'name' = $2

-- name: gaps
SELECT noted.publication, noted.name, noted.settled_xid::text AS settled_xid,
       p.oid IS NOT NULL AS has_publication,
       p.oid::text IS NOT DISTINCT FROM split_part(noted.identity, ' ', 1) AS is_same_publication,
       c.oid IS NOT NULL AS has_table,
       coalesce(has_table_privilege(c.oid, 'SELECT') AND NOT row_security_active(c.oid), false) AS is_readable
  FROM (SELECT r.publication ->> 'name' AS publication, r.settled_xid, t.key AS name, t.value AS identity
          FROM public.app_outbox_relay AS r
         CROSS JOIN LATERAL jsonb_each_text(r.publication -> 'tables') AS t
          JOIN pg_catalog.pg_database AS d ON d.datname = current_database()
         WHERE r.slot = $1 AND r.operation IS NULL
           AND r.publication ->> 'system' = r.system_identifier AND r.publication ->> 'database' = d.oid::text
           AND EXISTS (SELECT FROM pg_catalog.pg_replication_slots AS s
                        WHERE s.slot_name = r.slot AND s.database = current_database())) AS noted
  LEFT JOIN pg_catalog.pg_publication AS p ON p.pubname = noted.publication
  LEFT JOIN pg_catalog.pg_class AS c ON c.oid = to_regclass(noted.name)
  LEFT JOIN pg_catalog.pg_publication_rel AS rel ON rel.prpubid = p.oid AND rel.prrelid = c.oid
 WHERE noted.identity <> format('%s %s %s %s %s', p.oid, p.xmin, c.oid, rel.oid, rel.xmin)
 ORDER BY noted.name
