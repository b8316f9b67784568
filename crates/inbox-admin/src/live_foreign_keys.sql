-- name: referencing
WITH RECURSIVE rebuilt (place, oid) AS (
  SELECT t.place, t.name::regclass::oid FROM unnest($1::text[]) WITH ORDINALITY AS t (name, place)
  UNION
  SELECT r.place, h.inhrelid FROM rebuilt AS r JOIN pg_catalog.pg_inherits AS h ON h.inhparent = r.oid)
SELECT k.conname::text, format('%I.%I', own_schema.nspname, own.relname),
       format('%I.%I', target_schema.nspname, target.relname),
       own_place.place, target_place.place, k.confdeltype::text, k.condeferrable
  FROM pg_catalog.pg_constraint AS k
  JOIN rebuilt AS target_place ON target_place.oid = k.confrelid
  LEFT JOIN rebuilt AS own_place ON own_place.oid = k.conrelid
  JOIN pg_catalog.pg_class AS own ON own.oid = k.conrelid
  JOIN pg_catalog.pg_namespace AS own_schema ON own_schema.oid = own.relnamespace
  JOIN pg_catalog.pg_class AS target ON target.oid = k.confrelid
  JOIN pg_catalog.pg_namespace AS target_schema ON target_schema.oid = target.relnamespace
 WHERE k.contype = 'f' AND k.conparentid = 0
 ORDER BY 2, 1
