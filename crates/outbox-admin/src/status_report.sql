-- name: failing_topics
SELECT topic,
       count(*) FILTER (WHERE status = 'retrying') AS retrying,
       count(*) FILTER (WHERE status = 'dead') AS dead,
       extract(epoch FROM clock_timestamp() - min(parked_at))::float8 AS oldest_seconds,
       (array_agg(error_code ORDER BY updated_at DESC))[1] AS last_error_code
  FROM public.app_outbox_dispatch
 WHERE slot = $1 AND status IN ('retrying', 'dead')
 GROUP BY topic
 ORDER BY count(*) DESC, topic
 LIMIT 20
