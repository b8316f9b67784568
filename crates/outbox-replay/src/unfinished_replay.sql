-- name: unfinished_replay
(SELECT id, slot FROM public.app_outbox_replay
  WHERE finished_at IS NULL AND slot = ANY ($1) ORDER BY id LIMIT 1)
UNION ALL
(SELECT replay_id, slot FROM public.app_outbox_hold
  WHERE slot = ANY ($1) ORDER BY replay_id LIMIT 1)
LIMIT 1

-- name: replay_that_needs_anchor
SELECT id FROM public.app_outbox_replay r
 WHERE slot = $1 AND anchor = $2 AND system_identifier = $3 AND finished_at IS NULL
   AND settled_lsn < $4
   AND (destination = 'topic'
        OR EXISTS (SELECT FROM public.app_outbox_hold h
                    WHERE h.slot = r.slot AND h.replay_id = r.id))
 ORDER BY started_at, id LIMIT 1

-- name: may_read
SELECT coalesce(has_table_privilege(to_regclass($1), 'SELECT'), false)

-- name: replay_of_table
SELECT id, slot FROM public.app_outbox_replay
 WHERE finished_at IS NULL AND source = 'table' AND destination = 'topic'
 ORDER BY started_at LIMIT 1

-- name: replay_to_be_published
SELECT replay_id FROM public.app_outbox_dispatch
 WHERE slot = $1 AND replay_id <> '' AND status = 'retrying' LIMIT 1
