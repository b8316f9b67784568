-- name: claim
WITH wanted AS (
  SELECT topic, ordering_key, ordinal
    FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS w(topic, ordering_key, ordinal)
   WHERE (SELECT true FROM public.app_outbox_hold h
           WHERE h.slot = $1 AND h.topic = w.topic AND h.ordering_key = w.ordering_key
           LIMIT 1) IS NULL
), keyed AS (
  SELECT w.ordinal, first.event_id, first.rank, first.bytes
    FROM wanted w
    LEFT JOIN LATERAL (
      SELECT commit_lsn, tx_index
        FROM public.app_outbox_dispatch
       WHERE $7 AND slot = $1 AND topic = w.topic AND ordering_key = w.ordering_key AND status = 'dead'
       ORDER BY commit_lsn, tx_index
       LIMIT 1
    ) AS dead ON true
   CROSS JOIN LATERAL (
      SELECT r.event_id, r.rank, r.bytes
        FROM (
      SELECT d.event_id, row_number() OVER place AS rank, d.bytes, bool_and(d.is_due) OVER place AS is_due
        FROM (
          SELECT event_id, commit_lsn, tx_index, octet_length(message) AS bytes,
                 (next_attempt_at IS NULL OR next_attempt_at <= now()) AND coalesce(error_code, '') <> 'SPILLED' AS is_due
            FROM public.app_outbox_dispatch
           WHERE slot = $1 AND topic = w.topic AND ordering_key = w.ordering_key AND status = 'retrying'
             AND commit_lsn < $8
             AND (commit_lsn, tx_index) < (coalesce(dead.commit_lsn, 'FFFFFFFF/FFFFFFFF'),
                                           coalesce(dead.tx_index, 2147483647))
           ORDER BY commit_lsn, tx_index
           LIMIT $4
        ) AS d
      WINDOW place AS (ORDER BY d.commit_lsn, d.tx_index)
        ) AS r
       WHERE r.is_due
    ) AS first
   WHERE w.ordering_key <> ''
), unordered AS (
  SELECT w.ordinal, due.event_id, row_number() OVER (PARTITION BY w.ordinal ORDER BY due.next_attempt_at) AS rank,
         due.bytes
    FROM wanted w
   CROSS JOIN LATERAL (
      (SELECT event_id, next_attempt_at, octet_length(message) AS bytes
         FROM public.app_outbox_dispatch
        WHERE slot = $1 AND topic = w.topic AND ordering_key = '' AND status = 'retrying'
          AND next_attempt_at <= now() AND commit_lsn < $8
        ORDER BY next_attempt_at
        LIMIT $4)
      UNION ALL
      -- Rows that were recorded during a recovery.
      (SELECT event_id, next_attempt_at, octet_length(message)
         FROM public.app_outbox_dispatch
        WHERE slot = $1 AND topic = w.topic AND ordering_key = '' AND status = 'retrying'
          AND next_attempt_at IS NULL AND commit_lsn < $8
        LIMIT $4)
      LIMIT $4
    ) AS due
   WHERE w.ordering_key = ''
), candidates AS MATERIALIZED (
  SELECT *
    FROM (
      SELECT *, sum(bytes) OVER (ORDER BY rank, ordinal ROWS UNBOUNDED PRECEDING) - bytes AS bytes_before
        FROM (SELECT *, true AS is_ordered FROM keyed UNION ALL SELECT *, false FROM unordered) AS k
    ) AS c
   WHERE bytes_before < greatest($5, 1)
), locked AS MATERIALIZED (
  SELECT event_id
    FROM public.app_outbox_dispatch
   WHERE slot = $1 AND event_id = ANY (ARRAY(SELECT event_id FROM candidates))
     AND coalesce(status, '') = 'retrying' AND (next_attempt_at IS NULL OR next_attempt_at <= now())
     FOR UPDATE SKIP LOCKED
), free AS (
  SELECT c.*,
         CASE WHEN is_ordered
              THEN bool_and(is_locked) OVER (PARTITION BY ordinal, is_ordered ORDER BY rank)
              ELSE is_locked
         END AS is_free
    FROM (SELECT *, event_id IN (SELECT event_id FROM locked) AS is_locked FROM candidates) AS c
), chosen AS MATERIALIZED (
  SELECT event_id
    FROM (
      SELECT event_id,
             sum(bytes) OVER (ORDER BY rank, ordinal ROWS UNBOUNDED PRECEDING) AS bytes_to_here,
             row_number() OVER (ORDER BY rank, ordinal) AS n
        FROM free
       WHERE is_free
    ) AS f
   WHERE bytes_to_here <= $5 OR n = 1
), claimed AS (
  UPDATE public.app_outbox_dispatch
     SET next_attempt_at = now() + make_interval(secs => $6),
         updated_at = greatest(clock_timestamp(), updated_at + interval '1 microsecond')
   WHERE slot = $1 AND event_id = ANY (ARRAY(SELECT event_id FROM chosen))
     AND coalesce(status, '') = 'retrying'
  RETURNING event_id, commit_lsn, tx_index, topic, ordering_key, message, attempts, updated_at,
            error_code, ctid::text AS ctid
)
SELECT * FROM claimed ORDER BY topic, ordering_key, commit_lsn, tx_index

-- name: release
WITH leased AS MATERIALIZED (
  SELECT d.event_id
    FROM unnest($2::text[], $3::text[]) AS k(topic, ordering_key)
   CROSS JOIN LATERAL (
     SELECT event_id
       FROM public.app_outbox_dispatch
      WHERE slot = $1 AND topic = k.topic AND ordering_key = k.ordering_key AND status = 'retrying'
        AND next_attempt_at > now() AND event_id <> ALL ($4)
      ORDER BY next_attempt_at DESC
      LIMIT $5
   ) AS d
)
UPDATE public.app_outbox_dispatch
   SET next_attempt_at = now()
 WHERE slot = $1 AND event_id = ANY (ARRAY(SELECT event_id FROM leased))
   AND coalesce(status, '') = 'retrying'
