-- name: survey
SELECT to_regproc('public.app_outbox_snapshot') IS NOT NULL AS has_function,
       to_regclass($1)::text AS source,
       coalesce(has_table_privilege(to_regclass('public.app_outbox_aggregate'), 'SELECT')
                AND NOT row_security_active(to_regclass('public.app_outbox_aggregate')), false) AS shows_versions

-- name: step
SELECT events, skipped, last_id, is_done, written
  FROM public.app_outbox_snapshot($1::text::regclass, $2, $3, $4, $5, $6, $7, $8, $9)
