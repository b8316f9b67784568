-- name: read
SELECT k.commit_lsn::text || '/' || k.tx_index, k.system_identifier, k.moved_at::text, k.version, k.implausible,
       (SELECT count(*) FROM public.app_inbox AS i
         WHERE i.consumer = k.consumer AND i.generation = k.generation AND i.ordering_key = k.ordering_key
           AND i.status = 'discarded' AND i.error_code = 'BEHIND_POSITION' AND i.received_at >= k.moved_at)
  FROM public.app_inbox_key AS k
 WHERE k.consumer = $1 AND k.generation = $2 AND k.ordering_key = $3

-- name: forget_skipped
DELETE FROM public.app_inbox AS i USING public.app_inbox_key AS k
 WHERE k.consumer = $1 AND k.generation = $2 AND k.ordering_key = $3
   AND i.consumer = k.consumer AND i.generation = k.generation AND i.ordering_key = k.ordering_key
   AND i.status = 'discarded' AND i.error_code = 'BEHIND_POSITION' AND i.received_at >= k.moved_at

-- name: reset_key
UPDATE public.app_inbox_key AS k
   SET commit_lsn = NULL, tx_index = NULL, system_identifier = NULL, version = NULL, moved_at = NULL,
       implausible = 0, updated_at = now()
 WHERE k.consumer = $1 AND k.generation = $2 AND k.ordering_key = $3
