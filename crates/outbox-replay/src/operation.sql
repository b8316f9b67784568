-- name: read_operation
SELECT operation ->> 'kind' AS kind, operation ->> 'anchor_slot' AS anchor_slot,
       (operation ->> 'target')::pg_lsn AS target,
       coalesce((operation ->> 'failover')::bool, false) AS failover,
       coalesce((operation ->> 'include_dead')::bool, false) AS include_dead,
       operation ->> 'bound' AS bound, operation ->> 'unpublished_where' AS unpublished_where,
       (operation ->> 'since')::timestamptz AS since,
       operation ->> 'system_identifier' AS system_identifier,
       (operation ->> 'version')::int AS version, operation ->> 'id' AS id,
       ARRAY(SELECT (part ->> 'consistent_point')::pg_lsn
               FROM jsonb_array_elements(operation -> 'parts') WITH ORDINALITY AS parts(part, n)
              ORDER BY n) AS points,
       ARRAY(SELECT part ->> 'snapshot'
               FROM jsonb_array_elements(operation -> 'parts') WITH ORDINALITY AS parts(part, n)
              ORDER BY n) AS snapshots,
       operation ->> 'settled_snapshot' AS settled_snapshot,
       (operation ->> 'from')::int AS before, (operation ->> 'to')::int AS after,
       EXISTS (SELECT FROM pg_catalog.pg_replication_slots WHERE slot_name = $1) AS has_slot
  FROM public.app_outbox_relay WHERE slot = $1 AND operation IS NOT NULL

-- name: begin_reset
UPDATE public.app_outbox_relay
   SET operation = jsonb_build_object('kind', 'reset', 'anchor_slot', $2::text, 'target', $3::text,
                                      'failover', $4::bool, 'include_dead', $5::bool, 'begun_at', now()),
       generation = generation + 1, updated_at = now()
 WHERE slot = $1 AND operation IS NULL

-- name: begin_backfill
INSERT INTO public.app_outbox_relay
       (slot, system_identifier, timeline, generation, settled_lsn, settled_xid, failover, operation)
VALUES ($1, $4, $5, 2, '0/0', '3', $3,
        jsonb_build_object('kind', 'recovery', 'id', $2::text, 'failover', $3::bool,
                           'bound', $6::text, 'since', $7::timestamptz, 'unpublished_where', $8::text,
                           'begun_at', now()))
ON CONFLICT (slot) DO NOTHING

-- name: extend_recovery
UPDATE public.app_outbox_relay
   SET operation = (operation - '{place,settled_snapshot}'::text[]) || jsonb_build_object('since', $2::timestamptz),
       updated_at = now()
 WHERE slot = $1 AND operation ->> 'kind' = 'recovery' AND (operation ->> 'since')::timestamptz > $2

-- name: begin_release
UPDATE public.app_outbox_relay
   SET operation = jsonb_build_object('kind', 'release', 'system_identifier', $2::text, 'version', $3::int4,
                                      'failover', (SELECT to_jsonb(s) -> 'failover'
                                                     FROM pg_catalog.pg_replication_slots s
                                                    WHERE slot_name = $1),
                                      'begun_at', now()),
       generation = generation + 1, updated_at = now()
 WHERE slot = $1 AND (operation IS NULL OR operation ->> 'kind' = 'release')

-- name: store_slot_snapshot
UPDATE public.app_outbox_relay
   SET operation = operation || jsonb_build_object('parts',
         coalesce(operation -> 'parts', '[]')
           || jsonb_build_array(jsonb_build_object('consistent_point', $2::text, 'snapshot', $3::text))),
       settled_lsn = $2::text::pg_lsn, updated_at = now()
 WHERE slot = $1 AND operation ->> 'kind' = 'recovery'

-- name: finish_part
UPDATE public.app_outbox_relay
   SET operation = (operation - 'place')
         || jsonb_build_object('parts', (operation -> 'parts') - 0,
                               'settled_snapshot', operation #> '{parts,0,snapshot}'),
       updated_at = now()
 WHERE slot = $1 AND operation ->> 'kind' = 'recovery' AND jsonb_array_length(operation -> 'parts') > 1

-- name: finish_recovery
UPDATE public.app_outbox_relay
   SET settled_xid = pg_snapshot_xmin((operation #>> '{parts,-1,snapshot}')::pg_snapshot),
       operation = NULL, updated_at = now()
 WHERE slot = $1 AND operation ->> 'kind' = 'recovery' AND operation ? 'parts'

-- name: try_decoding
SELECT count(*) FROM pg_logical_slot_peek_binary_changes($1, NULL, 1,
         'proto_version', '1', 'publication_names', $2)
