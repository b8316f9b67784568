-- name: unlogged_inbox_tables
SELECT relname::text
  FROM pg_catalog.pg_class
 WHERE relnamespace = pg_catalog.to_regnamespace('public') AND relpersistence = 'u'
   AND relkind IN ('r', 'p') AND relname IN ('app_inbox_consumer', 'app_inbox', 'app_inbox_key')
 ORDER BY 1
