-- name: columns
-- The text of bytea has two digits per byte. The length of bytea and text is known without reading them.
-- A value that is large as stored is not turned into text: that may exceed the limits of the server.
SELECT max(format_type(atttypid, atttypmod)) FILTER (WHERE attname = $2) AS id_type,
       string_agg(format(CASE WHEN atttypid = 'bytea'::regtype THEN 'coalesce(2 * octet_length(c.%1$I)::bigint, 0)'
                              WHEN atttypid IN ('text'::regtype, 'varchar'::regtype) THEN 'coalesce(octet_length(c.%1$I)::bigint, 0)'
                              WHEN attlen > 0 THEN '32'
                              ELSE 'coalesce(CASE WHEN pg_column_size(c.%1$I) > 33554432 THEN pg_column_size(c.%1$I)
                                    ELSE octet_length(concat(c.%1$I)) END::bigint, 0)' END, attname), ' + ') || ' + 0::bigint' AS size
  FROM pg_attribute WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped
