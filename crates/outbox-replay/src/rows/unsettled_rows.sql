-- name: is_visible
SELECT NOT EXISTS (SELECT FROM pg_snapshot_xip(pg_current_snapshot()) AS xip
                    WHERE pg_visible_in_snapshot(xip, $1::text::pg_snapshot)) AS is_visible
