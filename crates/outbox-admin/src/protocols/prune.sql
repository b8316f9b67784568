-- name: replay_of_the_table
SELECT slot, id FROM public.app_outbox_replay
 WHERE finished_at IS NULL AND source = 'table' AND destination = 'topic' ORDER BY started_at LIMIT 1
