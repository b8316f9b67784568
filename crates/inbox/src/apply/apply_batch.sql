-- name: redeliver
SELECT array_agg(r.result), array_agg(r.error_code), array_agg(r.event_id), array_agg(i.event_type)
  FROM public.app_inbox_redeliver(
         $1, $2, $3::text::pg_catalog.regprocedure, on_dead => $4, max_attempts => $5,
         batch => $6, on_gap => $7) AS r
  LEFT JOIN public.app_inbox AS i ON i.consumer = $1 AND i.generation = $2 AND i.event_id = r.event_id

-- name: resolve_handler
SELECT pg_catalog.format('%I.%I(%s)', n.nspname, p.proname,
         CASE WHEN p.proargtypes[0] = 'public.app_inbox_event'::pg_catalog.regtype
              THEN 'public.app_inbox_event' ELSE 'public.app_inbox_event[]' END)
  FROM pg_catalog.pg_proc AS p JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
 WHERE p.pronargs = 1 AND p.prokind = 'f' AND p.prorettype = 'void'::pg_catalog.regtype
   AND NOT p.proretset
   AND p.proargtypes[0] IN ('public.app_inbox_event'::pg_catalog.regtype,
                            'public.app_inbox_event[]'::pg_catalog.regtype)
   AND CASE WHEN pg_catalog.cardinality(pg_catalog.parse_ident($1)) = 1
            THEN pg_catalog.pg_function_is_visible(p.oid)
             AND p.proname = (pg_catalog.parse_ident($1))[1]
            ELSE n.nspname = (pg_catalog.parse_ident($1))[1]
             AND p.proname = (pg_catalog.parse_ident($1))[2] END
 ORDER BY 1

-- name: registration
SELECT subscription, generation, paused,
       rebuilding, rebuilding_in, extract(epoch FROM now() - rebuilding_since)::float8
  FROM public.app_inbox_consumer WHERE consumer = $1

-- name: put_off
UPDATE public.app_inbox AS i
   SET next_attempt_at = greatest(i.next_attempt_at, pg_catalog.clock_timestamp() + $4 * interval '1 second')
 WHERE i.consumer = $1 AND i.generation = $2 AND i.event_id = $3
   AND i.status = 'retrying' AND i.next_attempt_at IS NOT NULL
