-- Functions that settle a batch: they record the outcomes of its messages and the positions of its
-- keys.
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

  IF to_regproc('public.app_inbox_settle') IS NOT NULL THEN
    RETURN;
  END IF;

  -- Moves keys to the highest position of these applied messages.
  CREATE FUNCTION public.app_inbox_advance(
    consumer text, generation int, messages public.app_inbox_message[])
    RETURNS void
    LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
  AS $advance$
  #variable_conflict use_variable
  BEGIN
    -- The rows exist already. ON CONFLICT finds each row by the unique index, independent of the
    -- planner's statistics.
    INSERT INTO public.app_inbox_key AS k (
        consumer, generation, ordering_key, commit_lsn, tx_index, system_identifier, version, moved_at)
      SELECT DISTINCT ON (m.ordering_key COLLATE "C")
             consumer, generation, m.ordering_key, m.commit_lsn, m.tx_index, m.system_identifier,
             max(m.version) OVER (PARTITION BY m.ordering_key COLLATE "C"),
             CASE WHEN m.commit_lsn IS NOT NULL THEN now() END
        FROM unnest(messages) AS m
       WHERE m.ordering_key <> ''
       ORDER BY m.ordering_key COLLATE "C", m.commit_lsn DESC NULLS LAST, m.tx_index DESC
      ON CONFLICT ON CONSTRAINT app_inbox_key_pkey DO UPDATE SET
        commit_lsn = CASE WHEN excluded.commit_lsn IS NULL
            OR (excluded.commit_lsn, excluded.tx_index) <= (k.commit_lsn, k.tx_index)
            AND (k.system_identifier <> excluded.system_identifier) IS NOT TRUE
          THEN k.commit_lsn ELSE excluded.commit_lsn END,
        tx_index = CASE WHEN excluded.commit_lsn IS NULL
            OR (excluded.commit_lsn, excluded.tx_index) <= (k.commit_lsn, k.tx_index)
            AND (k.system_identifier <> excluded.system_identifier) IS NOT TRUE
          THEN k.tx_index ELSE excluded.tx_index END,
        system_identifier = CASE WHEN excluded.commit_lsn IS NULL
            OR (excluded.commit_lsn, excluded.tx_index) <= (k.commit_lsn, k.tx_index)
            AND (k.system_identifier <> excluded.system_identifier) IS NOT TRUE
          THEN k.system_identifier ELSE excluded.system_identifier END,
        moved_at = CASE WHEN excluded.commit_lsn IS NULL
            OR (excluded.commit_lsn, excluded.tx_index) <= (k.commit_lsn, k.tx_index)
            AND (k.system_identifier <> excluded.system_identifier) IS NOT TRUE
          THEN k.moved_at ELSE excluded.moved_at END,
        -- An event that advances the position confirms that the position was plausible.
        implausible = CASE WHEN excluded.commit_lsn IS NULL
            OR (excluded.commit_lsn, excluded.tx_index) <= (k.commit_lsn, k.tx_index)
            AND (k.system_identifier <> excluded.system_identifier) IS NOT TRUE
          THEN k.implausible ELSE 0 END,
        version = greatest(k.version, excluded.version),
        updated_at = now()
      WHERE excluded.commit_lsn IS NULL OR k.commit_lsn IS NULL
         OR k.system_identifier <> excluded.system_identifier
         OR (excluded.commit_lsn, excluded.tx_index) > (k.commit_lsn, k.tx_index)
         -- A late event may still have the highest version.
         OR excluded.version > k.version
         OR k.version IS NULL AND excluded.version IS NOT NULL;
  END
  $advance$;

  -- Records that a waiting row was applied. Returns `done`, or `late` if its key has already moved
  -- beyond the row.
  CREATE FUNCTION public.app_inbox_record_applied(
    consumer text, generation int, message public.app_inbox_message)
    RETURNS text
    LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
  AS $record_applied$
  #variable_conflict use_variable
  DECLARE
    key public.app_inbox_key;
    new_status text := 'done';
  BEGIN
    SELECT k.* INTO key FROM public.app_inbox_key AS k
     WHERE k.consumer = consumer AND k.generation = generation AND k.ordering_key = message.ordering_key;
    IF (message.commit_lsn, message.tx_index) < (key.commit_lsn, key.tx_index)
      AND (key.system_identifier <> message.system_identifier) IS NOT TRUE
    THEN
      new_status := 'late';
    END IF;
    UPDATE public.app_inbox AS i
       SET status = new_status, attempts = i.attempts + 1, next_attempt_at = NULL, error_code = NULL,
           message = NULL, done_at = now()
     WHERE i.consumer = consumer AND i.generation = generation AND i.event_id = message.event_id;
    RETURN new_status;
  END
  $record_applied$;

  -- Records that no event of the key waits for this version any more. Either its event is dead
  -- without blocking the key, or discarded, or the next event was attempted without it.
  CREATE FUNCTION public.app_inbox_give_up(consumer text, generation int, ordering_key text, version bigint)
    RETURNS void
    LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
  AS $give_up$
  #variable_conflict use_variable
  BEGIN
    UPDATE public.app_inbox_key AS k SET version = version, updated_at = now()
     WHERE k.consumer = consumer AND k.generation = generation AND k.ordering_key = ordering_key
       AND k.version < version;
  END
  $give_up$;

  -- Returns the time of the next attempt of a failed message. A random factor spreads messages that
  -- failed together.
  --
  -- For a counted attempt, the wait doubles with each attempt, up to five minutes. At least six
  -- tenths of the wait remain. The nine waits between ten attempts therefore take at least five
  -- minutes ((1 + 2 + ... + 256 s) times 0.6). A smaller minimum would make events dead although an
  -- operator ends the failure within the documented time.
  --
  -- For an uncounted attempt, the wait grows with the age of the message, up to a minute. At least
  -- a tenth of the wait remains.
  CREATE FUNCTION public.app_inbox_next_attempt(code text, attempts int, received_at timestamptz)
    RETURNS timestamptz
    LANGUAGE sql VOLATILE
  AS $next_attempt$
    SELECT clock_timestamp() + CASE public.app_inbox_fault(code)
      WHEN 'event' THEN (0.6 + 0.4 * random())
        * least(interval '5 minutes', interval '1 second' * 2 ^ least(attempts - 1, 20))
      ELSE (0.1 + 0.9 * random())
        * least(interval '1 minute',
            interval '1 second' + greatest(clock_timestamp() - received_at, interval '0') / 4) END
  $next_attempt$;

  -- Records that the handler failed on a message. Returns the row's new status: `retrying` or
  -- `dead`.
  CREATE FUNCTION public.app_inbox_record_failed(
    consumer text, generation int, message public.app_inbox_message, code text, error text,
    was_stored boolean, on_dead text, max_attempts int)
    RETURNS text
    LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
  AS $record_failed$
  #variable_conflict use_variable
  DECLARE
    is_own CONSTANT boolean := public.app_inbox_fault(code) = 'event';
    new_attempts int;
    received_at timestamptz;
    new_status text;
    due timestamptz;
    line text;
    is_without_gap boolean;
  BEGIN
    SELECT CASE WHEN was_stored THEN i.attempts ELSE 0 END + is_own::int, i.received_at, i.error_code = 'GAP_ACCEPTED'
      INTO new_attempts, received_at, is_without_gap
      FROM public.app_inbox AS i
     WHERE i.consumer = consumer AND i.generation = generation AND i.event_id = message.event_id;
    -- An event never becomes dead by a failure of its surroundings. An operator will fix the cause
    -- or discard the event.
    IF new_attempts < max_attempts OR NOT is_own THEN
      new_status := 'retrying';
      due := public.app_inbox_next_attempt(code, new_attempts, received_at);
    ELSE
      new_status := 'dead';
      due := CASE WHEN on_dead = 'hold' AND message.ordering_key <> '' THEN 'infinity' END;
    END IF;
    line := format('%s at %s: %s: %s', CASE WHEN is_own THEN 'attempt ' || new_attempts ELSE 'not counted' END,
      to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), code,
      left(regexp_replace(coalesce(error, ''), '[[:cntrl:]]+', ' ', 'g'), 1000));
    UPDATE public.app_inbox AS i
       SET status = new_status, attempts = new_attempts, next_attempt_at = due, error_code = code,
           -- Newest first, and the oldest lines are cut off. Of uncounted attempts, only the newest
           -- is kept.
           last_error = left(concat_ws(E'\n', line,
             nullif(regexp_replace(i.last_error, '^not counted at [^\n]*\n?', ''), '')), 4000),
           message = coalesce(i.message, public.app_inbox_encode(message)), done_at = NULL
     WHERE i.consumer = consumer AND i.generation = generation AND i.event_id = message.event_id;
    IF new_status = 'dead' AND due IS NULL THEN
      PERFORM public.app_inbox_give_up(consumer, generation, message.ordering_key, message.version);
    ELSIF is_without_gap THEN
      -- The row's error code now shows the failure, which hides that the gap was accepted. The key
      -- therefore records that it no longer waits for the version.
      PERFORM public.app_inbox_give_up(consumer, generation, message.ordering_key, message.version - 1);
    END IF;
    RETURN new_status;
  END
  $record_failed$;

  -- Records that a stored row keeps waiting behind another row of its key. The code names a missing
  -- version as the reason, if there is one. An operator's GAP_ACCEPTED stays.
  CREATE FUNCTION public.app_inbox_record_held(
    consumer text, generation int, event_id text, code text)
    RETURNS void
    LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
  AS $record_held$
  #variable_conflict use_variable
  BEGIN
    UPDATE public.app_inbox AS i SET error_code = code
     WHERE i.consumer = consumer AND i.generation = generation AND i.event_id = event_id
       AND i.error_code IS DISTINCT FROM 'GAP_ACCEPTED';
  END
  $record_held$;

  -- Records the outcomes of messages from take or take_due, in the same order, and advances their
  -- keys. Returns the new status of each row. Null means that the row is as take left it, and
  -- "deferred" means that the row is no longer recorded.
  CREATE FUNCTION public.app_inbox_settle(
    consumer text, generation int, messages public.app_inbox_message[],
    outcomes text[], error_codes text[], errors text[], were_stored boolean,
    on_dead text DEFAULT 'hold', max_attempts int DEFAULT 10, park boolean DEFAULT true)
    RETURNS text[]
    LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
  AS $settle$
  #variable_conflict use_variable
  DECLARE
    results text[] := array_fill(NULL::text, ARRAY[cardinality(messages)]);
    applied public.app_inbox_message[];
    touched text[];
    failed text[];
    is_plain CONSTANT boolean := NOT were_stored AND 'applied' = ALL (outcomes);
  BEGIN
    IF on_dead NOT IN ('hold', 'continue') THEN
      RAISE EXCEPTION 'on_dead is "hold" or "continue", not %', quote_literal(on_dead)
        USING ERRCODE = 'WR005';
    END IF;
    IF is_plain THEN
      PERFORM public.app_inbox_advance(consumer, generation, messages);
      RETURN results;
    END IF;

    FOR n IN 1 .. cardinality(messages) LOOP
      IF outcomes[n] = 'applied' THEN
        applied := applied || messages[n];
        IF were_stored THEN
          results[n] := public.app_inbox_record_applied(consumer, generation, messages[n]);
        END IF;
      ELSIF outcomes[n] = 'failed' THEN
        results[n] := public.app_inbox_record_failed(
          consumer, generation, messages[n], error_codes[n], errors[n], were_stored, on_dead, max_attempts);
      ELSIF were_stored THEN
        results[n] := 'retrying';
        IF error_codes[n] IS NOT NULL THEN
          PERFORM public.app_inbox_record_held(consumer, generation, messages[n].event_id, error_codes[n]);
        END IF;
      ELSIF outcomes[n] = 'held' AND park THEN
        -- Stored behind its key in the order of arrival, because take numbered the rows by event
        -- id.
        UPDATE public.app_inbox AS i
           SET status = 'retrying', attempts = 0, done_at = NULL, arrival = DEFAULT,
               error_code = error_codes[n], message = public.app_inbox_encode(messages[n])
         WHERE i.consumer = consumer AND i.generation = generation AND i.event_id = messages[n].event_id;
        results[n] := 'retrying';
      ELSE
        DELETE FROM public.app_inbox AS i
         WHERE i.consumer = consumer AND i.generation = generation AND i.event_id = messages[n].event_id;
        results[n] := 'deferred';
      END IF;
    END LOOP;

    PERFORM public.app_inbox_advance(consumer, generation, applied);
    SELECT array_agg(t.ordering_key), array_agg(t.failed) INTO touched, failed
      FROM (SELECT (messages[o.n]).ordering_key,
                   max((messages[o.n]).event_id) FILTER (WHERE o.outcome = 'failed') AS failed
              FROM unnest(outcomes) WITH ORDINALITY AS o(outcome, n)
             WHERE (messages[o.n]).ordering_key <> '' AND (were_stored OR o.outcome <> 'applied')
             GROUP BY 1) AS t;
    PERFORM public.app_inbox_heads(consumer, generation, coalesce(touched, '{}'), failed);
    RETURN results;
  END
  $settle$;

  -- Only the owner may execute the functions until EXECUTE is granted.
  FOR function IN
    SELECT p.oid::regprocedure FROM pg_catalog.pg_proc AS p
     WHERE p.pronamespace = 'public'::regnamespace AND p.proname = ANY (ARRAY[
       'app_inbox_next_attempt', 'app_inbox_advance', 'app_inbox_record_applied', 'app_inbox_give_up', 'app_inbox_record_failed',
       'app_inbox_record_held', 'app_inbox_settle'])
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
