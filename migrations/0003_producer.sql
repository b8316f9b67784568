-- Functions that write events from SQL: app_outbox_emit assigns versions, and app_outbox_capture is
-- a trigger that writes events.
--
-- A single statement, so it is atomic under psql, `supabase db push` and `walrelay init`. Safe to
-- run again: existing objects stay unchanged. If the outbox has other columns than
-- 0001_app_outbox.sql, no object is created.
DO $walrelay$
DECLARE
  web_role text;
  function text;
BEGIN
  -- Concurrent runs wait for each other. The second run then finds every object in place.
  PERFORM pg_advisory_xact_lock(hashtextextended('walrelay migrations', 0));

  IF to_regclass('public.app_outbox_aggregate') IS NOT NULL THEN
    RETURN;
  END IF;
  IF (
    SELECT count(*) FROM pg_catalog.pg_attribute AS a
     WHERE a.attrelid = 'public.app_outbox'::regclass AND NOT a.attisdropped
       AND (a.attname, a.atttypid) IN (
         ('aggregatetype', 'text'::regtype), ('aggregateid', 'text'::regtype), ('event_type', 'text'::regtype),
         ('version', 'bigint'::regtype), ('schema_version', 'int'::regtype), ('payload', 'jsonb'::regtype),
         ('headers', 'jsonb'::regtype))) < 7
  THEN
    RAISE NOTICE '% has columns of its own: app_outbox_emit and app_outbox_capture are left out',
      'public.app_outbox'::regclass;
    RETURN;
  END IF;

  CREATE TABLE public.app_outbox_aggregate ( -- one row per aggregate: its lock, and its last version
    aggregatetype text   COLLATE "C" NOT NULL,
    aggregateid   text   COLLATE "C" NOT NULL,
    version       bigint NOT NULL,
    CONSTRAINT app_outbox_aggregate_pkey PRIMARY KEY (aggregatetype, aggregateid)
  ) WITH (fillfactor = 70); -- each event writes its row; room in the page spares the index

  ALTER TABLE public.app_outbox_aggregate ENABLE ROW LEVEL SECURITY;

  -- Writes one event and returns its version, which is the aggregate's last version plus one.
  -- Versions have no gaps, because the aggregate's row stays locked until the transaction ends. If
  -- expected_version is given, the function refuses an aggregate at another version. The value 0
  -- means that the aggregate has no version yet.
  --
  -- A transaction that emits for several aggregates must use the same order everywhere, for example
  -- by type and id. Otherwise two such transactions deadlock.
  CREATE FUNCTION public.app_outbox_emit(
    aggregatetype text, aggregateid text, event_type text, payload jsonb,
    expected_version bigint DEFAULT NULL, headers jsonb DEFAULT NULL, schema_version int DEFAULT 1)
    RETURNS bigint
    LANGUAGE plpgsql
    SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp -- last: named nowhere, a temporary type called text comes first
  AS $emit$
  #variable_conflict use_variable
  DECLARE
    -- Pub/Sub's limits: the size of an ordering key, and the size of a message without its
    -- attributes.
    key_bytes_max CONSTANT int := 1024;
    payload_bytes_max CONSTANT int := 9850000;
    new_version bigint;
  BEGIN
    IF aggregateid IS NULL OR aggregateid = '' OR octet_length(aggregateid) > key_bytes_max THEN
      RAISE EXCEPTION 'an aggregate id has 1 to % bytes, this one has %', key_bytes_max,
          coalesce(octet_length(aggregateid), 0)
        USING ERRCODE = 'invalid_parameter_value', HINT = 'It is the ordering key of the message.';
    END IF;
    IF octet_length(payload::text) > payload_bytes_max THEN
      RAISE EXCEPTION 'a payload of % bytes: a message has room for %', octet_length(payload::text),
          payload_bytes_max
        USING ERRCODE = 'program_limit_exceeded',
              HINT = 'Store the bulk elsewhere, and let the event say where.';
    END IF;

    INSERT INTO public.app_outbox_aggregate AS a (aggregatetype, aggregateid, version)
      VALUES (aggregatetype, aggregateid, 1)
      ON CONFLICT ON CONSTRAINT app_outbox_aggregate_pkey DO UPDATE SET version = a.version + 1
      RETURNING a.version INTO new_version;
    IF new_version - 1 <> expected_version THEN
      -- PostgREST, and therefore Supabase, returns PT409 as HTTP status 409.
      RAISE EXCEPTION '% % is at version %, not %', aggregatetype, aggregateid, new_version - 1, expected_version
        USING ERRCODE = 'PT409', HINT = 'Somebody else has changed it meanwhile: read it again.';
    END IF;

    INSERT INTO public.app_outbox (
        aggregatetype, aggregateid, event_type, version, schema_version, payload, headers)
      VALUES (aggregatetype, aggregateid, event_type, new_version, schema_version, payload, headers);
    RETURN new_version;
  END
  $emit$;

  -- A row trigger that writes the event inserted, updated or deleted for a plain INSERT, UPDATE or
  -- DELETE. The payload is the row. The arguments are the aggregate's type, its id column, and the
  -- other columns to publish. Without further columns, all columns are published.
  --
  --   CREATE TRIGGER app_outbox_capture AFTER INSERT OR UPDATE OR DELETE ON orders
  --     FOR EACH ROW EXECUTE FUNCTION app_outbox_capture('order', 'id', 'status', 'total');
  CREATE FUNCTION public.app_outbox_capture() RETURNS trigger
    LANGUAGE plpgsql
    SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp -- last: named nowhere, a temporary type called text comes first
  AS $capture$
  DECLARE
    aggregatetype CONSTANT text := TG_ARGV[0];
    id_column CONSTANT text := TG_ARGV[1];
    columns CONSTANT text[] := TG_ARGV[1:];
    missing text;
    old_row jsonb;
    new_row jsonb;
    old_id text;
    new_id text;
  BEGIN
    IF TG_OP = 'TRUNCATE' THEN
      RAISE EXCEPTION 'TRUNCATE of %.% is refused: its rows are captured one by one', TG_TABLE_SCHEMA,
          TG_TABLE_NAME
        USING ERRCODE = 'restrict_violation', HINT = 'DELETE writes an event for each row.';
    END IF;
    IF TG_WHEN <> 'AFTER' OR TG_LEVEL <> 'ROW' OR id_column IS NULL THEN
      RAISE EXCEPTION 'trigger % is no AFTER trigger FOR EACH ROW with two arguments or more', TG_NAME
        USING ERRCODE = 'trigger_protocol_violated',
              HINT = 'SELECT app_outbox_capture(table, aggregatetype, id_column) makes the right ones.';
    END IF;

    -- In PL/pgSQL, OLD is null for INSERT and NEW is null for DELETE.
    IF TG_OP <> 'INSERT' THEN
      old_row := to_jsonb(OLD);
    END IF;
    IF TG_OP <> 'DELETE' THEN
      new_row := to_jsonb(NEW);
    END IF;
    -- Without this check, a renamed column would be published as null from now on.
    SELECT c.name INTO missing FROM unnest(columns) AS c(name)
     WHERE NOT coalesce(new_row, old_row) ? c.name LIMIT 1;
    IF missing IS NOT NULL THEN
      RAISE EXCEPTION 'trigger % publishes column %, which %.% does not have', TG_NAME, quote_ident(missing),
          TG_TABLE_SCHEMA, TG_TABLE_NAME
        USING ERRCODE = 'undefined_column',
              HINT = 'SELECT app_outbox_capture(table, aggregatetype, id_column, columns) replaces it.';
    END IF;
    IF TG_NARGS > 2 THEN
      SELECT jsonb_object_agg(c.name, old_row -> c.name) FILTER (WHERE old_row IS NOT NULL),
             jsonb_object_agg(c.name, new_row -> c.name) FILTER (WHERE new_row IS NOT NULL)
        INTO old_row, new_row
        FROM unnest(columns) AS c(name);
    END IF;
    old_id := old_row ->> id_column;
    new_id := new_row ->> id_column;

    IF old_id <> new_id THEN
      -- Two aggregates are locked in sorted order, as everywhere, so that no two transactions
      -- deadlock.
      IF old_id < new_id COLLATE "C" THEN
        PERFORM public.app_outbox_emit(aggregatetype, old_id, 'deleted', old_row);
      END IF;
      PERFORM public.app_outbox_emit(aggregatetype, new_id, 'inserted', new_row);
      IF old_id > new_id COLLATE "C" THEN
        PERFORM public.app_outbox_emit(aggregatetype, old_id, 'deleted', old_row);
      END IF;
    ELSIF TG_OP <> 'UPDATE' THEN
      PERFORM public.app_outbox_emit(
        aggregatetype, coalesce(new_id, old_id), CASE TG_OP WHEN 'INSERT' THEN 'inserted' ELSE 'deleted' END,
        coalesce(new_row, old_row));
    ELSIF new_row <> old_row THEN
      PERFORM public.app_outbox_emit(aggregatetype, new_id, 'updated', new_row);
    END IF;
    RETURN NULL;
  END
  $capture$;

  -- Creates or replaces the capture triggers of a table. The caller must own the table. Without
  -- columns, all columns are published, including columns that a later ALTER TABLE adds.
  CREATE FUNCTION public.app_outbox_capture(
    captured regclass, aggregatetype text, id_column text, columns text[] DEFAULT '{}')
    RETURNS void
    LANGUAGE plpgsql
  AS $install$
  DECLARE
    missing text;
    call text;
  BEGIN
    SELECT quote_ident(c.name) INTO missing FROM unnest(id_column || columns) AS c(name)
     WHERE NOT EXISTS (
       SELECT FROM pg_catalog.pg_attribute AS a
        WHERE a.attrelid = captured AND a.attname = c.name AND a.attnum > 0 AND NOT a.attisdropped)
     LIMIT 1;
    IF missing IS NOT NULL THEN
      RAISE EXCEPTION '% has no column %', captured, missing USING ERRCODE = 'undefined_column';
    END IF;
    SELECT format('EXECUTE FUNCTION %I.%I(%s)', n.nspname, p.proname,
             (SELECT string_agg(quote_literal(c.argument), ', ' ORDER BY c.i)
                FROM unnest(aggregatetype || (id_column || array_remove(columns, id_column)))
                     WITH ORDINALITY AS c(argument, i)))
      INTO call
      FROM pg_catalog.pg_proc AS p
      JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
     WHERE p.oid = 'public.app_outbox_capture()'::regprocedure;
    EXECUTE format(
      'CREATE OR REPLACE TRIGGER app_outbox_capture AFTER INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW ',
      captured) || call;
    EXECUTE format(
      'CREATE OR REPLACE TRIGGER app_outbox_capture_truncate BEFORE TRUNCATE ON %s FOR EACH STATEMENT ',
      captured) || call;
  END
  $install$;

  -- On Supabase, the internet reaches the schema public through these two roles. Default privileges
  -- have just granted them all privileges on the new objects.
  REVOKE ALL ON TABLE public.app_outbox_aggregate FROM PUBLIC;
  FOR web_role IN
    SELECT rolname FROM pg_catalog.pg_roles WHERE rolname IN ('anon', 'authenticated')
  LOOP
    EXECUTE format('REVOKE ALL ON TABLE %s FROM %I', 'public.app_outbox_aggregate'::regclass, web_role);
  END LOOP;
  FOR function IN
    SELECT p.oid::regprocedure FROM pg_catalog.pg_proc AS p
     WHERE p.proname IN ('app_outbox_emit', 'app_outbox_capture')
       AND p.pronamespace = (
         SELECT c.relnamespace FROM pg_catalog.pg_class AS c WHERE c.oid = 'public.app_outbox_aggregate'::regclass)
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
