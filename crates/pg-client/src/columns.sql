-- name: read_columns
-- The type of a domain is the type below it, at any depth. Stored generated columns are listed if a
-- publication publishes them, which needs Postgres 18.
SELECT a.attrelid AS oid, a.attname::text AS name, base.oid AS type_oid, a.atttypmod AS type_modifier
  FROM pg_catalog.pg_attribute a
 CROSS JOIN LATERAL (
   WITH RECURSIVE types AS (
     SELECT t.oid, t.typtype, t.typbasetype FROM pg_catalog.pg_type t WHERE t.oid = a.atttypid
     UNION ALL
     SELECT t.oid, t.typtype, t.typbasetype
       FROM types JOIN pg_catalog.pg_type t ON t.oid = types.typbasetype WHERE types.typtype = 'd')
   SELECT oid FROM types WHERE typtype <> 'd') AS base
 WHERE a.attrelid = $1::text::regclass AND a.attnum > 0 AND NOT a.attisdropped
   AND (a.attgenerated = '' OR a.attgenerated = 's' AND EXISTS (
     SELECT FROM pg_catalog.pg_publication p
       LEFT JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = a.attrelid
      WHERE a.attnum = ANY (r.prattrs::int2[]) OR r.prattrs IS NULL AND to_jsonb(p)->>'pubgencols' = 's'))
 ORDER BY a.attnum
