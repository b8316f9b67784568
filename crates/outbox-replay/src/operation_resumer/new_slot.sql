-- name: snapshot
SELECT CASE WHEN pg_snapshot_xmin(s) > pg_snapshot_xmax(s)
            THEN format('%s:%s:', pg_snapshot_xmin(s), pg_snapshot_xmin(s))
            ELSE s::text END
  FROM pg_current_snapshot() AS s
