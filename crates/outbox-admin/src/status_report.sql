-- name: failing_topics
SELECT topic,
       count(*) FILTER (WHERE status = 'retrying') AS retrying,
       count(*) FILTER (WHERE status = 'dead') AS dead,
       extract(epoch FROM clock_timestamp() - min(parked_at))::float8 AS oldest_seconds,
       (array_agg(error_code ORDER BY updated_at DESC))[1] AS last_error_code
  FROM public.app_outbox_dispatch AS d
 WHERE slot = $1 AND status IN ('retrying', 'dead')
   -- Rows of a replay in place, and rows behind its pauses, are not there because of a failure.
   AND NOT (status = 'retrying' AND error_code IS NULL AND (replay_id <> '' OR EXISTS (
         SELECT FROM public.app_outbox_hold AS h
          WHERE h.slot = d.slot AND h.topic = d.topic AND h.ordering_key = d.ordering_key)))
 GROUP BY topic
 ORDER BY count(*) DESC, topic
 LIMIT 20

-- name: replayed_rows
SELECT count(*) AS rows FROM public.app_outbox_dispatch
 WHERE slot = $1 AND status = 'retrying' AND error_code IS NULL AND replay_id <> ''
