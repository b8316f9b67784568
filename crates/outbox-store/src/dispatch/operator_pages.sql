-- name: wake_next_of_all
UPDATE public.app_outbox_dispatch AS d
   SET next_attempt_at = now()
 WHERE d.slot = $1 AND d.event_id = ANY (ARRAY(
         SELECT n.event_id
           FROM (SELECT DISTINCT topic, ordering_key FROM public.app_outbox_dispatch
                  WHERE slot = $1 AND event_id = ANY ($2) AND ordering_key <> '') g
          CROSS JOIN LATERAL (
            SELECT event_id FROM public.app_outbox_dispatch
             WHERE slot = $1 AND topic = g.topic AND ordering_key = g.ordering_key AND status = 'retrying'
             ORDER BY commit_lsn, tx_index
             LIMIT 1
          ) AS n))
   AND CASE WHEN d.next_attempt_at IS NULL THEN d.status = 'retrying' END
