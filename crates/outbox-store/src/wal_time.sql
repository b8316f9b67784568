-- name: note_wal_time
WITH here AS MATERIALIZED (SELECT pg_current_wal_insert_lsn() AS lsn),
     gone AS (
       DELETE FROM public.app_outbox_relay_time
        WHERE system_identifier = $1 AND noted_at < now() - interval '31 days')
INSERT INTO public.app_outbox_relay_time (system_identifier, noted_at, lsn)
SELECT $1, clock_timestamp(), here.lsn FROM here
 WHERE NOT EXISTS (SELECT FROM public.app_outbox_relay_time
                    WHERE system_identifier = $1
                      AND noted_at > now() - interval '55 seconds')
ON CONFLICT DO NOTHING

-- name: position_at
SELECT noted_at, lsn FROM public.app_outbox_relay_time
 WHERE system_identifier = $1 AND noted_at <= $2 ORDER BY noted_at DESC LIMIT 1

-- name: first_time_at
SELECT noted_at, lsn FROM public.app_outbox_relay_time
 WHERE system_identifier = $1 AND lsn >= $2 ORDER BY noted_at LIMIT 1

-- name: first_position_after
SELECT noted_at, lsn FROM public.app_outbox_relay_time
 WHERE system_identifier = $1 AND noted_at > $2 ORDER BY noted_at LIMIT 1
