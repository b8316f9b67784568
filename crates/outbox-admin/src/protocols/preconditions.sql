-- name: missing_table
SELECT name FROM unnest($1::text[]) WITH ORDINALITY AS n(name, i)
 WHERE to_regclass(name) IS NULL ORDER BY i LIMIT 1

-- name: may_read
SELECT coalesce(has_table_privilege(to_regclass($1), 'SELECT'), false) AS may_read

-- name: is_denied
SELECT coalesce(NOT has_table_privilege(to_regclass($1), 'SELECT'), false) AS is_denied
