-- name: is_kept
SELECT c.relkind = 'p' AND to_regprocedure('public.app_outbox_partition_state(regclass)') IS NOT NULL
  FROM pg_class c WHERE c.oid = to_regclass($1)

-- name: add
SELECT added, blocked FROM public.app_outbox_add_partitions($1::text::regclass)

-- name: state
SELECT span::text AS span, partitions, ready_until::text AS ready_until, default_rows,
       extract(epoch FROM ready_until)::float8 AS ready_until_seconds,
       coalesce(ready_until > now() + span, false) AS is_ahead
  FROM public.app_outbox_partition_state($1::text::regclass)
