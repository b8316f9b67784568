-- name: due
WITH RECURSIVE topics AS (
  (SELECT topic FROM public.app_outbox_dispatch
    WHERE slot = $1 AND status = 'retrying' ORDER BY topic LIMIT 1)
  UNION ALL
  SELECT (SELECT d.topic FROM public.app_outbox_dispatch d
           WHERE d.slot = $1 AND d.status = 'retrying' AND d.topic > t.topic ORDER BY d.topic LIMIT 1)
    FROM topics t
   WHERE t.topic IS NOT NULL
), wanted AS MATERIALIZED (
  SELECT topic FROM topics WHERE topic <> ALL ($3)
), seen AS MATERIALIZED (
  SELECT w.topic, r.ordering_key, r.event_id, r.next_attempt_at, h.event_id AS head,
         h.next_attempt_at AS head_at, h.event_id = r.event_id AS is_head,
         $2 AND coalesce((
           SELECT (x.topic, x.ordering_key) = (w.topic, r.ordering_key)
                  AND (x.commit_lsn, x.tx_index) < (h.commit_lsn, h.tx_index)
             FROM public.app_outbox_dispatch x
            WHERE x.slot = $1 AND x.status = 'dead'
              AND (x.topic, x.ordering_key) >= (w.topic, r.ordering_key)
            ORDER BY x.topic, x.ordering_key, x.commit_lsn, x.tx_index
            LIMIT 1
         ), false) AS is_behind_dead,
         coalesce((
           SELECT true FROM public.app_outbox_hold o
            WHERE o.slot = $1 AND o.topic = w.topic AND o.ordering_key = r.ordering_key
            LIMIT 1
         ), false) AS is_replayed,
         count(*) OVER (PARTITION BY w.topic) >= $4 AS is_crowded
    FROM wanted w
   CROSS JOIN LATERAL (
     SELECT d.event_id, d.ordering_key, d.next_attempt_at
       FROM public.app_outbox_dispatch d
      WHERE d.slot = $1 AND d.topic = w.topic AND d.status = 'retrying' AND d.ordering_key <> ''
        AND d.next_attempt_at <= now() AND d.commit_lsn < $5
      ORDER BY d.next_attempt_at
      LIMIT $4
   ) AS r
   CROSS JOIN LATERAL (
     SELECT d.event_id, d.commit_lsn, d.tx_index, d.next_attempt_at
       FROM public.app_outbox_dispatch d
      WHERE d.slot = $1 AND d.topic = w.topic AND d.ordering_key = r.ordering_key
        AND d.status = 'retrying'
      ORDER BY d.commit_lsn, d.tx_index
      LIMIT 1
   ) AS h
), locked AS MATERIALIZED (
  SELECT event_id, next_attempt_at
    FROM public.app_outbox_dispatch
   WHERE slot = $1 AND coalesce(status, '') = 'retrying'
     AND event_id = ANY (ARRAY(
       SELECT head FROM seen WHERE is_crowded AND (is_behind_dead OR is_replayed OR NOT is_head)))
     FOR UPDATE SKIP LOCKED
), stopped AS MATERIALIZED (
  SELECT event_id, is_replayed
    FROM seen
   WHERE is_crowded AND is_head AND (is_behind_dead OR is_replayed)
     AND ((event_id, next_attempt_at) IN (SELECT event_id, next_attempt_at FROM locked)) IS TRUE
), waiting AS MATERIALIZED (
  SELECT event_id
    FROM public.app_outbox_dispatch
   WHERE slot = $1 AND coalesce(status, '') = 'retrying' AND next_attempt_at <= now()
     AND event_id = ANY (ARRAY(
       SELECT event_id FROM seen
        WHERE is_crowded AND NOT is_head
          AND (head IN (SELECT event_id FROM locked)) IS TRUE))
     FOR UPDATE SKIP LOCKED
), behind AS (
  UPDATE public.app_outbox_dispatch
     SET next_attempt_at = NULL
   WHERE slot = $1 AND event_id = ANY (ARRAY(
       SELECT event_id FROM waiting UNION ALL SELECT event_id FROM stopped WHERE is_replayed))
  RETURNING 1
), postponed AS (
  UPDATE public.app_outbox_dispatch
     SET next_attempt_at = now() + interval '10 minutes'
   WHERE slot = $1 AND event_id = ANY (ARRAY(
       SELECT event_id FROM stopped WHERE NOT is_replayed))
  RETURNING 1
), set_back AS MATERIALIZED (
  SELECT event_id, next_attempt_at - updated_at AS delay
    FROM public.app_outbox_dispatch
   WHERE slot = $1 AND coalesce(status, '') = 'retrying'
     AND next_attempt_at > updated_at AND updated_at - now() > next_attempt_at - updated_at
     AND event_id = ANY (ARRAY(
       SELECT late.event_id
         FROM wanted w
        CROSS JOIN LATERAL (
          (SELECT d.event_id, d.next_attempt_at, d.updated_at FROM public.app_outbox_dispatch d
            WHERE d.slot = $1 AND d.topic = w.topic AND d.status = 'retrying' AND d.ordering_key <> ''
              AND d.next_attempt_at > now() + interval '2 minutes'
            ORDER BY d.next_attempt_at DESC
            LIMIT 100)
          UNION ALL
          (SELECT d.event_id, d.next_attempt_at, d.updated_at FROM public.app_outbox_dispatch d
            WHERE d.slot = $1 AND d.topic = w.topic AND d.status = 'retrying' AND d.ordering_key = ''
              AND d.next_attempt_at > now() + interval '2 minutes'
            ORDER BY d.next_attempt_at DESC
            LIMIT 100)
        ) AS late
        WHERE late.updated_at - now() > late.next_attempt_at - late.updated_at))
     FOR UPDATE SKIP LOCKED
), moved_up AS (
  UPDATE public.app_outbox_dispatch AS d
     SET next_attempt_at = now() + s.delay
    FROM set_back AS s
   WHERE d.slot = $1 AND d.event_id = s.event_id
  RETURNING 1
), due AS (
  SELECT topic, ordering_key, min(since) AS since
    FROM (
      SELECT topic, ordering_key, next_attempt_at AS since
        FROM seen
       WHERE NOT (is_behind_dead OR is_replayed) AND (head_at IS NULL OR head_at <= now())
      UNION ALL
      SELECT w.topic, '', loose.next_attempt_at
        FROM (SELECT topic FROM wanted
               WHERE (SELECT true FROM public.app_outbox_hold o
                       WHERE o.slot = $1 AND o.topic = wanted.topic AND o.ordering_key = ''
                       LIMIT 1) IS NULL
              OFFSET 0) AS w
       CROSS JOIN LATERAL (
         SELECT d.next_attempt_at
           FROM public.app_outbox_dispatch d
          WHERE d.slot = $1 AND d.topic = w.topic AND d.status = 'retrying' AND d.ordering_key = ''
            AND d.next_attempt_at <= now() AND d.commit_lsn < $5
          ORDER BY d.next_attempt_at
          LIMIT 1
       ) AS loose
    ) AS found
   GROUP BY topic, ordering_key
   ORDER BY since
   LIMIT $4
)
SELECT d.topic, d.ordering_key, m.moved
  FROM (SELECT (SELECT count(*) FROM behind) + (SELECT count(*) FROM postponed)
               + (SELECT count(*) FROM moved_up) AS moved) AS m
  LEFT JOIN due d ON true
 ORDER BY d.since
