-- name: begin_replay
WITH gone AS (DELETE FROM public.app_outbox_replay
               WHERE finished_at IS NOT NULL AND updated_at < now() - interval '31 days')
INSERT INTO public.app_outbox_replay
       (id, slot, system_identifier, source, anchor, from_lsn, to_lsn, snapshot, destination,
        to_topic, rate, since, until, aggregate_types, aggregate_ids, event_types, event_ids,
        order_by, skip_dead, settled_lsn)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20)

-- name: read_replay
SELECT * FROM public.app_outbox_replay WHERE id = $1

-- name: read_replays
SELECT * FROM public.app_outbox_replay WHERE slot = ANY($1) ORDER BY started_at DESC, id

-- name: take_replay
SELECT pg_try_advisory_lock(hashtextextended('walrelay replay ' || $1, 0))

-- name: advance_replay
UPDATE public.app_outbox_replay
   SET settled_lsn = greatest(settled_lsn, $2), rows_published = $3,
       resume_table = coalesce($4, resume_table), resume_type = coalesce($5, resume_type),
       resume_id = coalesce($6, resume_id), updated_at = now()
 WHERE id = $1

-- name: note_skip_dead
UPDATE public.app_outbox_replay SET skip_dead = true, updated_at = now() WHERE id = $1

-- name: end_replay
UPDATE public.app_outbox_replay
   SET ended = $2, finished_at = now(), updated_at = now(), rows_published = $3
 WHERE id = $1
