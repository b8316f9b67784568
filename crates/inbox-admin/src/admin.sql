-- name: registered
SELECT consumer, subscription, extract(epoch FROM now() - pruned_before)::float8,
       rebuilding, rebuilding_in, extract(epoch FROM now() - rebuilding_since)::float8,
       concat_ws('/', current_database(), 'public.app_inbox_consumer'::regclass::oid, consumer, updated_at)
  FROM public.app_inbox_consumer WHERE consumer = $1 OR $1 IS NULL ORDER BY consumer

-- name: move_unused
UPDATE public.app_inbox_consumer AS c SET subscription = $2, updated_at = now()
 WHERE c.consumer = $1 AND c.generation = 1 AND c.pruned_before IS NULL
   AND NOT EXISTS (SELECT FROM public.app_inbox AS i WHERE i.consumer = c.consumer)
   AND NOT EXISTS (SELECT FROM public.app_inbox_key AS k WHERE k.consumer = c.consumer)

-- name: is_unused
SELECT EXISTS (
  SELECT FROM public.app_inbox_consumer AS c
   WHERE c.consumer = $1 AND c.generation = 1 AND c.pruned_before IS NULL
     AND NOT EXISTS (SELECT FROM public.app_inbox AS i WHERE i.consumer = c.consumer)
     AND NOT EXISTS (SELECT FROM public.app_inbox_key AS k WHERE k.consumer = c.consumer))

-- name: other_readers
SELECT consumer FROM public.app_inbox_consumer
 WHERE subscription = $2 AND consumer <> $1 ORDER BY 1
