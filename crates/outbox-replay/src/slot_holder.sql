-- name: read_slot_holder
SELECT coalesce(application_name, '') AS application,
       CASE WHEN state IS NULL THEN ''
            WHEN backend_type <> 'walsender' THEN 'reads'
            WHEN query ILIKE 'CREATE_REPLICATION_SLOT%' THEN 'makes'
            ELSE 'streams' END AS does
  FROM pg_catalog.pg_stat_activity WHERE pid = $1
