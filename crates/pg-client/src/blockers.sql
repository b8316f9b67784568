-- name: blockers
SELECT b.pid, coalesce(a.usename::text, '') AS role,
       coalesce(a.application_name, '') AS application, coalesce(a.state, '') AS state,
       greatest(0, coalesce(extract(epoch FROM now() - a.xact_start), 0))::int8 AS open_seconds
  FROM (SELECT DISTINCT unnest(pg_catalog.pg_blocking_pids($1)) AS pid) b
  LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = b.pid
 ORDER BY open_seconds DESC, b.pid

-- name: is_working
SELECT state IS NULL OR state NOT LIKE 'idle%' FROM pg_catalog.pg_stat_activity WHERE pid = $1
