-- name: finish
WITH outcome AS MATERIALIZED (
  SELECT jsonb_object_agg(o.event_id, to_jsonb(o)) AS by_id
    FROM unnest($2::text[], $3::timestamptz[], $4::text[], $5::int4[], $6::float8[], $7::text[], $8::text[],
                $9::text[], $10::bool[])
         AS o(event_id, version, status, attempts, delay, error_code, error, message_id, is_own_fault)
), held AS MATERIALIZED (
  SELECT event_id
    FROM public.app_outbox_dispatch
   WHERE slot = $1 AND event_id = ANY (ARRAY(SELECT unnest($2::text[])))
     AND coalesce(status, '') = 'retrying'
   ORDER BY event_id
     FOR UPDATE
)
UPDATE public.app_outbox_dispatch AS d
   SET (status, attempts, next_attempt_at, error_code, last_error, message_id, updated_at) = (
     SELECT o.status,
            coalesce(o.attempts, d.attempts + (o.status = 'published')::int),
            CASE
              WHEN o.status <> 'retrying' THEN NULL
              WHEN d.ordering_key = '' THEN now() + make_interval(secs => coalesce(o.delay, 0))
              ELSE now() + make_interval(secs => o.delay)
            END,
            CASE WHEN d.error_code = $11 AND NOT o.is_own_fault THEN d.error_code
                 ELSE coalesce(o.error_code, d.error_code) END,
            CASE WHEN o.error_code IS NULL THEN d.last_error ELSE (
              SELECT string_agg(kept.line, E'\n' ORDER BY kept.n)
                FROM (SELECT h.line, h.n, sum(octet_length(h.line) + 1) OVER (ORDER BY h.n) AS bytes
                        FROM string_to_table(
                               format('attempt %s at %s: %s: %s', o.attempts,
                                      to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'),
                                      o.error_code, coalesce(o.error, ''))
                               || E'\n' || coalesce(d.last_error, ''), E'\n')
                             WITH ORDINALITY AS h(line, n)) AS kept
               WHERE kept.n <= 20 AND kept.bytes <= 4096 AND kept.line <> '') END,
            coalesce(o.message_id, d.message_id),
            greatest(clock_timestamp(), d.updated_at + interval '1 microsecond')
       FROM jsonb_to_record((SELECT by_id FROM outcome) -> d.event_id)
            AS o(status text, attempts int4, delay float8, error_code text, error text, message_id text,
                 is_own_fault bool))
 WHERE d.slot = $1 AND d.event_id = ANY (ARRAY(SELECT event_id FROM held))
   AND coalesce(d.status, '') = 'retrying'
   AND d.updated_at = ((SELECT by_id FROM outcome) -> d.event_id ->> 'version')::timestamptz
