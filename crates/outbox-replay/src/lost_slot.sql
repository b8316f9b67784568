-- name: read_loss
SELECT to_regclass('public.app_outbox_relay') IS NOT NULL AS is_there,
       has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE') AS may_ask
