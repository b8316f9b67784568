-- name: unconfirmed_transactions
SELECT max(lsn) FILTER (WHERE kind = 'C') AS end_lsn,
       count(*) FILTER (WHERE kind = 'I') AS rows
  FROM (SELECT lsn, xid::text AS xid, chr(get_byte(data, 0)) AS kind
          FROM pg_logical_slot_peek_binary_changes($1, NULL, NULL,
                 'proto_version', '1', 'publication_names', $2)) AS messages
 GROUP BY xid
HAVING count(*) FILTER (WHERE kind = 'C') > 0
 ORDER BY 1
