-- name: count
SELECT count(*) FROM public.app_inbox AS i
  JOIN public.app_inbox_consumer AS c ON c.consumer = i.consumer
 WHERE i.consumer = $1
   AND (i.generation < c.generation OR i.status IN ('done', 'late', 'discarded')
        AND i.received_at < now() - make_interval(secs => $2))
