-- name: table_sizes
SELECT w.name AS table,
       coalesce((SELECT sum(pg_total_relation_size(t.relid)) FROM pg_partition_tree(to_regclass(w.name)) AS t),
                pg_total_relation_size(to_regclass(w.name)))::int8 AS bytes
  FROM unnest($1::text[]) WITH ORDINALITY AS w(name, place)
 WHERE to_regclass(w.name) IS NOT NULL
 ORDER BY w.place
