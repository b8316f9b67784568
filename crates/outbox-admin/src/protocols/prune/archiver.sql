-- name: column_type
SELECT format_type(atttypid, atttypmod) FROM pg_attribute
 WHERE attrelid = $1::text::regclass AND attname = $2 AND NOT attisdropped
