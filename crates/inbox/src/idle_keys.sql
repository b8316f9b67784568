-- name: lock
SELECT k.ordering_key FROM public.app_inbox_key AS k
  JOIN public.app_inbox_consumer AS c ON c.consumer = k.consumer AND c.generation = k.generation
 WHERE c.consumer = $1 AND c.rebuilding IS NULL AND k.held_by IS NULL
   AND k.updated_at < c.pruned_before AND k.updated_at < now() - make_interval(secs => $2)
   AND NOT EXISTS (
     SELECT FROM public.app_inbox AS i
      WHERE i.consumer = k.consumer AND i.generation IN (k.generation, -k.generation)
        AND i.ordering_key = k.ordering_key)
 LIMIT $3 FOR UPDATE OF k SKIP LOCKED

-- name: delete
DELETE FROM public.app_inbox_key AS k USING public.app_inbox_consumer AS c
 WHERE c.consumer = $1 AND k.consumer = c.consumer AND k.generation = c.generation
   AND k.ordering_key = ANY ($3) AND c.rebuilding IS NULL AND k.held_by IS NULL
   AND k.updated_at < c.pruned_before AND k.updated_at < now() - make_interval(secs => $2)
   AND NOT EXISTS (
     SELECT FROM public.app_inbox AS i
      WHERE i.consumer = k.consumer AND i.generation IN (k.generation, -k.generation)
        AND i.ordering_key = k.ordering_key)
