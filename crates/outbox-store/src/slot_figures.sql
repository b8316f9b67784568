-- name: oldest_writer
SELECT pid, prepared, extract(epoch FROM clock_timestamp() - since)::float8 AS seconds
  FROM (SELECT pid, NULL AS prepared, xact_start AS since, backend_xid AS xid
          FROM pg_catalog.pg_stat_activity WHERE backend_xid IS NOT NULL
        UNION ALL
        SELECT NULL, gid, prepared, transaction FROM pg_catalog.pg_prepared_xacts) AS w
 ORDER BY age(xid) DESC
 LIMIT 1

-- name: lag_seconds
SELECT CASE WHEN state IS NOT NULL
       THEN coalesce(extract(epoch FROM flush_lag), 0)::float8 END AS seconds
  FROM pg_catalog.pg_stat_replication WHERE pid = $1
