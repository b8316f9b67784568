-- name: recorded
SELECT commit_lsn, tx_index, event_id,
       CASE WHEN parks THEN topic END AS topic, CASE WHEN parks THEN ordering_key END AS ordering_key
  FROM (SELECT commit_lsn, tx_index, event_id, topic, ordering_key,
               status = 'retrying' OR $5 AND status = 'dead' AND ordering_key <> '' AS parks
          FROM public.app_outbox_dispatch
         WHERE slot = $1 AND (commit_lsn, tx_index) >= ($2, $3) AND replay_id = ''
         ORDER BY commit_lsn, tx_index
         FETCH FIRST $4 ROWS WITH TIES) AS page
 ORDER BY commit_lsn, tx_index
