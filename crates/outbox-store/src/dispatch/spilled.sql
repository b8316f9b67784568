-- name: read
SELECT w.ordinal, r.place::text AS ctid, r.event_id, r.commit_lsn, r.tx_index, r.attempts, r.updated_at,
       CASE WHEN r.bytes_to_here <= $5 THEN r.message END AS message,
       CASE WHEN r.bytes_to_here > $5 THEN r.bytes_to_here END AS large_bytes
  FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS w(topic, ordering_key, ordinal)
  LEFT JOIN LATERAL (
     SELECT commit_lsn, tx_index
       FROM public.app_outbox_dispatch
      WHERE $6 AND slot = $1 AND topic = w.topic AND ordering_key = w.ordering_key AND status = 'dead'
      ORDER BY commit_lsn, tx_index
      LIMIT 1
  ) AS dead ON true
 CROSS JOIN LATERAL (
     SELECT first.*,
            sum(CASE WHEN is_readable THEN octet_length(message) ELSE $5 + 1 END)
              OVER (ORDER BY commit_lsn, tx_index ROWS UNBOUNDED PRECEDING) AS bytes_to_here
       FROM (
         SELECT ctid AS place, event_id, commit_lsn, tx_index, message, attempts, updated_at,
                coalesce(error_code, '') = 'SPILLED'
                  AND (next_attempt_at IS NULL OR next_attempt_at <= now()) AS is_readable
           FROM public.app_outbox_dispatch
          WHERE slot = $1 AND topic = w.topic AND ordering_key = w.ordering_key AND status = 'retrying'
            AND commit_lsn < $7
            AND (commit_lsn, tx_index) < (coalesce(dead.commit_lsn, 'FFFFFFFF/FFFFFFFF'),
                                          coalesce(dead.tx_index, 2147483647))
          ORDER BY commit_lsn, tx_index
          LIMIT $4
       ) AS first
  ) AS r
 WHERE w.ordering_key <> ''
   AND (SELECT true FROM public.app_outbox_hold h
         WHERE h.slot = $1 AND h.topic = w.topic AND h.ordering_key = w.ordering_key
         LIMIT 1) IS NULL
   AND (r.bytes_to_here <= $5 OR r.is_readable AND r.bytes_to_here = octet_length(r.message))

-- name: read_large
SELECT event_id, message, updated_at
  FROM public.app_outbox_dispatch
 WHERE slot = $1 AND event_id = ANY (ARRAY(SELECT unnest($2::text[])))
   AND coalesce(status, '') = 'retrying' AND error_code = $3

-- name: has_spilled
WITH RECURSIVE head AS (
  (SELECT topic, ordering_key, commit_lsn, tx_index, error_code
     FROM public.app_outbox_dispatch
    WHERE slot = $1 AND status = 'retrying' AND ordering_key <> ''
    ORDER BY topic, ordering_key, commit_lsn, tx_index
    LIMIT 1)
  UNION ALL
  SELECT next.*
    FROM head
   CROSS JOIN LATERAL (
      SELECT d.topic, d.ordering_key, d.commit_lsn, d.tx_index, d.error_code
        FROM public.app_outbox_dispatch d
       WHERE d.slot = $1 AND d.status = 'retrying' AND d.ordering_key <> ''
         AND (d.topic, d.ordering_key) > (head.topic, head.ordering_key)
       ORDER BY d.topic, d.ordering_key, d.commit_lsn, d.tx_index
       LIMIT 1
   ) AS next
), topics AS (
  (SELECT topic FROM public.app_outbox_dispatch
    WHERE slot = $1 AND status = 'retrying' ORDER BY topic LIMIT 1)
  UNION ALL
  SELECT (SELECT d.topic FROM public.app_outbox_dispatch d
           WHERE d.slot = $1 AND d.status = 'retrying' AND d.topic > t.topic ORDER BY d.topic LIMIT 1)
    FROM topics t
   WHERE t.topic IS NOT NULL
)
SELECT (SELECT true
          FROM head h
         WHERE h.error_code = $4 AND h.commit_lsn < $2
           AND ($3 AND (SELECT true FROM public.app_outbox_dispatch x
                         WHERE x.slot = $1 AND x.topic = h.topic AND x.ordering_key = h.ordering_key
                           AND x.status = 'dead' AND (x.commit_lsn, x.tx_index) < (h.commit_lsn, h.tx_index)
                         ORDER BY x.topic, x.ordering_key, x.commit_lsn, x.tx_index
                         LIMIT 1)) IS NOT TRUE
           AND (SELECT true FROM public.app_outbox_hold o
                 WHERE o.slot = $1 AND o.topic = h.topic AND o.ordering_key = h.ordering_key
                 LIMIT 1) IS NULL
         LIMIT 1) IS NOT NULL
    OR (SELECT true
          FROM topics t
         CROSS JOIN LATERAL (
            SELECT 1 FROM public.app_outbox_dispatch d
             WHERE d.slot = $1 AND d.topic = t.topic AND d.ordering_key = '' AND d.status = 'retrying'
               AND d.commit_lsn < $2 AND d.error_code = $4
             LIMIT 1) AS loose
         WHERE (SELECT true FROM public.app_outbox_hold o
                 WHERE o.slot = $1 AND o.topic = t.topic AND o.ordering_key = ''
                 LIMIT 1) IS NULL
         LIMIT 1) IS NOT NULL AS is_so

-- name: delete_at
DELETE FROM public.app_outbox_dispatch
 WHERE ctid = ANY (ARRAY(SELECT unnest($5::text[])::tid)) AND coalesce(event_id, '') = ANY ($2)
   AND slot = $1 AND coalesce(status, '') = 'retrying' AND error_code = $3 AND updated_at <= $4

-- name: delete_by_id
DELETE FROM public.app_outbox_dispatch
 WHERE slot = $1 AND event_id = ANY (ARRAY(SELECT unnest($2::text[])))
   AND coalesce(status, '') = 'retrying' AND error_code = $3 AND updated_at <= $4

-- name: stored
SELECT min(commit_lsn) AS first, max(commit_lsn) AS last
  FROM (SELECT commit_lsn
          FROM public.app_outbox_dispatch
         WHERE slot = $1 AND status = 'published' AND error_code = $2
           AND updated_at > now() - interval '1 day'
        OFFSET 0) AS stored

-- name: delete_published
WITH past AS MATERIALIZED (
  SELECT event_id, commit_lsn
    FROM public.app_outbox_dispatch
   WHERE slot = $1 AND commit_lsn >= $2 AND commit_lsn < $3
     AND coalesce(status, '') = 'published' AND error_code = $4
   ORDER BY commit_lsn, tx_index
   LIMIT $5
     FOR UPDATE SKIP LOCKED
), deleted AS (
  DELETE FROM public.app_outbox_dispatch
   WHERE slot = $1 AND event_id = ANY (ARRAY(SELECT event_id FROM past))
  RETURNING 1
)
SELECT count(*) AS rows, max(commit_lsn) AS last FROM past
