-- name: read_publication
SELECT puballtables, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot,
       ARRAY(SELECT n.nspname::text
               FROM pg_catalog.pg_publication_namespace pn
               JOIN pg_catalog.pg_namespace n ON n.oid = pn.pnnspid
              WHERE pn.pnpubid = p.oid
              ORDER BY 1) AS schemas
  FROM pg_catalog.pg_publication p
 WHERE pubname = $1

-- name: published_tables
SELECT n.nspname::text AS schema, c.relname::text AS name,
       pg_get_expr(r.prqual, r.prrelid) AS row_filter,
       CASE WHEN r.prattrs IS NOT NULL THEN
         ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a
                WHERE a.attrelid = c.oid AND a.attnum = ANY (r.prattrs::int2[])
                ORDER BY a.attnum)
       END AS columns
  FROM pg_catalog.pg_publication p
  JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid
  JOIN pg_catalog.pg_class c ON c.oid = r.prrelid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE p.pubname = $1
 ORDER BY 1, 2
