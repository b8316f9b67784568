-- name: table_ids
SELECT c.oid AS id
  FROM unnest($1::text[], $2::text[]) AS wanted(schema, name)
  JOIN pg_catalog.pg_namespace n ON n.nspname = wanted.schema
  JOIN pg_catalog.pg_class root ON root.relnamespace = n.oid AND root.relname = wanted.name
 CROSS JOIN LATERAL (SELECT root.oid UNION SELECT tree.relid FROM pg_catalog.pg_partition_tree(root.oid) AS tree) AS c(oid)
