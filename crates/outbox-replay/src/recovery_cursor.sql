-- name: note_place
UPDATE public.app_outbox_relay
   SET operation = operation || jsonb_build_object('place', jsonb_build_object(
                     'snapshot', $3::text, 'tables', to_jsonb($4::text[]), 'columns', to_jsonb($5::text[]),
                     'number', $6::int8, 'aggregate_type', $7::text, 'aggregate_id', $8::text,
                     'values', to_jsonb($9::text[]))),
       updated_at = now()
 WHERE slot = $1 AND operation ->> 'kind' = 'recovery'
   AND operation #>> '{parts,0,consistent_point}' = $2 AND operation #>> '{parts,0,snapshot}' = $3

-- name: read_recovery_cursor
SELECT ARRAY(SELECT jsonb_array_elements_text(place -> 'tables')) AS tables,
       ARRAY(SELECT jsonb_array_elements_text(place -> 'columns')) AS columns,
       ARRAY(SELECT jsonb_array_elements_text(place -> 'values')) AS order_values,
       (place ->> 'number')::int8 AS number,
       coalesce(place ->> 'aggregate_type', '') AS aggregate_type,
       coalesce(place ->> 'aggregate_id', '') AS aggregate_id
  FROM (SELECT operation -> 'place' AS place
          FROM public.app_outbox_relay WHERE slot = $1) AS row
 WHERE place ->> 'snapshot' = $2
