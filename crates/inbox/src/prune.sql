-- name: prune
DELETE FROM public.app_inbox
 WHERE ctid = ANY (ARRAY(
         SELECT i.ctid FROM public.app_inbox AS i
          WHERE i.consumer = $1
            AND (i.generation < $3 OR i.status IN ('done', 'late', 'discarded') AND i.received_at < $2)
          LIMIT $4))
   AND consumer = $1 AND (generation < $3 OR status IN ('done', 'late', 'discarded'))

-- name: note_pruned
UPDATE public.app_inbox_consumer AS c SET pruned_before = greatest(c.pruned_before, b.cutoff)
  FROM (SELECT max(o.cutoff) AS cutoff FROM public.app_inbox_consumer AS k
         CROSS JOIN (VALUES (now() - make_interval(secs => $2))) AS o(cutoff)
         WHERE k.consumer = $1 AND EXISTS (
           SELECT FROM public.app_inbox AS i
            WHERE i.consumer = k.consumer AND i.generation = k.generation
              AND i.status IN ('done', 'late', 'discarded') AND i.received_at < o.cutoff)) AS b
 WHERE c.consumer = $1 RETURNING c.generation, b.cutoff
