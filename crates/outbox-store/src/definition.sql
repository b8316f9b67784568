-- name: free_slot
SELECT CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_replication_slots
                          WHERE slot_name::text ~ '^walrelay(_[0-9]+_of_[0-9]+)?$'
                            AND database IS DISTINCT FROM current_database())
            THEN 'walrelay_' || left(regexp_replace(lower(current_database()), '[^a-z0-9]', '_', 'g'), 40)
            ELSE 'walrelay'
       END AS slot

-- name: is_there
SELECT to_regclass('public.app_outbox_definition') IS NOT NULL AS is_there

-- name: read
SELECT d.slot, d.publication, d.columns::text AS columns, of_tables.schemas, of_tables.names,
       coalesce(of_tables.taken_names, '{}') AS taken_names
  FROM public.app_outbox_definition AS d
 CROSS JOIN LATERAL (
   SELECT array_agg(coalesce(n.nspname, t.value ->> 'schema')::text ORDER BY t.number) AS schemas,
          array_agg(coalesce(c.relname, t.value ->> 'name')::text ORDER BY t.number) AS names,
          array_agg(recorded.name) FILTER (WHERE to_regclass(recorded.name) <> c.oid) AS taken_names
     FROM jsonb_array_elements(d.tables) WITH ORDINALITY AS t(value, number)
    CROSS JOIN LATERAL (SELECT format('%I.%I', t.value ->> 'schema', t.value ->> 'name') AS name) AS recorded
     LEFT JOIN pg_catalog.pg_class AS c
            ON c.oid = (t.value ->> 'oid')::oid AND c.relkind IN ('r', 'p')
           AND d.system_identifier = $1
           AND d.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
     LEFT JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
   ) AS of_tables
 ORDER BY d.slot

-- name: record
DO $walrelay$
DECLARE
  system text;
BEGIN
  IF NOT EXISTS (SELECT FROM public.app_outbox_definition WHERE slot = $slot)
     AND EXISTS (SELECT FROM pg_catalog.pg_replication_slots
                  WHERE database = current_database()
                    AND (slot_name = $slot OR slot_name::text ~ ('^' || $slot || '_[0-9]+_of_[0-9]+$'))) THEN
    RAISE EXCEPTION 'slot % exists, and no outbox is on record for it in this schema', $slot
      USING HINT = 'It may be the slot of another outbox. Name another slot, or the schema of that outbox.';
  END IF;
  IF has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE') THEN
    SELECT system_identifier INTO system FROM pg_catalog.pg_control_system();
  END IF;
  INSERT INTO public.app_outbox_definition AS d (slot, system_identifier, database, publication, tables, columns)
  SELECT $slot, system, database.oid, $publication, of_tables.list, $columns::jsonb
    FROM pg_catalog.pg_database AS database,
         (SELECT jsonb_agg(jsonb_build_object('oid', c.oid::bigint, 'schema', n.nspname, 'name', c.relname)
                           ORDER BY wanted.number) AS list
            FROM unnest(ARRAY[$tables]::text[]) WITH ORDINALITY AS wanted(name, number)
            JOIN pg_catalog.pg_class AS c ON c.oid = to_regclass(wanted.name)
            JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace) AS of_tables
   WHERE database.datname = current_database()
  ON CONFLICT (slot) DO UPDATE
     SET system_identifier = excluded.system_identifier, database = excluded.database,
         publication = excluded.publication, tables = excluded.tables, columns = excluded.columns
   WHERE (d.system_identifier, d.database, d.publication, d.tables, d.columns)
         IS DISTINCT FROM (excluded.system_identifier, excluded.database, excluded.publication,
                           excluded.tables, excluded.columns);
END
$walrelay$;
