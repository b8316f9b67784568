-- name: holds
SELECT topic, ordering_key, replay_id, state = 'held' AS is_held FROM public.app_outbox_hold
 WHERE slot = $1

-- name: wanted_holds
SELECT topic, ordering_key, replay_id, false AS is_held FROM public.app_outbox_hold
 WHERE slot = $1 AND state = 'wanted'
 ORDER BY wanted_at, topic, ordering_key LIMIT $2

-- name: request_pauses
INSERT INTO public.app_outbox_hold (slot, replay_id, topic, ordering_key)
SELECT $1, $2, k.topic, k.ordering_key
  FROM unnest($3::text[], $4::text[]) AS k(topic, ordering_key)
    ON CONFLICT DO NOTHING

-- name: replay_holds
SELECT count(*) FILTER (WHERE state = 'wanted') AS wanted,
       count(*) FILTER (WHERE state = 'held') AS held, max(commit_lsn) AS through
  FROM public.app_outbox_hold WHERE slot = $1 AND replay_id = $2

-- name: lift_pauses
UPDATE public.app_outbox_dispatch SET next_attempt_at = now()
 WHERE slot = $1 AND replay_id = $2 AND status = 'retrying' AND ordering_key = ''
   AND next_attempt_at IS NULL

-- name: answer
UPDATE public.app_outbox_hold AS o
   SET state = 'held', held_at = now(),
       commit_lsn = CASE WHEN f.is_before THEN f.commit_lsn ELSE $4 END,
       tx_index = CASE WHEN f.is_before THEN f.tx_index - 1 ELSE $5 END
  FROM (
    SELECT h.topic, h.ordering_key, first.commit_lsn, first.tx_index,
           coalesce((first.commit_lsn, first.tx_index) <= ($4, $5), false) AS is_before
      FROM unnest($2::text[], $3::text[]) AS k(topic, ordering_key)
      JOIN public.app_outbox_hold h
        ON h.slot = $1 AND h.topic = k.topic AND h.ordering_key = k.ordering_key
      LEFT JOIN LATERAL (
        SELECT commit_lsn, tx_index
          FROM (
            (SELECT commit_lsn, tx_index FROM public.app_outbox_dispatch
              WHERE slot = $1 AND topic = k.topic AND ordering_key = k.ordering_key
                AND status = 'retrying'
              ORDER BY commit_lsn, tx_index LIMIT 1)
            UNION ALL
            (SELECT commit_lsn, tx_index FROM public.app_outbox_dispatch
              WHERE $7 AND slot = $1 AND topic = k.topic AND ordering_key = k.ordering_key
                AND status = 'dead'
              ORDER BY commit_lsn, tx_index LIMIT 1)
          ) AS waiting
         WHERE k.ordering_key <> ''
         ORDER BY commit_lsn, tx_index LIMIT 1
      ) AS first ON true
  ) AS f
 WHERE o.slot = $1 AND o.topic = f.topic AND o.ordering_key = f.ordering_key AND o.state = 'wanted'
   -- During a recovery another session of the process holds the slot.
   AND ($8 OR (SELECT active_pid FROM pg_catalog.pg_replication_slots WHERE slot_name = $1)
              IS NOT DISTINCT FROM $6)

-- name: held_by
SELECT h.replay_id
  FROM unnest($3::text[], $4::text[]) AS k(topic, ordering_key)
 CROSS JOIN LATERAL (
    SELECT replay_id
      FROM public.app_outbox_hold
     WHERE slot = $1 AND topic = k.topic AND ordering_key = k.ordering_key AND replay_id <> $2
     LIMIT 1
  ) AS h
 LIMIT 1

-- name: still_replayed
SELECT d.replay_id
  FROM unnest($3::text[], $4::text[]) AS k(topic, ordering_key)
 CROSS JOIN LATERAL (
    SELECT replay_id
      FROM public.app_outbox_dispatch
     WHERE slot = $1 AND topic = k.topic AND ordering_key = k.ordering_key
       AND status = 'retrying' AND replay_id NOT IN ('', $2)
     ORDER BY commit_lsn, tx_index
     LIMIT 1
  ) AS d
 LIMIT 1

-- name: add
INSERT INTO public.app_outbox_dispatch
  (slot, event_id, replay_id, commit_lsn, tx_index, topic, ordering_key, event_type, message, status)
SELECT $1, u.event_id || CASE WHEN u.n > 1 OR EXISTS (
           SELECT FROM public.app_outbox_dispatch d
            WHERE d.slot = $1 AND d.event_id = u.event_id || '@' || $2 AND d.replay_id = $2
              AND (d.commit_lsn, d.tx_index) <> (u.commit_lsn, u.tx_index)
         ) THEN u.place ELSE '' END || '@' || $2,
       $2, u.commit_lsn, u.tx_index, $3, $4, u.event_type, u.message, 'retrying'
  FROM (SELECT *, row_number() OVER (PARTITION BY event_id ORDER BY commit_lsn, tx_index) AS n
          FROM unnest($5::text[], $6::text[], $7::pg_lsn[], $8::int4[], $9::bytea[], $11::text[])
                 AS a(event_id, place, commit_lsn, tx_index, message, event_type)) AS u
  JOIN public.app_outbox_hold h
    ON h.slot = $1 AND h.topic = $3 AND h.ordering_key = $4 AND h.replay_id = $2 AND h.state = 'held'
   AND (u.commit_lsn, u.tx_index) <= (h.commit_lsn, h.tx_index)
 WHERE NOT $10 OR NOT EXISTS (
         SELECT FROM public.app_outbox_dispatch d
          WHERE d.slot = $1 AND d.event_id = u.event_id AND d.replay_id = ''
            AND (d.commit_lsn, d.tx_index) > (h.commit_lsn, h.tx_index))
    ON CONFLICT (slot, event_id, replay_id) DO NOTHING

-- name: lift
WITH lifted AS (
  DELETE FROM public.app_outbox_hold WHERE slot = $1 AND replay_id = $2
  RETURNING topic, ordering_key
), heads AS MATERIALIZED (
  SELECT n.event_id
    FROM lifted l
   CROSS JOIN LATERAL (
     SELECT event_id FROM public.app_outbox_dispatch
      WHERE slot = $1 AND topic = l.topic AND ordering_key = l.ordering_key AND status = 'retrying'
      ORDER BY commit_lsn, tx_index
      LIMIT 1
   ) AS n
   WHERE l.ordering_key <> ''
)
UPDATE public.app_outbox_dispatch
   SET next_attempt_at = now()
 WHERE slot = $1 AND event_id = ANY (ARRAY(SELECT event_id FROM heads))
   AND coalesce(status, '') = 'retrying'

-- name: remove
WITH doomed AS MATERIALIZED (
  SELECT event_id FROM public.app_outbox_dispatch
   WHERE slot = $1 AND replay_id = $2 AND status IN ('retrying', 'dead')
   ORDER BY event_id
     FOR UPDATE
), removed AS (
  DELETE FROM public.app_outbox_dispatch
   WHERE slot = $1 AND replay_id = $2 AND event_id = ANY (ARRAY(SELECT event_id FROM doomed))
  RETURNING topic, ordering_key
), heads AS MATERIALIZED (
  SELECT n.event_id
    FROM (SELECT DISTINCT topic, ordering_key FROM removed WHERE ordering_key <> '') AS k
   CROSS JOIN LATERAL (
     SELECT event_id FROM public.app_outbox_dispatch
      WHERE slot = $1 AND topic = k.topic AND ordering_key = k.ordering_key AND status = 'retrying'
        AND replay_id <> $2
      ORDER BY commit_lsn, tx_index
      LIMIT 1
   ) AS n
), locked AS MATERIALIZED (
  SELECT event_id FROM public.app_outbox_dispatch
   WHERE slot = $1 AND event_id = ANY (ARRAY(SELECT event_id FROM heads))
     AND coalesce(status, '') = 'retrying'
     FOR UPDATE SKIP LOCKED
), woken AS (
  UPDATE public.app_outbox_dispatch
     SET next_attempt_at = now()
   WHERE slot = $1 AND event_id = ANY (ARRAY(SELECT event_id FROM locked))
     AND next_attempt_at IS NULL
)
SELECT count(*) AS removed FROM removed

-- name: replayed
SELECT count(*) FILTER (WHERE status = 'retrying') AS retrying,
       count(*) FILTER (WHERE status = 'retrying' AND (
         SELECT (x.commit_lsn, x.tx_index) <= (d.commit_lsn, d.tx_index)
           FROM public.app_outbox_dispatch x
          WHERE $3 AND d.ordering_key <> '' AND x.slot = $1 AND x.topic = d.topic
            AND x.ordering_key = d.ordering_key AND x.status = 'dead'
          ORDER BY x.commit_lsn, x.tx_index
          LIMIT 1)) AS behind_dead,
       (SELECT count(*)
          FROM (SELECT DISTINCT topic, ordering_key
                  FROM public.app_outbox_dispatch
                 WHERE $3 AND slot = $1 AND replay_id = $2 AND status = 'dead'
                   AND replay_id <> '' AND ordering_key <> '') AS k
         CROSS JOIN LATERAL (
            SELECT commit_lsn, tx_index
              FROM public.app_outbox_dispatch
             WHERE slot = $1 AND topic = k.topic AND ordering_key = k.ordering_key AND status = 'dead'
             ORDER BY commit_lsn, tx_index
             LIMIT 1
          ) AS first
          JOIN public.app_outbox_dispatch o
            ON o.slot = $1 AND o.topic = k.topic AND o.ordering_key = k.ordering_key
           AND o.status = 'retrying' AND o.replay_id <> $2
           AND (o.commit_lsn, o.tx_index) > (first.commit_lsn, first.tx_index)
       ) AS others_behind_dead,
       count(*) FILTER (WHERE status = 'dead') AS dead,
       count(*) FILTER (WHERE status IN ('published', 'discarded')) AS finished
  FROM public.app_outbox_dispatch d
 WHERE slot = $1 AND replay_id = $2 AND replay_id <> ''

-- name: mark_dead
UPDATE public.app_outbox_dispatch
   SET status = 'dead', attempts = 1, error_code = $5, updated_at = now(),
       last_error = format('attempt 1 at %s: %s: %s',
         to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), $5::text, $6::text)
 WHERE slot = $1 AND replay_id = $2 AND commit_lsn = $3 AND tx_index = $4 AND status = 'retrying'
