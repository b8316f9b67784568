-- Functions that create and drop the partitions of a partitioned outbox. `walrelay run` and
-- `walrelay prune` call them, so that a relay needs no ownership of the table.
--
-- A single statement, so it is atomic under psql, `supabase db push` and `walrelay init`. Safe to
-- run again: existing objects stay unchanged.
DO $walrelay$
DECLARE
  web_role text;
  function text;
BEGIN
  -- Concurrent runs wait for each other. The second run then finds every object in place.
  PERFORM pg_advisory_xact_lock(hashtextextended('walrelay migrations', 0));

  IF to_regclass('public.app_outbox_partitioning') IS NOT NULL THEN
    RETURN;
  END IF;

  CREATE TABLE public.app_outbox_partitioning ( -- one row per partitioned outbox
    outbox      regclass PRIMARY KEY,
    span        interval,                    -- of one partition; null: somebody else creates them
    spans_ahead int      NOT NULL DEFAULT 3, -- complete partitions that exist before they are needed
    CONSTRAINT app_outbox_partitioning_span CHECK (
      span = interval '1 month' AND extract(month FROM span) = 1
      OR extract(month FROM span) = 0 AND extract(year FROM span) = 0 AND span > interval '0'),
    CONSTRAINT app_outbox_partitioning_spans_ahead CHECK (spans_ahead BETWEEN 1 AND 100)
  );

  ALTER TABLE public.app_outbox_partitioning ENABLE ROW LEVEL SECURITY;

  -- The leaf partitions of a table. The bounds are null if the table is not partitioned by ranges
  -- of one column with a time.
  CREATE FUNCTION public.app_outbox_partition_bounds(outbox regclass)
    RETURNS TABLE (partition regclass, is_default boolean, lower_bound timestamptz, upper_bound timestamptz)
    LANGUAGE sql STABLE
    SET search_path = pg_catalog, pg_temp
    SET timezone = 'UTC'
    SET datestyle = 'ISO'
  AS $bounds$
    SELECT t.relid, bound = 'DEFAULT',
           CASE WHEN NOT is_time THEN NULL
                WHEN bound LIKE 'FOR VALUES FROM (MINVALUE)%' THEN '-infinity'
                ELSE substring(bound FROM 'FROM \(''([^'']*)''\)')::timestamptz END,
           CASE WHEN NOT is_time THEN NULL
                WHEN bound LIKE '%TO (MAXVALUE)' THEN 'infinity'
                ELSE substring(bound FROM 'TO \(''([^'']*)''\)')::timestamptz END
      FROM pg_partition_tree($1) AS t
      JOIN pg_class AS c ON c.oid = t.relid
     CROSS JOIN LATERAL (
       SELECT pg_get_expr(c.relpartbound, c.oid) AS bound,
              t.level = 1 AND EXISTS (
                SELECT FROM pg_partitioned_table AS p
                  JOIN pg_attribute AS a ON a.attrelid = p.partrelid AND a.attnum = p.partattrs[0]
                 WHERE p.partrelid = $1 AND p.partstrat = 'r' AND p.partnatts = 1
                   AND a.atttypid IN ('timestamptz'::regtype, 'timestamp'::regtype, 'date'::regtype)) AS is_time) AS b
     WHERE t.isleaf AND t.level > 0 AND c.relkind = 'r'
  $bounds$;

  -- The start of the span that contains a time, in UTC. Weeks start on Monday.
  CREATE FUNCTION public.app_outbox_span_start(span interval, at timestamptz) RETURNS timestamptz
    LANGUAGE sql IMMUTABLE
    SET search_path = pg_catalog, pg_temp
  AS $start$
    SELECT CASE WHEN extract(month FROM $1) > 0 THEN date_trunc('month', $2, 'UTC')
                ELSE date_bin($1, $2, timestamptz '2000-01-03 00:00:00+00') END
  $start$;

  -- Creates a partition with the columns, constraints, indexes, row-level security and append-only
  -- trigger of the table. PARTITION OF would wait for every open transaction on the table, and
  -- producers would wait behind it.
  CREATE FUNCTION public.app_outbox_make_partition(outbox regclass, partition_name text, bounds text)
    RETURNS void
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
  AS $make$
  DECLARE
    made regclass;
    is_secured boolean;
    schema_name text;
    grantee oid;
    guard regproc;
  BEGIN
    SELECT n.nspname, c.relrowsecurity INTO schema_name, is_secured
      FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = outbox;
    -- The partition of an identity column has no identity of its own: inserts go through the table.
    EXECUTE format('CREATE TABLE %I.%I (LIKE %s INCLUDING ALL EXCLUDING IDENTITY)',
                   schema_name, partition_name, outbox);
    made := format('%I.%I', schema_name, partition_name)::regclass;
    IF is_secured THEN
      EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', made);
    END IF;
    -- Default privileges may have granted privileges on the new table. Access goes through the outbox.
    FOR grantee IN
      SELECT DISTINCT a.grantee FROM pg_class AS c CROSS JOIN LATERAL aclexplode(c.relacl) AS a
       WHERE c.oid = made AND a.grantee <> c.relowner
    LOOP
      EXECUTE format('REVOKE ALL ON TABLE %s FROM %s', made,
                     CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END);
    END LOOP;
    SELECT t.tgfoid INTO guard FROM pg_trigger AS t
     WHERE t.tgrelid = outbox AND t.tgname = 'append_only' AND NOT t.tgisinternal;
    IF guard IS NOT NULL THEN
      EXECUTE format('CREATE TRIGGER append_only BEFORE UPDATE OR TRUNCATE ON %s
                        FOR EACH STATEMENT EXECUTE FUNCTION %s()', made, guard);
    END IF;
    EXECUTE format('ALTER TABLE %s ATTACH PARTITION %s %s', outbox, made, bounds);
  END
  $make$;

  -- Creates the DEFAULT partition, the current partition and the next ones, if they are missing.
  -- The DEFAULT partition accepts rows that fit nowhere else. While it contains rows of a range, no
  -- partition can be created for that range, and the function counts the range as blocked.
  CREATE FUNCTION public.app_outbox_add_partitions(outbox regclass, OUT added int, OUT blocked int)
    LANGUAGE plpgsql
    SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET timezone = 'UTC'
    SET datestyle = 'ISO'
    SET lock_timeout = '100ms' -- whoever waits for a lock blocks those who come later
  AS $add$
  #variable_conflict use_variable
  DECLARE
    settings record;
    table_name text;
    next_start timestamptz;
    next_end timestamptz;
    last_end timestamptz;
    existing_end timestamptz;
    existing_start timestamptz;
  BEGIN
    added := 0;
    blocked := 0;
    SELECT s.span, s.spans_ahead INTO settings
      FROM public.app_outbox_partitioning AS s WHERE s.outbox = outbox FOR UPDATE;
    IF settings.span IS NULL THEN
      RETURN;
    END IF;
    SELECT left(c.relname, 40) INTO table_name FROM pg_class AS c WHERE c.oid = outbox;
    IF NOT EXISTS (SELECT FROM public.app_outbox_partition_bounds(outbox) AS b WHERE b.is_default) THEN
      PERFORM public.app_outbox_make_partition(outbox, table_name || '_default', 'DEFAULT');
      added := added + 1;
    END IF;
    next_start := public.app_outbox_span_start(settings.span, now());
    last_end := next_start + (settings.spans_ahead + 1) * settings.span;
    WHILE next_start < last_end LOOP
      SELECT max(b.upper_bound) FILTER (WHERE b.lower_bound <= next_start AND next_start < b.upper_bound),
             min(b.lower_bound) FILTER (WHERE b.lower_bound > next_start)
        INTO existing_end, existing_start
        FROM public.app_outbox_partition_bounds(outbox) AS b WHERE NOT b.is_default;
      IF existing_end IS NOT NULL THEN
        next_start := existing_end;
        CONTINUE;
      END IF;
      next_end := least(public.app_outbox_span_start(settings.span, next_start) + settings.span, existing_start);
      BEGIN
        PERFORM public.app_outbox_make_partition(
          outbox,
          table_name || to_char(next_start, CASE WHEN date_trunc('day', next_start) = next_start
                                                  AND settings.span >= interval '1 day'
                                            THEN '_YYYYMMDD' ELSE '_YYYYMMDD_HH24MISS' END),
          format('FOR VALUES FROM (%L) TO (%L)', next_start, next_end));
        added := added + 1;
      EXCEPTION WHEN check_violation THEN
        blocked := blocked + 1;
      END;
      next_start := next_end;
    END LOOP;
  END
  $add$;

  -- The state of a partitioned outbox: until when partitions exist, and the number of rows in the
  -- DEFAULT partition, at most 10,000. The span is null if the relay does not create partitions.
  CREATE FUNCTION public.app_outbox_partition_state(
    outbox regclass, OUT span interval, OUT partitions bigint, OUT ready_until timestamptz, OUT default_rows bigint)
    LANGUAGE plpgsql STABLE
    SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
  AS $state$
  #variable_conflict use_variable
  DECLARE
    default_partition regclass;
  BEGIN
    SELECT s.span INTO span FROM public.app_outbox_partitioning AS s WHERE s.outbox = outbox;
    default_rows := 0;
    SELECT count(*), max(b.upper_bound) FILTER (WHERE NOT b.is_default),
           max(b.partition::oid) FILTER (WHERE b.is_default)
      INTO partitions, ready_until, default_partition
      FROM public.app_outbox_partition_bounds(outbox) AS b;
    IF FOUND AND default_partition IS NOT NULL
       AND EXISTS (SELECT FROM public.app_outbox_partitioning AS s WHERE s.outbox = outbox) THEN
      EXECUTE format('SELECT count(*) FROM (SELECT FROM %s LIMIT 10000) AS r', default_partition) INTO default_rows;
    END IF;
  END
  $state$;

  -- Drops a partition in which every row is older than the given age, settled for every relay on
  -- record, and neither parked nor dead. An empty partition is dropped once its range is that old.
  -- With a number and a checksum of rows, the partition must contain exactly those. Returns whether
  -- it was dropped, or may be dropped.
  CREATE FUNCTION public.app_outbox_drop_partition(
    partition regclass, id_column text, time_column text, older_than interval, only_check boolean DEFAULT false,
    expected_rows bigint DEFAULT NULL, expected_checksum numeric DEFAULT NULL)
    RETURNS boolean
    LANGUAGE plpgsql
    SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp
    SET datestyle = 'ISO' -- the text of values never depends on the session
    SET intervalstyle = 'postgres'
    SET timezone = 'UTC'
    SET bytea_output = 'hex'
    SET extra_float_digits = 1
    SET lc_monetary = 'C'
    SET lock_timeout = '100ms' -- whoever waits for the lock of the outbox blocks producers
  AS $drop$
  #variable_conflict use_variable
  DECLARE
    outbox CONSTANT regclass := pg_partition_root(partition);
    bounds record;
    oldest_settled int; -- the age of the horizon of the relay that is furthest behind
    answer record;
  BEGIN
    IF NOT EXISTS (SELECT FROM public.app_outbox_partitioning AS s WHERE s.outbox = outbox) THEN
      RAISE EXCEPTION '% is not a partition of an outbox in app_outbox_partitioning', partition
        USING ERRCODE = 'insufficient_privilege';
    END IF;
    SELECT b.is_default, b.upper_bound INTO bounds
      FROM public.app_outbox_partition_bounds(outbox) AS b WHERE b.partition = partition;
    SELECT max(age(r.settled_xid::xid)) INTO oldest_settled FROM public.app_outbox_relay AS r;
    IF bounds.is_default IS DISTINCT FROM false OR oldest_settled IS NULL
       OR bounds.upper_bound > now() - older_than THEN
      RETURN false;
    END IF;
    IF NOT only_check THEN
      -- Stops writers of this partition only. Readers continue.
      EXECUTE format('LOCK TABLE %s IN EXCLUSIVE MODE', partition);
    END IF;
    EXECUTE format(
      'SELECT NOT EXISTS (SELECT FROM %1$s) AS is_empty,
              EXISTS (SELECT FROM %1$s AS c
                       WHERE (c.%3$I < now() - $1) IS NOT TRUE OR age(c.xmin) <= $2)
              OR EXISTS (SELECT FROM public.app_outbox_dispatch AS d JOIN %1$s AS c ON concat(c.%2$I) COLLATE "default" = d.event_id
                          WHERE d.status IN (''retrying'', ''dead'')) AS is_needed',
      partition, id_column, time_column)
      INTO answer USING older_than, oldest_settled;
    IF answer.is_needed OR answer.is_empty AND bounds.upper_bound IS NULL THEN
      RETURN false;
    END IF;
    IF expected_rows IS NOT NULL THEN
      EXECUTE format('SELECT count(*) AS rows, coalesce(sum(hashtextextended(concat(c.%2$I), 0)), 0) AS checksum FROM %1$s AS c',
                     partition, id_column) INTO answer;
      IF answer.rows <> expected_rows OR answer.checksum IS DISTINCT FROM expected_checksum THEN
        RETURN false;
      END IF;
    END IF;
    IF NOT only_check THEN
      EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', outbox);
      EXECUTE format('DROP TABLE %s', partition);
    END IF;
    RETURN true;
  END
  $drop$;

  -- Converts a plain outbox into a partitioned one. The existing table becomes the first partition,
  -- up to the bound of its constraint app_outbox_bound. Nothing is copied. Prepare the table first:
  -- a validated CHECK constraint app_outbox_bound of the form (time < bound), and a unique index on
  -- the primary key and the time. Stop the relay, because it ends when its publication changes.
  -- Returns the name of the first partition.
  CREATE FUNCTION public.app_outbox_to_partitions(outbox regclass, span interval) RETURNS text
    LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET timezone = 'UTC'
    SET datestyle = 'ISO'
    SET lock_timeout = '2s' -- producers wait behind the lock
  AS $convert$
  #variable_conflict use_variable
  DECLARE
    schema_name text;
    table_name text;
    owner_name text;
    is_secured boolean;
    bound_text text;
    time_column text;
    key_name text;
    index_name text;
    problem text;
    old_name text;
    parent text;
    statement text;
    bound_objects text;
    afterwards text[] := '{}'; -- run on the new table
  BEGIN
    IF (SELECT c.relkind FROM pg_class AS c WHERE c.oid = outbox) = 'p' THEN
      RAISE EXCEPTION '% cannot be converted: it is partitioned already', outbox
        USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Nothing is left to do. Start the relay.';
    END IF;
    -- Everything that names the table by its identity and is not replaced below would read and write
    -- only the first partition. Checked before the lock, so that a refusal does not block producers.
    SELECT string_agg(DISTINCT pg_describe_object(d.classid, d.objid, 0), ', ') INTO bound_objects
      FROM pg_class AS c JOIN pg_type AS t ON t.oid = c.reltype
      JOIN pg_depend AS d
        ON d.deptype <> 'i'
       AND (d.refclassid = 'pg_class'::regclass AND d.refobjid = c.oid
            OR d.refclassid = 'pg_type'::regclass AND d.refobjid IN (t.oid, t.typarray))
     WHERE c.oid = outbox
       AND d.classid <> ALL (ARRAY['pg_attrdef', 'pg_statistic_ext', 'pg_publication_rel', 'pg_trigger']::regclass[])
       AND NOT EXISTS (SELECT FROM pg_class AS own
                        WHERE d.classid = 'pg_class'::regclass AND own.oid = d.objid AND own.relkind IN ('i', 'S'))
       AND NOT EXISTS (SELECT FROM pg_constraint AS own WHERE d.classid = 'pg_constraint'::regclass AND own.oid = d.objid)
       AND NOT EXISTS (SELECT FROM pg_policy AS own
                        WHERE d.classid = 'pg_policy'::regclass AND own.oid = d.objid AND own.polrelid = outbox)
       AND NOT EXISTS (SELECT FROM pg_rewrite AS r JOIN pg_class AS v ON v.oid = r.ev_class AND v.relkind = 'v'
                        WHERE d.classid = 'pg_rewrite'::regclass AND r.oid = d.objid);
    IF bound_objects IS NOT NULL THEN
      RAISE EXCEPTION '% cannot be converted: these objects would use only its first partition: %', outbox, bound_objects
        USING ERRCODE = 'object_not_in_prerequisite_state',
              HINT = 'Drop them, convert the table, and create them again. A function whose body is a string needs no change.';
    END IF;
    EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', outbox);
    SELECT n.nspname, c.relname, c.relowner::regrole::text, c.relrowsecurity
      INTO schema_name, table_name, owner_name, is_secured
      FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = outbox;
    SELECT m[1], m[2] INTO time_column, bound_text
      FROM pg_constraint AS c
     CROSS JOIN LATERAL regexp_match(pg_get_expr(c.conbin, c.conrelid), '^\((\w+) < ''([^'']+)''::timestamp') AS m
     WHERE c.conrelid = outbox AND c.conname = 'app_outbox_bound' AND c.contype = 'c' AND c.convalidated;
    SELECT c.conname INTO key_name FROM pg_constraint AS c WHERE c.conrelid = outbox AND c.contype = 'p';
    SELECT i.indexrelid::regclass::text INTO index_name
      FROM pg_index AS i
     WHERE i.indrelid = outbox AND i.indisunique AND i.indisvalid AND NOT i.indisprimary AND i.indpred IS NULL
       AND i.indnkeyatts = 2 AND i.indnatts = 2
       AND i.indkey[0] = (SELECT k.indkey[0] FROM pg_index AS k WHERE k.indrelid = outbox AND k.indisprimary AND k.indnkeyatts = 1)
       AND i.indkey[1] = (SELECT a.attnum FROM pg_attribute AS a WHERE a.attrelid = outbox AND a.attname = time_column)
     LIMIT 1;
    problem := CASE
      WHEN (SELECT c.relkind FROM pg_class AS c WHERE c.oid = outbox) <> 'r' THEN 'it is not a plain table'
      WHEN bound_text IS NULL THEN 'it has no validated constraint app_outbox_bound of the form (time < bound)'
      WHEN bound_text::timestamptz <= now() THEN 'the bound of app_outbox_bound has passed'
      WHEN index_name IS NULL THEN format('it has no valid unique index on its primary key and %I', time_column)
      WHEN EXISTS (SELECT FROM pg_replication_slots AS s JOIN public.app_outbox_relay AS r ON r.slot = s.slot_name WHERE s.active)
        THEN 'a relay is running'
      WHEN EXISTS (
        SELECT FROM public.app_outbox_relay AS r
         CROSS JOIN LATERAL jsonb_each_text(r.publication -> 'tables') AS t
          LEFT JOIN pg_publication AS p ON p.pubname = r.publication ->> 'name'
          LEFT JOIN pg_class AS c ON c.oid = to_regclass(t.key)
          LEFT JOIN pg_publication_rel AS l ON l.prpubid = p.oid AND l.prrelid = c.oid
         WHERE r.publication -> 'tables' ? format('%I.%I', schema_name, table_name)
           AND t.value <> format('%s %s %s %s %s', p.oid, p.xmin, c.oid, l.oid, l.xmin))
        THEN 'its publication was changed after a relay last ran, start the relay first'
      WHEN EXISTS (SELECT FROM pg_attribute AS a WHERE a.attrelid = outbox AND a.attname = time_column AND NOT a.attnotnull)
        THEN format('%I allows null', time_column)
      WHEN EXISTS (SELECT FROM pg_attribute AS a WHERE a.attrelid = outbox AND a.attidentity <> '') THEN 'it has an identity column'
      WHEN EXISTS (SELECT FROM pg_constraint AS c WHERE c.conrelid = outbox AND NOT c.convalidated) THEN 'a constraint is not validated'
      WHEN EXISTS (SELECT FROM pg_constraint AS c WHERE c.confrelid = outbox) THEN 'a foreign key refers to it'
      WHEN EXISTS (SELECT FROM pg_trigger AS t WHERE t.tgrelid = outbox AND NOT t.tgisinternal AND t.tgname <> 'append_only')
        THEN 'it has triggers that new partitions would lack'
      WHEN EXISTS (SELECT FROM pg_index AS i WHERE i.indrelid = outbox AND i.indisunique AND NOT i.indisprimary
                      AND i.indexrelid <> index_name::regclass)
        THEN 'it has another unique index'
    END;
    IF problem IS NOT NULL THEN
      RAISE EXCEPTION '% cannot be converted: %', outbox, problem USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;

    -- Everything that names the table by its identity, and has to name the new one.
    SELECT coalesce(array_agg(format('CREATE OR REPLACE VIEW %s %s AS %s', v.oid::regclass,
                                     CASE WHEN v.reloptions IS NULL THEN ''
                                          ELSE format('WITH (%s)', array_to_string(v.reloptions, ', ')) END,
                                     pg_get_viewdef(v.oid))), '{}')
      INTO afterwards
      FROM pg_class AS v
     WHERE v.relkind = 'v' AND v.oid IN (
       SELECT w.ev_class FROM pg_depend AS d JOIN pg_rewrite AS w ON w.oid = d.objid
        WHERE d.classid = 'pg_rewrite'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = outbox);
    parent := format('%I.%I', schema_name, table_name);
    SELECT afterwards || coalesce(array_agg(format('GRANT %s%s ON TABLE %s TO %s%s', g.privilege_type, g.columns, parent,
                                  CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE g.grantee::regrole::text END,
                                  CASE WHEN g.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END)), '{}')
      INTO afterwards
      FROM (
        SELECT a.*, '' AS columns FROM pg_class AS c CROSS JOIN LATERAL aclexplode(c.relacl) AS a
         WHERE c.oid = outbox AND a.grantee <> c.relowner
        UNION ALL
        SELECT a.*, format(' (%I)', t.attname) FROM pg_attribute AS t CROSS JOIN LATERAL aclexplode(t.attacl) AS a
         WHERE t.attrelid = outbox AND t.attnum > 0 AND NOT t.attisdropped) AS g;
    SELECT afterwards || coalesce(array_agg(format('CREATE POLICY %I ON %s AS %s FOR %s TO %s%s%s', p.policyname, parent,
                                  p.permissive, p.cmd,
                                  (SELECT string_agg(CASE r WHEN 'public' THEN 'PUBLIC' ELSE quote_ident(r) END, ', ') FROM unnest(p.roles) AS r),
                                  ' USING (' || p.qual || ')', ' WITH CHECK (' || p.with_check || ')')), '{}')
      INTO afterwards
      FROM (SELECT q.policyname, q.permissive, q.cmd, q.roles, q.qual, q.with_check FROM pg_policies AS q
             WHERE q.schemaname = schema_name AND q.tablename = table_name) AS p;
    SELECT afterwards
           || coalesce(array_agg(format('CREATE TRIGGER append_only BEFORE UPDATE OR TRUNCATE ON %s
                                          FOR EACH STATEMENT EXECUTE FUNCTION %s()', parent, t.tgfoid::regproc)), '{}')
      INTO afterwards
      FROM pg_trigger AS t WHERE t.tgrelid = outbox AND t.tgname = 'append_only' AND NOT t.tgisinternal;
    SELECT afterwards || coalesce(array_agg(format('ALTER SEQUENCE %s OWNED BY %s.%I', d.objid::regclass, parent, a.attname)), '{}')
      INTO afterwards
      FROM pg_depend AS d JOIN pg_attribute AS a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
      JOIN pg_class AS s ON s.oid = d.objid AND s.relkind = 'S'
     WHERE d.refobjid = outbox AND d.deptype = 'a';
    SELECT afterwards
           || coalesce(array_agg(format('ALTER PUBLICATION %I DROP TABLE ONLY %s', p.pubname, '%1$s')), '{}')
           || coalesce(array_agg(format('ALTER PUBLICATION %I SET (publish_via_partition_root = true)', p.pubname))
                         FILTER (WHERE NOT p.pubviaroot), '{}')
           || coalesce(array_agg(format('ALTER PUBLICATION %I ADD TABLE %s%s', p.pubname, parent,
                                        ' WHERE (' || pg_get_expr(r.prqual, r.prrelid) || ')')), '{}')
      INTO afterwards
      FROM pg_publication_rel AS r JOIN pg_publication AS p ON p.oid = r.prpubid WHERE r.prrelid = outbox;
    old_name := left(table_name, 40) || to_char(bound_text::timestamptz, '"_before_"YYYYMMDD');
    EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', outbox, key_name);
    EXECUTE format('ALTER TABLE %s ADD CONSTRAINT %I PRIMARY KEY USING INDEX %s', outbox,
                   left(old_name, 58) || '_pkey', (SELECT c.relname FROM pg_class AS c WHERE c.oid = index_name::regclass));
    EXECUTE format('ALTER TABLE %s RENAME TO %I', outbox, old_name);
    EXECUTE format('CREATE TABLE %s (LIKE %I.%I INCLUDING ALL) PARTITION BY RANGE (%I)',
                   parent, schema_name, old_name, time_column);
    EXECUTE format('ALTER TABLE %s DROP CONSTRAINT app_outbox_bound', parent);
    EXECUTE format('ALTER TABLE %s OWNER TO %s', parent, owner_name);
    -- Default privileges may have granted privileges on the new table.
    FOR statement IN
      SELECT DISTINCT format('REVOKE ALL ON TABLE %s FROM %s', parent,
                             CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END)
        FROM pg_class AS c CROSS JOIN LATERAL aclexplode(c.relacl) AS a
       WHERE c.oid = parent::regclass AND a.grantee <> c.relowner
    LOOP
      EXECUTE statement;
    END LOOP;
    IF is_secured THEN
      EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', parent);
    END IF;
    FOREACH statement IN ARRAY afterwards LOOP
      EXECUTE replace(statement, '%1$s', format('%I.%I', schema_name, old_name));
    END LOOP;
    -- This change of the publication hides no row, because the table is locked.
    UPDATE public.app_outbox_relay AS r
       SET publication = jsonb_set(r.publication, '{tables}', (
             SELECT jsonb_object_agg(t.key, format('%s %s %s %s %s', p.oid, p.xmin, c.oid, l.oid, l.xmin))
               FROM jsonb_object_keys(r.publication -> 'tables') AS t(key)
               LEFT JOIN pg_publication AS p ON p.pubname = r.publication ->> 'name'
               LEFT JOIN pg_class AS c ON c.oid = to_regclass(t.key)
               LEFT JOIN pg_publication_rel AS l ON l.prpubid = p.oid AND l.prrelid = c.oid))
     WHERE r.publication -> 'tables' ? parent;
    -- The partitioned table is the outbox now.
    UPDATE public.app_outbox_definition AS d
       SET tables = (
             SELECT jsonb_agg(CASE WHEN (t.value ->> 'oid')::oid = outbox
                              THEN jsonb_set(t.value, '{oid}', to_jsonb(parent::regclass::oid::bigint))
                              ELSE t.value END ORDER BY t.number)
               FROM jsonb_array_elements(d.tables) WITH ORDINALITY AS t(value, number))
     WHERE d.tables @> jsonb_build_array(jsonb_build_object('oid', outbox::oid::bigint));
    -- The constraint proves that every row is in the range, so nothing is scanned.
    EXECUTE format('ALTER TABLE %s ATTACH PARTITION %I.%I FOR VALUES FROM (MINVALUE) TO (%L)',
                   parent, schema_name, old_name, bound_text);
    EXECUTE format('ALTER TABLE %I.%I DROP CONSTRAINT app_outbox_bound', schema_name, old_name);
    INSERT INTO public.app_outbox_partitioning (outbox, span) VALUES (parent::regclass, span);
    PERFORM public.app_outbox_add_partitions(parent::regclass);
    RETURN old_name;
  END
  $convert$;

  -- On Supabase, the internet reaches the schema public through these two roles. Default privileges
  -- have just granted them all privileges on the new objects.
  REVOKE ALL ON TABLE public.app_outbox_partitioning FROM PUBLIC;
  FOR web_role IN
    SELECT rolname FROM pg_catalog.pg_roles WHERE rolname IN ('anon', 'authenticated')
  LOOP
    EXECUTE format('REVOKE ALL ON TABLE %s FROM %I', 'public.app_outbox_partitioning'::regclass, web_role);
  END LOOP;
  FOR function IN
    SELECT p.oid::regprocedure FROM pg_catalog.pg_proc AS p
     WHERE p.pronamespace = 'public'::regnamespace
       AND p.proname IN ('app_outbox_partition_bounds', 'app_outbox_span_start', 'app_outbox_make_partition',
                         'app_outbox_add_partitions', 'app_outbox_partition_state', 'app_outbox_drop_partition',
                         'app_outbox_to_partitions')
  LOOP
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', function);
    FOR web_role IN
      SELECT rolname FROM pg_catalog.pg_roles WHERE rolname IN ('anon', 'authenticated')
    LOOP
      EXECUTE format('REVOKE ALL ON FUNCTION %s FROM %I', function, web_role);
    END LOOP;
  END LOOP;
END
$walrelay$;
