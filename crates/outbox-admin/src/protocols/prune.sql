-- name: replay_of_the_table
SELECT slot, id FROM public.app_outbox_replay
 WHERE finished_at IS NULL AND source = 'table' AND destination = 'topic' ORDER BY started_at LIMIT 1

-- name: partitions
SELECT t.relid::regclass::text
  FROM pg_partition_tree($1::text::regclass) t
  JOIN pg_class c ON c.oid = t.relid
 WHERE t.isleaf AND t.level > 0 AND c.relkind = 'r'
   AND pg_get_expr(c.relpartbound, c.oid) <> 'DEFAULT'
 ORDER BY 1
