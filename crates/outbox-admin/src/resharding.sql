-- name: read_resharding
SELECT slot, (operation ->> 'from')::int AS before, (operation ->> 'to')::int AS after,
       operation ? 'switched' AS is_switched
  FROM public.app_outbox_relay
 WHERE starts_with(slot, $1) AND operation ->> 'kind' = 'resharding'

-- name: begin_resharding
INSERT INTO public.app_outbox_relay
       (slot, system_identifier, timeline, generation, settled_lsn, settled_xid, operation)
SELECT new.slot, old.system_identifier, old.timeline, old.generation, '0/0', '3',
       jsonb_build_object('kind', 'resharding', 'from', $3::int4, 'to', $4::int4, 'begun_at', now())
  FROM unnest($2::text[]) AS new(slot),
       (SELECT system_identifier, timeline, max(generation) OVER () + 1 AS generation
          FROM public.app_outbox_relay WHERE slot = ANY ($1) LIMIT 1) AS old
ON CONFLICT (slot) DO NOTHING

-- name: block_shards
UPDATE public.app_outbox_relay
   SET operation = jsonb_build_object('kind', 'resharding', 'from', $2::int4, 'to', $3::int4, 'begun_at', now()),
       generation = generation + 1, updated_at = now()
 WHERE slot = ANY ($1)
   AND NOT EXISTS (SELECT FROM public.app_outbox_relay
                    WHERE slot = ANY ($1) AND operation ->> 'kind' <> 'resharding')

-- name: release_shards
UPDATE public.app_outbox_relay SET operation = NULL, updated_at = now()
 WHERE slot = ANY ($1) AND operation ->> 'kind' = 'resharding'
   AND NOT operation ? 'switched'

-- name: choose_switch
UPDATE public.app_outbox_relay
   SET operation = operation || jsonb_build_object('switch_lsn', $2::text), updated_at = now()
 WHERE slot = ANY ($1)

-- name: switch_shards
UPDATE public.app_outbox_relay AS new
   SET operation = NULL, settled_lsn = $3, settled_xid = old.settled_xid,
       system_identifier = old.system_identifier, timeline = old.timeline,
       origin = old.origin, generation = greatest(new.generation, old.newest) + 1,
       updated_at = now()
  FROM (SELECT *, max(generation) OVER () AS newest FROM public.app_outbox_relay
         WHERE slot = ANY ($1) ORDER BY settled_xid LIMIT 1) AS old
 WHERE new.slot = ANY ($2) AND new.operation ->> 'kind' = 'resharding'

-- name: end_old_shards
UPDATE public.app_outbox_relay
   SET operation = operation || jsonb_build_object('switched', now()), updated_at = now()
 WHERE slot = ANY ($1) AND operation ->> 'kind' = 'resharding'

-- name: hand_over
UPDATE public.app_outbox_dispatch AS d
   SET slot = r.new_slot,
       event_id = CASE WHEN r.place = 1 THEN d.event_id
                       ELSE d.event_id || '@' || d.commit_lsn || '/' || d.tx_index END
  FROM (SELECT slot, event_id, new_slot,
               dense_rank() OVER (PARTITION BY new_slot, event_id ORDER BY slot) AS place
          FROM (SELECT slot, event_id,
                       ($2::text[])[1 + (hashtext(ordering_key COLLATE "C") & $3)] AS new_slot
                  FROM public.app_outbox_dispatch WHERE slot = ANY ($1)) AS of_old) AS r
 WHERE d.slot = r.slot AND d.event_id = r.event_id
