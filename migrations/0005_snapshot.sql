-- The function app_outbox_snapshot writes one event for each existing row of a business table, and
-- app_outbox_snapshot is also the table of its progress. `walrelay snapshot` calls the function.
--
-- A single statement, so it is atomic under psql, `supabase db push` and `walrelay init`. Safe to
-- run again: existing objects stay unchanged. Without the functions of 0003_producer.sql, no object
-- is created.
DO $walrelay$
DECLARE
  web_role text;
  function text;
BEGIN
  -- Concurrent runs wait for each other. The second run then finds every object in place.
  PERFORM pg_advisory_xact_lock(hashtextextended('walrelay migrations', 0));

  IF to_regclass('public.app_outbox_snapshot') IS NOT NULL
     OR to_regclass('public.app_outbox_aggregate') IS NULL THEN
    RETURN;
  END IF;

  CREATE TABLE public.app_outbox_snapshot ( -- one row per snapshot: its progress
    request     jsonb       PRIMARY KEY, -- the arguments of the function
    last_id     text,                    -- id of the last row that was read
    events      bigint      NOT NULL DEFAULT 0,
    skipped     bigint      NOT NULL DEFAULT 0,
    started_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz NOT NULL DEFAULT now(),
    finished_at timestamptz
  );

  ALTER TABLE public.app_outbox_snapshot ENABLE ROW LEVEL SECURITY;

  -- Locks an aggregate until the transaction ends, as app_outbox_emit does, and returns its version.
  -- Without may_wait, the function returns null for an aggregate that another transaction has
  -- locked. With unless_versioned, an aggregate that has a version is not locked.
  CREATE FUNCTION public.app_outbox_lock(
    aggregatetype text, aggregateid text, may_wait boolean, unless_versioned boolean)
    RETURNS bigint
    LANGUAGE plpgsql
    SECURITY DEFINER
    SET search_path = pg_catalog, pg_temp -- last: named nowhere, a temporary type called text comes first
  AS $lock$
  #variable_conflict use_variable
  DECLARE
    callers_timeout CONSTANT text := current_setting('lock_timeout');
    found_version bigint;
  BEGIN
    LOOP
      SELECT a.version INTO found_version FROM public.app_outbox_aggregate AS a
       WHERE a.aggregatetype = aggregatetype AND a.aggregateid = aggregateid;
      IF FOUND AND unless_versioned AND found_version > 0 THEN
        RETURN found_version;
      ELSIF FOUND AND may_wait THEN
        SELECT a.version INTO found_version FROM public.app_outbox_aggregate AS a
         WHERE a.aggregatetype = aggregatetype AND a.aggregateid = aggregateid FOR NO KEY UPDATE;
        IF FOUND THEN
          RETURN found_version;
        END IF;
      ELSIF FOUND THEN
        SELECT a.version INTO found_version FROM public.app_outbox_aggregate AS a
         WHERE a.aggregatetype = aggregatetype AND a.aggregateid = aggregateid
           FOR NO KEY UPDATE SKIP LOCKED;
        RETURN found_version;
      ELSIF may_wait THEN
        INSERT INTO public.app_outbox_aggregate (aggregatetype, aggregateid, version)
          VALUES (aggregatetype, aggregateid, 0) ON CONFLICT DO NOTHING;
      ELSE
        -- The insert waits if another transaction is inserting the same aggregate.
        PERFORM set_config('lock_timeout', '10ms', true);
        BEGIN
          INSERT INTO public.app_outbox_aggregate (aggregatetype, aggregateid, version)
            VALUES (aggregatetype, aggregateid, 0) ON CONFLICT DO NOTHING;
        EXCEPTION WHEN lock_not_available THEN
          PERFORM set_config('lock_timeout', callers_timeout, true);
          RETURN NULL;
        END;
        PERFORM set_config('lock_timeout', callers_timeout, true);
      END IF;
    END LOOP;
  END
  $lock$;

  -- Writes events for the next rows of a table, in the order of their ids, and records the progress
  -- in the same transaction. Call it in a transaction of its own until is_done is true. The numbers
  -- count all rows of the snapshot, except that written counts the events of this call. Rows whose aggregate has a version already are skipped, unless
  -- include_versioned is true. With restart, the snapshot begins again with the first row.
  --
  -- The caller needs SELECT on the table. Of a batch, only the first row may wait for its
  -- aggregate, because a transaction that holds other locks while it waits deadlocks with writers.
  -- The row is read after its aggregate is locked, and without a lock on the row. So the last event
  -- of an aggregate is never older than its row. The condition is evaluated in the time
  -- zone UTC.
  CREATE FUNCTION public.app_outbox_snapshot(
    source regclass, aggregatetype text, id_column text, event_type text DEFAULT 'snapshot',
    columns text[] DEFAULT '{}', condition text DEFAULT 'true', include_versioned boolean DEFAULT false,
    batch_rows int DEFAULT 100, restart boolean DEFAULT false,
    OUT events bigint, OUT skipped bigint, OUT last_id text, OUT is_done boolean, OUT written bigint)
    LANGUAGE plpgsql
    SET datestyle = 'ISO' -- the text of values never depends on the session
    SET intervalstyle = 'postgres'
    SET timezone = 'UTC'
    SET bytea_output = 'hex'
    SET extra_float_digits = 1
    SET lc_monetary = 'C'
  AS $snapshot$
  #variable_conflict use_variable
  DECLARE
    batch_rows_max CONSTANT int := 1000;
    published CONSTANT text[] := id_column || array_remove(columns, id_column);
    request jsonb;
    progress record;
    candidate record;
    document jsonb;
    table_name text;
    row_name text; -- the table without its schema, as the condition may name it
    id text; -- SQL of the column
    id_type text;
    problem text;
    known_version bigint;
    read_rows int := 0;
  BEGIN
    IF batch_rows IS NULL OR batch_rows NOT BETWEEN 1 AND batch_rows_max THEN
      RAISE EXCEPTION 'a batch has 1 to % rows, not %', batch_rows_max, batch_rows
        USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF current_setting('transaction_isolation') <> 'read committed' THEN
      RAISE EXCEPTION 'a snapshot needs isolation level read committed, not %',
          current_setting('transaction_isolation')
        USING ERRCODE = 'active_sql_transaction', HINT = 'It reads each row after locking its aggregate.';
    END IF;

    SELECT format('%I.%I', n.nspname, c.relname), format('%I', c.relname), format('%I.%I', c.relname, id_column),
           format_type(a.atttypid, a.atttypmod),
           CASE
             WHEN c.relkind NOT IN ('r', 'p') OR (c.relkind = 'r' AND EXISTS (
               SELECT FROM pg_catalog.pg_inherits AS h WHERE h.inhparent = c.oid))
               THEN 'is not a table, or has child tables'
             WHEN a.attname IS NULL THEN format('has no column %I', id_column)
             WHEN NOT a.attnotnull THEN format('allows null in column %I', id_column)
             WHEN NOT EXISTS (
               SELECT FROM pg_catalog.pg_index AS i
                WHERE i.indrelid = c.oid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL
                  AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum)
               THEN format('has no unique index on column %I alone', id_column)
             ELSE (
               SELECT format('has no column %I', p.name) FROM unnest(published) AS p(name)
                WHERE NOT EXISTS (
                  SELECT FROM pg_catalog.pg_attribute AS o
                   WHERE o.attrelid = c.oid AND o.attname = p.name AND o.attnum > 0 AND NOT o.attisdropped)
                LIMIT 1)
           END
      INTO table_name, row_name, id, id_type, problem
      FROM pg_catalog.pg_class AS c
      JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
      LEFT JOIN pg_catalog.pg_attribute AS a
        ON a.attrelid = c.oid AND a.attname = id_column AND a.attnum > 0 AND NOT a.attisdropped
     WHERE c.oid = source;
    IF problem IS NOT NULL THEN
      RAISE EXCEPTION '% cannot be read as a snapshot: it %', table_name, problem
        USING ERRCODE = 'object_not_in_prerequisite_state',
              HINT = 'The id column needs NOT NULL and a unique index of its own.';
    END IF;
    IF row_security_active(source) THEN
      RAISE EXCEPTION '% cannot be read as a snapshot: row-level security may hide rows from role %',
          table_name, current_user
        USING ERRCODE = 'insufficient_privilege',
              HINT = 'Connect as the owner of the table, or as a role with BYPASSRLS.';
    END IF;

    request := jsonb_build_object(
      'table', table_name, 'aggregatetype', aggregatetype, 'id_column', id_column, 'event_type', event_type,
      'columns', columns, 'condition', condition, 'include_versioned', include_versioned);
    INSERT INTO public.app_outbox_snapshot (request) VALUES (request) ON CONFLICT DO NOTHING;
    SELECT s.last_id, s.events, s.skipped, s.finished_at INTO progress
      FROM public.app_outbox_snapshot AS s WHERE s.request = request FOR UPDATE;
    events := 0;
    skipped := 0;
    written := 0;
    IF NOT restart THEN
      last_id := progress.last_id;
      events := progress.events;
      skipped := progress.skipped;
      is_done := progress.finished_at IS NOT NULL;
    END IF;
    IF is_done THEN
      RETURN;
    END IF;

    is_done := true;
    FOR candidate IN EXECUTE
      format('SELECT %1$s::text AS id, to_jsonb(%1$s) #>> ''{}'' AS aggregateid FROM %2$s', id, table_name)
      || format(E' WHERE (%s\n)', condition)
      || CASE WHEN last_id IS NULL THEN '' ELSE format(' AND %s > $1::%s', id, id_type) END
      || format(' ORDER BY %s LIMIT $2', id)
      USING last_id, batch_rows
    LOOP
      known_version := public.app_outbox_lock(
        aggregatetype, candidate.aggregateid, may_wait => read_rows = 0,
        unless_versioned => NOT include_versioned);
      IF known_version IS NULL THEN
        is_done := false; -- the next batch begins with this row, and may wait for it
        EXIT;
      END IF;
      read_rows := read_rows + 1;
      last_id := candidate.id;
      document := NULL;
      IF include_versioned OR known_version = 0 THEN
        EXECUTE format(
            E'SELECT to_jsonb(%s.*) FROM %s WHERE %s = $1::%s AND (%s\n)',
            row_name, table_name, id, id_type, condition)
          INTO document USING candidate.id;
      END IF;
      IF document IS NULL THEN
        skipped := skipped + 1;
        CONTINUE;
      END IF;
      IF columns <> '{}' THEN
        SELECT jsonb_object_agg(p.name, document -> p.name) INTO document FROM unnest(published) AS p(name);
      END IF;
      PERFORM public.app_outbox_emit(
        aggregatetype, candidate.aggregateid, event_type, public.app_outbox_payload(document));
      events := events + 1;
      written := written + 1;
    END LOOP;
    is_done := is_done AND read_rows < batch_rows;

    UPDATE public.app_outbox_snapshot AS s
       SET last_id = last_id, events = events, skipped = skipped, updated_at = now(),
           started_at = CASE WHEN restart THEN now() ELSE s.started_at END,
           finished_at = CASE WHEN is_done THEN now() END
     WHERE s.request = request;
  END
  $snapshot$;

  -- On Supabase, the internet reaches the schema public through these two roles. Default privileges
  -- have just granted them all privileges on the new objects.
  REVOKE ALL ON TABLE public.app_outbox_snapshot FROM PUBLIC;
  FOR web_role IN
    SELECT rolname FROM pg_catalog.pg_roles WHERE rolname IN ('anon', 'authenticated')
  LOOP
    EXECUTE format('REVOKE ALL ON TABLE %s FROM %I', 'public.app_outbox_snapshot'::regclass, web_role);
  END LOOP;
  FOR function IN
    SELECT p.oid::regprocedure FROM pg_catalog.pg_proc AS p
     WHERE p.proname IN ('app_outbox_lock', 'app_outbox_snapshot')
       AND p.pronamespace = (
         SELECT c.relnamespace FROM pg_catalog.pg_class AS c WHERE c.oid = 'public.app_outbox_snapshot'::regclass)
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
