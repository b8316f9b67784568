-- name: begin
SELECT set_config('lock_timeout', '5s', true),
       set_config('statement_timeout', '0', true),
       CASE WHEN pg_catalog.current_setting('transaction_timeout', true) IS NOT NULL
         THEN pg_catalog.set_config('transaction_timeout', '0', true) END,
       CASE WHEN pg_catalog.version() LIKE '%linux%'
         THEN pg_catalog.set_config('client_connection_check_interval', '1000', true) END

-- name: refuse_writes_outside_schema
SELECT pg_catalog.string_agg(DISTINCT pg_catalog.format('%I.%I', n.nspname, c.relname), ', ')
  FROM pg_catalog.pg_locks AS l
  JOIN pg_catalog.pg_class AS c ON c.oid = l.relation
  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
 WHERE l.pid = pg_catalog.pg_backend_pid() AND l.locktype = 'relation' AND l.granted
   AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
   AND l.mode NOT IN ('AccessShareLock', 'RowShareLock')
   AND c.relkind IN ('r', 'p', 'f') AND n.nspname <> $1 AND n.nspname NOT LIKE 'pg\_%'
   AND NOT (n.oid = pg_catalog.to_regnamespace('public') AND c.relname IN ('app_inbox', 'app_inbox_key'))
