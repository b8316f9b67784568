-- name: scaffold
SELECT a.attname::text, pg_catalog.format_type(a.atttypid, a.atttypmod),
       coalesce(a.attnum = ANY (i.indkey), false)
  FROM pg_catalog.pg_attribute AS a
  LEFT JOIN pg_catalog.pg_index AS i ON i.indrelid = a.attrelid AND i.indisprimary
 WHERE a.attrelid = pg_catalog.to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped
   AND a.attgenerated = '' AND a.attidentity <> 'a' ORDER BY a.attnum

-- name: web_roles
SELECT r.rolname::text, NOT c.relrowsecurity AND pg_catalog.has_table_privilege(
       r.oid, c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE')
  FROM pg_catalog.pg_roles AS r, pg_catalog.pg_class AS c
 WHERE r.rolname IN ('anon', 'authenticated') AND c.oid = pg_catalog.to_regclass($1) ORDER BY 1
