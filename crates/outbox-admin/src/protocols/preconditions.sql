-- name: missing_table
SELECT name FROM unnest($1::text[]) WITH ORDINALITY AS n(name, i)
 WHERE to_regclass(name) IS NULL ORDER BY i LIMIT 1
