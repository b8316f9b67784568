-- name: missing_privileges
SELECT current_user::text, r.name
  FROM pg_catalog.unnest(ARRAY['SELECT', 'DELETE']) AS r(name)
 WHERE NOT pg_catalog.has_table_privilege(pg_catalog.to_regclass($1), r.name)
