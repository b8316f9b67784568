-- name: column_type
SELECT format_type(atttypid, NULL)
  FROM pg_attribute
 WHERE attrelid = to_regclass($1::text) AND attname = $2::text AND NOT attisdropped
