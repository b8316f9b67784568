-- name: status
SELECT c.subscription, c.generation, c.paused,
       (SELECT count(*) FROM public.app_inbox_key AS k
         WHERE k.consumer = c.consumer AND k.generation = c.generation AND k.held_by IS NOT NULL),
       (SELECT extract(epoch FROM now() - min(i.received_at))::float8 FROM public.app_inbox AS i
         WHERE i.consumer = c.consumer AND i.generation = c.generation
           AND (i.status = 'retrying' OR i.next_attempt_at = 'infinity')),
       (SELECT count(*) FROM public.app_inbox AS i
         WHERE i.consumer = c.consumer AND i.generation = c.generation
           AND i.received_at > now() - interval '1 minute'),
       (SELECT count(DISTINCT i.ordering_key) FROM public.app_inbox AS i
         WHERE i.consumer = c.consumer AND i.generation = c.generation AND i.error_code = 'VERSION_GAP'
           AND (i.status = 'retrying' OR i.next_attempt_at = 'infinity')),
       c.rebuilding, c.rebuilding_in, extract(epoch FROM now() - c.rebuilding_since)::float8
  FROM public.app_inbox_consumer AS c WHERE c.consumer = $1

-- name: count_by_status
SELECT status, count(*) FROM public.app_inbox
 WHERE consumer = $1 AND generation = $2 GROUP BY status

-- name: implausible
SELECT k.ordering_key FROM public.app_inbox_key AS k
 WHERE k.consumer = $1 AND k.generation = $2 AND k.implausible > 0 ORDER BY 1 LIMIT 100
