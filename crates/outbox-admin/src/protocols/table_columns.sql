-- name: first_column
SELECT attname::text FROM pg_attribute
 WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped
   AND attname::text = ANY($2)
 ORDER BY array_position($2, attname::text) LIMIT 1
