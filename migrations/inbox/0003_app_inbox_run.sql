-- Functions that run a handler on a batch and find the event that it fails on.
--
-- Functions that run the handler have no SET clause and are not SECURITY DEFINER, because the
-- handler would inherit either.
--
-- A single statement, so it is atomic under psql, `supabase db push` and walrelay itself. Safe to
-- run again: existing functions stay unchanged.
DO $walrelay$
DECLARE
  web_role text;
  function text;
BEGIN
  -- Concurrent runs wait for each other. The second run then finds every object in place.
  PERFORM pg_advisory_xact_lock(hashtextextended('walrelay migrations', 0));

  IF to_regproc('public.app_inbox_run') IS NOT NULL THEN
    RETURN;
  END IF;

  -- Returns the cause of an error with this code.
  --
  -- - `event`: the event itself, by its data, a constraint or RAISE.
  -- - `surroundings`: a permission, function, table, schema, file, memory or another server, such as the
  --   receiver of deliveries outside the database (`DELIVERY_…`). If
  --   other events pass, the cause affects only this event. Such a failure still counts no attempt.
  -- - `moment`: a conflict with other sessions, or a read-only server. The whole batch is retried.
  CREATE FUNCTION public.app_inbox_fault(code text) RETURNS text
    LANGUAGE sql IMMUTABLE
  AS $fault$
    SELECT CASE
      WHEN code IN ('25006', '40001', '40P01', '55P03') THEN 'moment'
      WHEN left(code, 2) IN ('08', '0A', '28', '3D', '3F', '42', '53', '58', 'HV') OR left(code, 3) = '57P'
        OR left(code, 9) = 'DELIVERY_'
        THEN 'surroundings'
      ELSE 'event' END
  $fault$;

  -- Returns the data as JSON. Null for data that are not JSON, such as protobuf, Avro or plain
  -- text. JSON that jsonb cannot store, such as a zero character or a number of a million digits,
  -- is an error. With null instead, a handler would write wrong data.
  CREATE FUNCTION public.app_inbox_payload(data bytea) RETURNS jsonb
    LANGUAGE plpgsql IMMUTABLE
  AS $payload$
  BEGIN
    RETURN convert_from(data, 'UTF8')::jsonb;
  EXCEPTION
    WHEN invalid_text_representation OR character_not_in_repertoire THEN
      RETURN NULL;
  END
  $payload$;

  CREATE FUNCTION public.app_inbox_events(messages public.app_inbox_message[])
    RETURNS public.app_inbox_event[]
    LANGUAGE plpgsql STABLE
    SET plan_cache_mode = force_generic_plan
  AS $events$
  BEGIN
    -- Converting all messages in one statement costs a tenth of one guarded call per message. The
    -- guards are only needed for data that are not JSON.
    BEGIN
      RETURN ARRAY(
        SELECT ROW(
            m.event_id, m.event_type, m.aggregate_type, m.aggregate_id, m.ordering_key, m.version,
            m.schema_version, m.occurred_at, m.commit_lsn, m.tx_index, m.message_id,
            m.publish_time, m.attributes::jsonb, convert_from(m.data, 'UTF8')::jsonb, m.data
          )::public.app_inbox_event
          FROM unnest(messages) AS m);
    EXCEPTION WHEN data_exception THEN
      NULL;
    END;
    RETURN ARRAY(
      SELECT ROW(
          m.event_id, m.event_type, m.aggregate_type, m.aggregate_id, m.ordering_key, m.version,
          m.schema_version, m.occurred_at, m.commit_lsn, m.tx_index, m.message_id,
          m.publish_time, m.attributes::jsonb, public.app_inbox_payload(m.data), m.data
        )::public.app_inbox_event
        FROM unnest(messages) AS m);
  END
  $events$;

  -- Runs the handler on these messages in order, and returns an outcome for each. Writes nothing
  -- except the handler's own effects.
  --
  -- - `applied`: the effect is kept.
  -- - `failed`: the message fails even alone. The code and the error describe the failure.
  -- - `held`: not attempted, because an earlier event of its key has failed in this batch.
  -- - `deferred`: not attempted, because the limit of savepoints or time is reached.
  --
  -- After the handler, settings are as before it if the record of the events rests on them. Only a
  -- higher `synchronous_commit` stays, because it also keeps an acknowledged event.
  --
  -- Events that fail slowly would delay the other events of their batch for minutes, together with
  -- all locks taken. After "patience", the function therefore stops if one event has failed and
  -- another has passed or failed. If none has passed by then, two keys have failed. A slowly
  -- failing event is searched one by one, because a search by halves would run into it many times.
  --
  -- Raises errors that do not depend on an event: a deadlock, a serialization failure, an
  -- unavailable lock, or a read-only server.
  CREATE FUNCTION public.app_inbox_run(
    handler regprocedure, messages public.app_inbox_message[], patience interval DEFAULT '1 second',
    OUT outcomes text[], OUT error_codes text[], OUT errors text[])
    LANGUAGE plpgsql
  AS $run$
  DECLARE
    impatient_at CONSTANT timestamptz := clock_timestamp() + patience;
    -- A server keeps 64 subtransactions of a transaction in memory. With more, every snapshot of
    -- every session must look them up on disk.
    savepoints_max CONSTANT int := 60;
    savepoints int := 0;
    size CONSTANT int := cardinality(messages);
    handles_arrays boolean;
    call text;
    -- The ranges of indexes still to run. The last range is the next one.
    firsts int[] := ARRAY[1];
    lasts int[] := ARRAY[size];
    depth int := 1;
    first int;
    last int;
    chosen int[];
    reached int;
    held_keys text[] := '{}';
    have_passed boolean := false;
    failures int := 0;
    -- Whether the remaining messages are deferred.
    is_cut boolean := false;
    one_by_one boolean := false;
    tried_at timestamptz;
    events public.app_inbox_event[];
    is_first_pass boolean := true;
    deferred_constraints text;
    -- The roles are first, because only the session's own role may restore the others.
    guarded CONSTANT text[] := ARRAY[
      'session_authorization', 'role', 'search_path', 'row_security', 'session_replication_role', 'transaction_read_only',
      'statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout',
      'synchronous_commit'];
    durability CONSTANT text[] := ARRAY['off', 'local', 'remote_write', 'on', 'remote_apply'];
    settings text[];
    setting text;
    event_result refcursor;
    ignored record;
    code text;
    error text;
    detail text;
    hint text;
  BEGIN
    SELECT format('SELECT %I.%I(', n.nspname, p.proname),
           CASE p.proargtypes[0]
             WHEN 'public.app_inbox_event'::regtype THEN false
             WHEN 'public.app_inbox_event[]'::regtype THEN true END
      INTO call, handles_arrays
      FROM pg_catalog.pg_proc AS p
      JOIN pg_catalog.pg_namespace AS n ON n.oid = p.pronamespace
     WHERE p.oid = handler AND p.prokind = 'f' AND p.pronargs = 1
       AND p.prorettype = 'void'::regtype AND NOT p.proretset;
    IF handles_arrays IS NULL THEN
      RAISE EXCEPTION '% cannot be a handler', handler
        USING ERRCODE = 'WR005',
              HINT = 'A handler is a function f(app_inbox_event) or f(app_inbox_event[]) that RETURNS void.';
    END IF;
    call := call || CASE WHEN handles_arrays THEN '$1)' ELSE 'event) FROM unnest($1) AS event' END;

    FOR i IN 1 .. cardinality(guarded) LOOP
      settings[i] := pg_catalog.current_setting(guarded[i], true);
    END LOOP;
    outcomes := array_fill(NULL::text, ARRAY[size]);
    error_codes := outcomes;
    errors := outcomes;
    WHILE depth > 0 LOOP
      first := firsts[depth];
      last := lasts[depth];
      depth := depth - 1;

      -- A known failure, unless an earlier message of its key was not applied after all.
      IF outcomes[first] = 'failed' AND NOT is_cut AND messages[first].ordering_key <> ALL (held_keys) THEN
        failures := failures + 1;
        IF messages[first].ordering_key <> '' THEN
          held_keys := held_keys || messages[first].ordering_key;
        END IF;
        CONTINUE;
      END IF;
      is_cut := is_cut OR savepoints >= savepoints_max
        OR failures > 0 AND failures + have_passed::int > 1 AND clock_timestamp() > impatient_at;
      IF one_by_one AND first < last THEN
        depth := depth + 1;
        firsts[depth] := first + 1;
        lasts[depth] := last;
        last := first;
      END IF;

      IF is_first_pass THEN
        -- No message has failed yet, so all messages run without a check of each.
        chosen := ARRAY(SELECT generate_series(first, last));
      ELSE
        chosen := '{}';
        FOR i IN first .. last LOOP
          IF messages[i].ordering_key = ANY (held_keys) THEN
            outcomes[i] := 'held';
          ELSIF is_cut THEN
            outcomes[i] := 'deferred';
            error_codes[i] := NULL;
            errors[i] := NULL;
          ELSE
            chosen := chosen || i;
          END IF;
        END LOOP;
      END IF;
      CONTINUE WHEN chosen = '{}';

      reached := NULL;
      tried_at := clock_timestamp();
      BEGIN
        savepoints := savepoints + 1;
        IF cardinality(chosen) = size THEN
          events := public.app_inbox_events(messages);
        ELSE
          events := public.app_inbox_events(ARRAY(
            SELECT messages[u.i] FROM unnest(chosen) WITH ORDINALITY AS u(i, n) ORDER BY u.n));
        END IF;
        IF NOT is_first_pass THEN
          -- The previous pass made the constraints immediate, which a handler may not tolerate.
          IF deferred_constraints IS NULL THEN
            SELECT coalesce(string_agg(format('%I.%I', n.nspname, c.conname), ', '), '')
              INTO deferred_constraints
              FROM (SELECT k.connamespace, k.conname FROM pg_catalog.pg_constraint AS k
                     GROUP BY k.connamespace, k.conname
                    HAVING bool_and(k.condeferrable) AND bool_or(k.condeferred)) AS c
              JOIN pg_catalog.pg_namespace AS n ON n.oid = c.connamespace;
          END IF;
          IF deferred_constraints <> '' THEN
            EXECUTE 'SET CONSTRAINTS ' || deferred_constraints || ' DEFERRED';
          END IF;
        END IF;

        IF handles_arrays THEN
          EXECUTE call USING events;
        ELSE
          -- The cursor shows which event failed, and the call is planned only once.
          reached := 0;
          OPEN event_result NO SCROLL FOR EXECUTE call USING events;
          FOR i IN 1 .. cardinality(chosen) LOOP
            reached := i;
            FETCH event_result INTO ignored;
          END LOOP;
          CLOSE event_result;
          reached := NULL;
        END IF;
        -- A deferred constraint fails here instead of at COMMIT, so that the failing event can be
        -- found.
        SET CONSTRAINTS ALL IMMEDIATE;
        FOR i IN 1 .. cardinality(guarded) LOOP
          setting := pg_catalog.current_setting(guarded[i], true);
          CONTINUE WHEN setting IS NOT DISTINCT FROM settings[i]
            OR guarded[i] = 'synchronous_commit'
              AND pg_catalog.array_position(durability, setting)
                > pg_catalog.array_position(durability, settings[i]);
          PERFORM pg_catalog.set_config(guarded[i], settings[i], true);
        END LOOP;

        have_passed := true;
        IF is_first_pass THEN
          outcomes := array_fill('applied'::text, ARRAY[size]);
        ELSE
          FOREACH reached IN ARRAY chosen LOOP
            outcomes[reached] := 'applied';
          END LOOP;
        END IF;
      EXCEPTION WHEN OTHERS OR assert_failure THEN
        GET STACKED DIAGNOSTICS
          code = RETURNED_SQLSTATE, error = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL,
          hint = PG_EXCEPTION_HINT;
        IF public.app_inbox_fault(code) = 'moment' THEN
          RAISE;
        END IF;
        -- The rollback also removed the savepoint.
        savepoints := savepoints - 1;
        is_first_pass := false;
        IF cardinality(chosen) = 1 THEN
          reached := 1;
        ELSIF reached = 0 THEN
          -- The call failed before it reached the first event.
          reached := NULL;
        END IF;
        IF reached IS NULL THEN
          one_by_one := one_by_one OR clock_timestamp() - tried_at > patience / 10;
          -- Splits the range into halves. The earlier half runs first.
          firsts[depth + 1] := chosen[cardinality(chosen) / 2 + 1];
          lasts[depth + 1] := last;
          firsts[depth + 2] := first;
          lasts[depth + 2] := chosen[cardinality(chosen) / 2 + 1] - 1;
          depth := depth + 2;
        ELSE
          -- Runs the messages before the failed one first, then the failed one, then the rest.
          reached := chosen[reached];
          outcomes[reached] := 'failed';
          error_codes[reached] := code;
          errors[reached] := CASE public.app_inbox_fault(code)
            WHEN 'surroundings' THEN concat_ws('; ', error, nullif(hint, ''))
            ELSE concat_ws(': ', error, nullif(detail, '')) END;
          IF reached < last THEN
            depth := depth + 1;
            firsts[depth] := reached + 1;
            lasts[depth] := last;
          END IF;
          depth := depth + 1;
          firsts[depth] := reached;
          lasts[depth] := reached;
          IF reached > first THEN
            depth := depth + 1;
            firsts[depth] := first;
            lasts[depth] := reached - 1;
          END IF;
        END IF;
      END;
    END LOOP;
  END
  $run$;

  -- Adjusts the outcomes of a batch after the handler has run. "gaps" are the outcomes of
  -- app_inbox_gaps, null where no version is missing.
  --
  -- app_inbox_gaps assumes that every message without a gap is applied. A message with a gap
  -- therefore waits if a message of its key was not applied and precedes it or has a lower version.
  -- This wait counts no attempt. If the other message was not even attempted, both are deferred.
  CREATE FUNCTION public.app_inbox_gaps_behind(
    messages public.app_inbox_message[], gaps text[], outcomes text[])
    RETURNS text[]
    LANGUAGE plpgsql IMMUTABLE
    SET plan_cache_mode = force_generic_plan
  AS $gaps_behind$
  DECLARE
    judged text[] := outcomes;
    it record;
  BEGIN
    FOR it IN
      SELECT g.i, u.is_untried
        FROM (SELECT (messages[o.i]).ordering_key, min(o.i) AS first, min((messages[o.i]).version) AS lowest,
                     bool_or(o.outcome = 'deferred') AS is_untried
                FROM unnest(outcomes) WITH ORDINALITY AS o(outcome, i)
               WHERE gaps[o.i] IS NULL AND o.outcome <> 'applied'
               GROUP BY 1) AS u
        JOIN unnest(gaps) WITH ORDINALITY AS g(gap, i)
          ON (messages[g.i]).ordering_key = u.ordering_key
         AND (u.first < g.i OR u.lowest < (messages[g.i]).version)
       WHERE g.gap IS NOT NULL
    LOOP
      judged[it.i] := CASE WHEN it.is_untried THEN 'deferred' ELSE 'held' END;
    END LOOP;
    RETURN judged;
  END
  $gaps_behind$;

  -- As app_inbox_run, without the messages for which app_inbox_gaps finds a missing version.
  -- Their keys must be locked.
  CREATE FUNCTION public.app_inbox_run_without_gaps(
    consumer text, generation int, handler regprocedure, messages public.app_inbox_message[],
    were_stored boolean, on_dead text, max_attempts int,
    OUT outcomes text[], OUT error_codes text[], OUT errors text[])
    LANGUAGE plpgsql
  AS $run_without_gaps$
  DECLARE
    gaps text[];
    reasons text[];
    chosen int[];
    run record;
  BEGIN
    SELECT g.outcomes, g.reasons INTO gaps, reasons
      FROM public.app_inbox_gaps(consumer, generation, messages, were_stored, on_dead, max_attempts) AS g;
    chosen := ARRAY(
      SELECT g.i FROM unnest(gaps) WITH ORDINALITY AS g(gap, i) WHERE g.gap IS NULL ORDER BY g.i);
    IF cardinality(chosen) = cardinality(messages) THEN
      SELECT r.outcomes, r.error_codes, r.errors INTO outcomes, error_codes, errors
        FROM public.app_inbox_run(handler, messages) AS r;
      RETURN;
    END IF;
    outcomes := gaps;
    errors := reasons;
    error_codes := ARRAY(
      SELECT CASE WHEN g.gap IS NOT NULL THEN 'VERSION_GAP' END
        FROM unnest(gaps) WITH ORDINALITY AS g(gap, i) ORDER BY g.i);
    IF chosen <> '{}' THEN
      SELECT r.* INTO run
        FROM public.app_inbox_run(handler, ARRAY(
          SELECT messages[u.i] FROM unnest(chosen) WITH ORDINALITY AS u(i, n) ORDER BY u.n)) AS r;
      FOR n IN 1 .. cardinality(chosen) LOOP
        outcomes[chosen[n]] := run.outcomes[n];
        error_codes[chosen[n]] := run.error_codes[n];
        errors[chosen[n]] := run.errors[n];
      END LOOP;
      outcomes := public.app_inbox_gaps_behind(messages, gaps, outcomes);
    END IF;
  END
  $run_without_gaps$;

  -- Only the owner may execute the functions until EXECUTE is granted.
  FOR function IN
    SELECT p.oid::regprocedure FROM pg_catalog.pg_proc AS p
     WHERE p.pronamespace = 'public'::regnamespace AND p.proname = ANY (ARRAY[
       'app_inbox_fault', 'app_inbox_payload', 'app_inbox_events', 'app_inbox_run', 'app_inbox_gaps_behind',
       'app_inbox_run_without_gaps'])
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
