-- name: recorded
SELECT event_id, commit_lsn, tx_index FROM public.app_outbox_dispatch
 WHERE slot = $1 AND event_id = ANY (ARRAY(SELECT unnest($2::text[])))

-- name: insert
INSERT INTO public.app_outbox_dispatch
  (slot, event_id, commit_lsn, tx_index, topic, ordering_key, event_type, message, status, attempts,
   next_attempt_at, error_code, last_error)
SELECT $1, p.event_id, p.commit_lsn, p.tx_index, p.topic, p.ordering_key, p.event_type, p.message,
       p.status, p.attempts,
       CASE WHEN p.status <> 'retrying' OR p.commit_lsn >= $14 THEN NULL
            WHEN p.ordering_key = '' THEN now() + make_interval(secs => coalesce(p.delay, 0))
            WHEN p.delay IS NULL AND p.place = 1 AND (
              SELECT (h.topic, h.ordering_key) = (p.topic, p.ordering_key)
                     AND (h.commit_lsn, h.tx_index) < (p.commit_lsn, p.tx_index)
                FROM public.app_outbox_dispatch h
               WHERE h.slot = $1 AND h.status = 'retrying'
                 AND (h.topic, h.ordering_key) >= (p.topic, p.ordering_key)
               ORDER BY h.topic, h.ordering_key, h.commit_lsn, h.tx_index
               LIMIT 1) IS NOT TRUE
            THEN now()
            ELSE now() + make_interval(secs => p.delay)
       END,
       p.error_code,
       CASE WHEN p.error IS NOT NULL THEN format(
         'attempt %s at %s: %s: %s', p.attempts,
         to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'),
         coalesce(p.failed_with, p.error_code, '?'), p.error) END
  FROM (SELECT *, row_number() OVER (PARTITION BY topic, ordering_key, status
                                     ORDER BY commit_lsn, tx_index) AS place
          FROM unnest($2::text[], $3::pg_lsn[], $4::int4[], $5::text[], $6::text[], $7::bytea[], $8::text[],
                      $9::int4[], $10::float8[], $11::text[], $12::text[], $13::text[], $15::text[])
               AS u(event_id, commit_lsn, tx_index, topic, ordering_key, message, status,
                    attempts, delay, error_code, error, failed_with, event_type)) AS p
ON CONFLICT (slot, event_id, replay_id) DO NOTHING
