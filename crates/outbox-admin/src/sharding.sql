-- name: may_read
SELECT EXISTS (
  SELECT FROM pg_catalog.pg_class AS c
   WHERE c.relnamespace = to_regnamespace('public') AND c.relname = 'app_outbox_relay'
     AND has_schema_privilege(c.relnamespace, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')) AS may_read
