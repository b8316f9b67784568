-- name: begin_replay
WITH gone AS (DELETE FROM public.app_outbox_replay
               WHERE finished_at IS NOT NULL AND updated_at < now() - interval '31 days')
INSERT INTO public.app_outbox_replay
       (id, slot, anchor, system_identifier, request, from_lsn, to_lsn, settled_lsn)
VALUES ($1, $2, $3, $4, $5::text::jsonb, $6, $7, $8)

-- name: read_replay
SELECT id, slot, anchor, system_identifier, request::text AS request, from_lsn, to_lsn,
       settled_lsn, rows_published, finished_at IS NOT NULL AS is_over,
       coalesce((request ->> 'given_up')::bool, false) AS is_given_up
  FROM public.app_outbox_replay WHERE id = $1

-- name: read_replays
SELECT id, slot, anchor, system_identifier, request::text AS request, from_lsn, to_lsn,
       settled_lsn, rows_published, finished_at IS NOT NULL AS is_over,
       coalesce((request ->> 'given_up')::bool, false) AS is_given_up
  FROM public.app_outbox_replay WHERE slot = ANY($1) ORDER BY started_at DESC, id

-- name: advance_replay
UPDATE public.app_outbox_replay
   SET settled_lsn = greatest(settled_lsn, $2), rows_published = $3, updated_at = now()
 WHERE id = $1

-- name: note_resumption
UPDATE public.app_outbox_replay
   SET request = request || jsonb_build_object('from', jsonb_build_object(
         'table', $2::int4, 'aggregate_type', $3::text, 'aggregate_id', $4::text)),
       updated_at = now()
 WHERE id = $1

-- name: note_skip_dead
UPDATE public.app_outbox_replay
   SET request = request || jsonb_build_object('skip_dead', true), updated_at = now()
 WHERE id = $1

-- name: finish_replay
UPDATE public.app_outbox_replay
   SET finished_at = now(), updated_at = now(), rows_published = $2
 WHERE id = $1

-- name: give_up_replay
UPDATE public.app_outbox_replay
   SET request = request || jsonb_build_object('given_up', true),
       finished_at = now(), updated_at = now(), rows_published = $2
 WHERE id = $1
