-- Functions that write events from SQL: app_outbox_emit assigns versions, app_outbox_emit_once also
-- takes an idempotency key, and app_outbox_capture is a trigger that writes events.
--
-- A single statement, so it is atomic under psql, `supabase db push` and `walrelay init`. Safe to
-- run again: existing objects stay unchanged. If the outbox has other columns than
-- 0001_app_outbox.sql, no object is created.
DO $walrelay$
DECLARE
  web_role text;
  function text;
  relation text;
  payload_type text;
  messages CONSTANT text := current_setting('client_min_messages');
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
         ('id', 'uuid'::regtype), ('version', 'bigint'::regtype), ('schema_version', 'int'::regtype),
         ('payload', 'jsonb'::regtype), ('payload', 'json'::regtype), ('payload', 'text'::regtype),
         ('payload', 'bytea'::regtype), ('headers', 'jsonb'::regtype))) < 8
  THEN
    RAISE NOTICE '% has columns of its own: app_outbox_emit and app_outbox_capture are left out',
      'public.app_outbox'::regclass;
    RETURN;
  END IF;
  SELECT a.atttypid::regtype INTO payload_type FROM pg_catalog.pg_attribute AS a
   WHERE a.attrelid = 'public.app_outbox'::regclass AND a.attname = 'payload';
  -- Each use of %TYPE below would raise a notice.
  PERFORM set_config('client_min_messages', 'warning', true);

  CREATE TABLE public.app_outbox_aggregate ( -- one row per aggregate: its lock, and its last version
    aggregatetype text   COLLATE "C" NOT NULL,
    aggregateid   text   COLLATE "C" NOT NULL,
    version       bigint NOT NULL,
    CONSTRAINT app_outbox_aggregate_pkey PRIMARY KEY (aggregatetype, aggregateid)
  ) WITH (fillfactor = 70); -- each event writes its row; room in the page spares the index

  ALTER TABLE public.app_outbox_aggregate ENABLE ROW LEVEL SECURITY;

  CREATE TABLE public.app_outbox_key ( -- the event of each idempotency key
    idempotency_key text        COLLATE "C" NOT NULL,
    event_id        uuid        NOT NULL,
    aggregatetype   text        NOT NULL,
    aggregateid     text        NOT NULL,
    event_type      text        NOT NULL,
    version         bigint      NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT app_outbox_key_pkey PRIMARY KEY (idempotency_key)
  );

  -- For deleting old keys. Rows are appended in time order, so the index stays tiny.
  CREATE INDEX ON public.app_outbox_key USING brin (created_at);

  ALTER TABLE public.app_outbox_key ENABLE ROW LEVEL SECURITY;

  -- The size of a payload, and a document as a payload. Both have one form per payload type. Their
  -- bodies are expressions, so the planner replaces a call by the body.
  EXECUTE format(
    'CREATE FUNCTION %s(payload %s) RETURNS int LANGUAGE sql STABLE AS %L',
    'public.app_outbox_payload_bytes', payload_type,
    CASE payload_type WHEN 'bytea' THEN 'SELECT pg_catalog.octet_length($1)'
                      ELSE 'SELECT pg_catalog.octet_length($1::pg_catalog.text)' END);
  EXECUTE format(
    'CREATE FUNCTION %s(document jsonb) RETURNS %s LANGUAGE sql STABLE AS %L',
    'public.app_outbox_payload', payload_type,
    CASE payload_type WHEN 'bytea' THEN 'SELECT pg_catalog.convert_to($1::pg_catalog.text, ''UTF8'')'
                      ELSE format('SELECT $1::pg_catalog.%s', payload_type) END);

  -- Writes one event and returns its version, which is the aggregate's last version plus one.
  -- Versions have no gaps, because the aggregate's row stays locked until the transaction ends. If
  -- expected_version is given, the function refuses an aggregate at another version. The value 0
  -- means that the aggregate has no version yet.
  --
  -- A transaction that emits for several aggregates must use the same order everywhere, for example
  -- by type and id. Otherwise two such transactions deadlock.
  CREATE FUNCTION public.app_outbox_emit(
    aggregatetype text, aggregateid text, event_type text, payload public.app_outbox.payload%TYPE,
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
    IF public.app_outbox_payload_bytes(payload) > payload_bytes_max THEN
      RAISE EXCEPTION 'a payload of % bytes: a message has room for %',
          public.app_outbox_payload_bytes(payload), payload_bytes_max
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

  -- Writes one event per idempotency key. A later call with the same key returns the first event
  -- and writes nothing: is_new is false. The caller must then roll its own change back, because
  -- the first call has made that change. The key of another aggregate or event type is an error.
  --
  -- The checks of app_outbox_emit are repeated here, because a nested definer function costs a
  -- third of the whole call.
  CREATE FUNCTION public.app_outbox_emit_once(
    aggregatetype text, aggregateid text, event_type text, payload public.app_outbox.payload%TYPE,
    idempotency_key text, expected_version bigint DEFAULT NULL, headers jsonb DEFAULT NULL,
    schema_version int DEFAULT 1,
    OUT event_id uuid, OUT version bigint, OUT is_new boolean)
    LANGUAGE plpgsql
    SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp -- last: named nowhere, a temporary type called text comes first
  AS $once$
  #variable_conflict use_variable
  DECLARE
    key_bytes_max CONSTANT int := 1024;
    payload_bytes_max CONSTANT int := 9850000;
    known record;
    last_version bigint;
  BEGIN
    IF idempotency_key IS NULL OR idempotency_key = '' OR octet_length(idempotency_key) > key_bytes_max THEN
      RAISE EXCEPTION 'an idempotency key has 1 to % bytes, this one has %', key_bytes_max,
          coalesce(octet_length(idempotency_key), 0)
        USING ERRCODE = 'invalid_parameter_value', HINT = 'Use the id of the request or command.';
    END IF;
    IF aggregateid IS NULL OR aggregateid = '' OR octet_length(aggregateid) > key_bytes_max THEN
      RAISE EXCEPTION 'an aggregate id has 1 to % bytes, this one has %', key_bytes_max,
          coalesce(octet_length(aggregateid), 0)
        USING ERRCODE = 'invalid_parameter_value', HINT = 'It is the ordering key of the message.';
    END IF;
    IF public.app_outbox_payload_bytes(payload) > payload_bytes_max THEN
      RAISE EXCEPTION 'a payload of % bytes: a message has room for %',
          public.app_outbox_payload_bytes(payload), payload_bytes_max
        USING ERRCODE = 'program_limit_exceeded',
              HINT = 'Store the bulk elsewhere, and let the event say where.';
    END IF;

    event_id := gen_random_uuid();
    LOOP
      -- Before the check of expected_version, which a repeat of the first call would fail.
      SELECT k.event_id, k.version, k.aggregatetype, k.aggregateid, k.event_type INTO known
        FROM public.app_outbox_key AS k WHERE k.idempotency_key = idempotency_key;
      IF FOUND THEN
        IF (known.aggregatetype, known.aggregateid, known.event_type)
            IS DISTINCT FROM (aggregatetype, aggregateid, event_type) THEN
          RAISE EXCEPTION 'idempotency key % belongs to event % of % %', quote_literal(idempotency_key),
              known.event_type, known.aggregatetype, known.aggregateid
            USING ERRCODE = 'unique_violation', HINT = 'Use one key for one event.';
        END IF;
        event_id := known.event_id;
        version := known.version;
        is_new := false;
        RETURN;
      END IF;

      -- The aggregate first, and then the key: the other order deadlocks with app_outbox_emit.
      SELECT a.version INTO last_version FROM public.app_outbox_aggregate AS a
       WHERE a.aggregatetype = aggregatetype AND a.aggregateid = aggregateid FOR NO KEY UPDATE;
      IF NOT FOUND THEN
        INSERT INTO public.app_outbox_aggregate (aggregatetype, aggregateid, version)
          VALUES (aggregatetype, aggregateid, 0) ON CONFLICT DO NOTHING;
        CONTINUE;
      END IF;

      version := last_version + 1;
      INSERT INTO public.app_outbox_key (
          idempotency_key, event_id, aggregatetype, aggregateid, event_type, version)
        VALUES (idempotency_key, event_id, aggregatetype, aggregateid, event_type, version)
        ON CONFLICT DO NOTHING;
      EXIT WHEN FOUND;
    END LOOP;

    IF last_version <> expected_version THEN
      -- PostgREST, and therefore Supabase, returns PT409 as HTTP status 409.
      RAISE EXCEPTION '% % is at version %, not %', aggregatetype, aggregateid, last_version, expected_version
        USING ERRCODE = 'PT409', HINT = 'Somebody else has changed it meanwhile: read it again.';
    END IF;
    UPDATE public.app_outbox_aggregate AS a SET version = version
     WHERE a.aggregatetype = aggregatetype AND a.aggregateid = aggregateid;
    INSERT INTO public.app_outbox (
        id, aggregatetype, aggregateid, event_type, version, schema_version, payload, headers)
      VALUES (event_id, aggregatetype, aggregateid, event_type, version, schema_version, payload, headers);
    is_new := true;
  END
  $once$;

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
    SET datestyle = 'ISO' -- the text of values never depends on the session
    SET intervalstyle = 'postgres'
    SET timezone = 'UTC'
    SET bytea_output = 'hex'
    SET extra_float_digits = 1
    SET lc_monetary = 'C'
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
        PERFORM public.app_outbox_emit(aggregatetype, old_id, 'deleted', public.app_outbox_payload(old_row));
      END IF;
      PERFORM public.app_outbox_emit(aggregatetype, new_id, 'inserted', public.app_outbox_payload(new_row));
      IF old_id > new_id COLLATE "C" THEN
        PERFORM public.app_outbox_emit(aggregatetype, old_id, 'deleted', public.app_outbox_payload(old_row));
      END IF;
    ELSIF TG_OP <> 'UPDATE' THEN
      PERFORM public.app_outbox_emit(
        aggregatetype, coalesce(new_id, old_id), CASE TG_OP WHEN 'INSERT' THEN 'inserted' ELSE 'deleted' END,
        public.app_outbox_payload(coalesce(new_row, old_row)));
    ELSIF new_row <> old_row THEN
      PERFORM public.app_outbox_emit(aggregatetype, new_id, 'updated', public.app_outbox_payload(new_row));
    END IF;
    RETURN NULL;
  END
  $capture$;

  -- Creates or replaces the capture triggers of a table. The caller must own the table. Without
  -- columns, all columns are published, including columns that a later ALTER TABLE adds. A partition
  -- that is added later has the trigger for rows. Call the function again to refuse its TRUNCATE.
  CREATE FUNCTION public.app_outbox_capture(
    captured regclass, aggregatetype text, id_column text, columns text[] DEFAULT '{}')
    RETURNS void
    LANGUAGE plpgsql
  AS $install$
  DECLARE
    missing text;
    call text;
    truncated regclass;
  BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_inherits AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.inhparent
                WHERE i.inhparent = captured AND c.relkind <> 'p') THEN
      RAISE EXCEPTION '% has inheritance children, whose rows its triggers do not capture', captured
        USING ERRCODE = 'wrong_object_type', HINT = 'Detach them with ALTER TABLE and NO INHERIT, or use a partitioned table.';
    END IF;
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
    -- A partition can be truncated alone, and has no trigger of its parent FOR EACH STATEMENT.
    FOR truncated IN SELECT captured UNION SELECT t.relid FROM pg_catalog.pg_partition_tree(captured) AS t LOOP
      EXECUTE format(
        'CREATE OR REPLACE TRIGGER app_outbox_capture_truncate BEFORE TRUNCATE ON %s FOR EACH STATEMENT ',
        truncated) || call;
    END LOOP;
  END
  $install$;

  -- On Supabase, the internet reaches the schema public through these two roles. Default privileges
  -- have just granted them all privileges on the new objects.
  FOREACH relation IN ARRAY ARRAY['public.app_outbox_aggregate', 'public.app_outbox_key'] LOOP
    EXECUTE format('REVOKE ALL ON TABLE %s FROM PUBLIC', relation);
    FOR web_role IN
      SELECT rolname FROM pg_catalog.pg_roles WHERE rolname IN ('anon', 'authenticated')
    LOOP
      EXECUTE format('REVOKE ALL ON TABLE %s FROM %I', relation, web_role);
    END LOOP;
  END LOOP;
  FOR function IN
    SELECT p.oid::regprocedure FROM pg_catalog.pg_proc AS p
     WHERE p.proname IN ('app_outbox_emit', 'app_outbox_emit_once', 'app_outbox_capture',
                         'app_outbox_payload', 'app_outbox_payload_bytes')
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
  PERFORM set_config('client_min_messages', messages, true);
END
$walrelay$;
