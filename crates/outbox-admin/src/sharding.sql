-- name: may_read
SELECT coalesce(has_table_privilege(to_regclass('public.app_outbox_relay'), 'SELECT'), false)
       AND has_schema_privilege('public', 'USAGE') AS may_read
