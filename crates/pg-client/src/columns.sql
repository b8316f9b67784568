-- name: read_columns
SELECT attrelid AS oid, attname::text AS name, atttypid AS type_oid, atttypmod AS type_modifier
  FROM pg_catalog.pg_attribute
 WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped
   AND attgenerated = ''
 ORDER BY attnum
