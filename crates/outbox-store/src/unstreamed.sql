-- part: unstreamed
c.relkind::text AS relkind,
-- The watch of the publication reads this each second.
CASE WHEN c.relhassubclass THEN pg_catalog.array_to_string(ARRAY(
  SELECT pg_catalog.quote_ident(a.attname) FROM pg_catalog.pg_attribute AS a
   WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
   ORDER BY a.attnum), ', ') END AS own_columns,
ARRAY(WITH RECURSIVE below(oid) AS (
        SELECT i.inhrelid FROM pg_catalog.pg_inherits AS i WHERE i.inhparent = c.oid
         UNION
        SELECT i.inhrelid FROM below JOIN pg_catalog.pg_inherits AS i ON i.inhparent = below.oid)
      SELECT pg_catalog.format('%I.%I', s.nspname, part.relname)
        FROM below
        JOIN pg_catalog.pg_class AS part ON part.oid = below.oid
        JOIN pg_catalog.pg_namespace AS s ON s.oid = part.relnamespace
       WHERE c.relkind <> 'p'
          OR part.relkind <> 'p' AND (part.relpersistence <> 'p' OR part.relkind <> 'r')
       ORDER BY 1) AS unstreamed
