-- name: may_read
SELECT bool_and(coalesce(has_table_privilege(to_regclass(name), 'SELECT'), false))
  FROM unnest($1::text[]) AS name

-- name: unfinished_replays
WITH begun AS (
  SELECT slot, id, source, to_topic, anchor, system_identifier, settled_lsn, started_at
    FROM public.app_outbox_replay
   WHERE finished_at IS NULL AND ($1::text[] IS NULL OR slot = ANY ($1))
), paused AS (
  SELECT slot, replay_id AS id, count(*) AS keys FROM public.app_outbox_hold
   WHERE $1 IS NULL OR slot = ANY ($1) GROUP BY slot, replay_id
), queued AS (
  SELECT slot, replay_id AS id, count(*) AS rows FROM public.app_outbox_dispatch
   WHERE replay_id <> '' AND status = 'retrying' AND ($1 IS NULL OR slot = ANY ($1))
   GROUP BY slot, replay_id
)
SELECT slot, id, source, to_topic, anchor, system_identifier, settled_lsn,
       coalesce(keys, 0) AS keys, coalesce(rows, 0) AS rows
  FROM begun FULL JOIN paused USING (slot, id) FULL JOIN queued USING (slot, id)
 ORDER BY keys DESC, started_at, id
