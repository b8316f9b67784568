-- Functions that a consumer calls to apply events.
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

  IF to_regproc('public.app_inbox_apply') IS NOT NULL THEN
    RETURN;
  END IF;

  -- Raises the error of an event that failed because of its surroundings, if no event of its batch
  -- has passed. Without a passed event, the cause may affect every event.
  CREATE FUNCTION public.app_inbox_blame(outcomes text[], error_codes text[], errors text[])
    RETURNS void
    LANGUAGE plpgsql
  AS $blame$
  BEGIN
    IF 'applied' = ANY (outcomes) THEN
      RETURN;
    END IF;
    FOR n IN 1 .. cardinality(outcomes) LOOP
      IF outcomes[n] = 'failed' AND public.app_inbox_fault(error_codes[n]) = 'surroundings' THEN
        RAISE EXCEPTION USING ERRCODE = error_codes[n], MESSAGE = errors[n];
      END IF;
    END LOOP;
  END
  $blame$;

  -- Applies a batch. Returns a result for each message, by its index in the batch from 1: the
  -- status of its row, "duplicate" or "deferred".
  --
  -- After the commit, all messages except the deferred ones may be acknowledged. Deferred messages
  -- are redelivered in a later batch, in their order.
  --
  -- No SET clause and not SECURITY DEFINER, because the handler would inherit either.
  CREATE FUNCTION public.app_inbox_apply(
    consumer text, generation int, handler regprocedure, messages public.app_inbox_message[],
    on_dead text DEFAULT 'hold', max_attempts int DEFAULT 10,
    dedupe text DEFAULT 'event', park boolean DEFAULT true, on_gap text DEFAULT 'accept')
    RETURNS TABLE (index int, result text, error_code text)
    LANGUAGE plpgsql
  AS $apply$
  #variable_conflict use_variable
  DECLARE
    verdicts text[] := public.app_inbox_take(consumer, generation, messages, dedupe, park);
    codes text[];
    -- The messages for the handler, by their index in the batch. Null means all messages.
    chosen int[];
    batch public.app_inbox_message[] := messages;
    outcomes text[];
    error_codes text[];
    errors text[];
    settled text[];
  BEGIN
    IF on_gap NOT IN ('accept', 'hold') THEN
      RAISE EXCEPTION 'on_gap is "accept" or "hold", not %', quote_literal(on_gap) USING ERRCODE = 'WR005';
    END IF;
    IF NOT 'done' = ALL (verdicts) THEN
      chosen := ARRAY(
        SELECT v.i FROM unnest(verdicts) WITH ORDINALITY AS v(verdict, i)
         WHERE v.verdict IN ('done', 'late') ORDER BY v.i);
      batch := ARRAY(SELECT messages[u.i] FROM unnest(chosen) WITH ORDINALITY AS u(i, n) ORDER BY u.n);
    END IF;
    IF batch <> '{}' THEN
      IF on_gap = 'hold' THEN
        SELECT r.outcomes, r.error_codes, r.errors INTO outcomes, error_codes, errors
          FROM public.app_inbox_run_without_gaps(
            consumer, generation, handler, batch, false, on_dead, max_attempts) AS r;
      ELSE
        SELECT r.outcomes, r.error_codes, r.errors INTO outcomes, error_codes, errors
          FROM public.app_inbox_run(handler, batch) AS r;
      END IF;
      IF NOT 'applied' = ALL (outcomes) THEN
        PERFORM public.app_inbox_blame(outcomes, error_codes, errors);
      END IF;
      settled := public.app_inbox_settle(
        consumer, generation, batch, outcomes, error_codes, errors, false, on_dead, max_attempts, park);
      IF NOT 'applied' = ALL (outcomes) THEN
        FOR n IN 1 .. cardinality(batch) LOOP
          IF settled[n] IS NOT NULL THEN
            verdicts[coalesce(chosen[n], n)] := settled[n];
            codes[coalesce(chosen[n], n)] := CASE outcomes[n] WHEN 'failed' THEN error_codes[n] END;
          END IF;
        END LOOP;
      END IF;
    END IF;
    RETURN QUERY
      SELECT v.i::int, v.verdict, codes[v.i] FROM unnest(verdicts) WITH ORDINALITY AS v(verdict, i);
  END
  $apply$;

  -- Applies failed events that are due, and the events that wait behind them. Returns the new
  -- status of each attempted row. No row means that no event is due.
  CREATE FUNCTION public.app_inbox_redeliver(
    consumer text, generation int, handler regprocedure,
    on_dead text DEFAULT 'hold', max_attempts int DEFAULT 10, batch int DEFAULT 200,
    on_gap text DEFAULT 'accept')
    RETURNS TABLE (event_id text, result text, error_code text)
    LANGUAGE plpgsql
  AS $redeliver$
  #variable_conflict use_variable
  DECLARE
    messages public.app_inbox_message[] := public.app_inbox_take_due(consumer, generation, batch, on_gap);
    outcomes text[];
    error_codes text[];
    errors text[];
    settled text[];
  BEGIN
    IF messages <> '{}' THEN
      IF on_gap = 'hold' THEN
        SELECT r.outcomes, r.error_codes, r.errors INTO outcomes, error_codes, errors
          FROM public.app_inbox_run_without_gaps(
            consumer, generation, handler, messages, true, on_dead, max_attempts) AS r;
      ELSE
        SELECT r.outcomes, r.error_codes, r.errors INTO outcomes, error_codes, errors
          FROM public.app_inbox_run(handler, messages) AS r;
      END IF;
      settled := public.app_inbox_settle(
        consumer, generation, messages, outcomes, error_codes, errors, true, on_dead, max_attempts);
      RETURN QUERY
        SELECT messages[s.i].event_id, s.result, error_codes[s.i]
          FROM unnest(settled) WITH ORDINALITY AS s(result, i);
    END IF;
  END
  $redeliver$;

  -- For subscribers without `walrelay consumer run`. Call this function first in the transaction that
  -- writes the effect. The result true means that the event is new, so continue. The result false
  -- means that the event was recorded before, so acknowledge the message and do nothing else.
  --
  -- Call the function in the order of ordering keys if a transaction accepts several events.
  -- Otherwise two such transactions deadlock.
  --
  -- A different event with an existing id is recorded as dead, and the result is false. The
  -- message id is kept with the publish time, for `walrelay trace`.
  CREATE FUNCTION public.app_inbox_accept(
    consumer text, event_id text, ordering_key text, version bigint, commit_lsn pg_lsn, tx_index int,
    event_type text DEFAULT NULL, occurred_at timestamptz DEFAULT NULL,
    message_id text DEFAULT NULL, publish_time timestamptz DEFAULT NULL)
    RETURNS boolean
    LANGUAGE plpgsql
  AS $accept$
  #variable_conflict use_variable
  DECLARE
    generation CONSTANT int := public.app_inbox_check(consumer, NULL);
    message public.app_inbox_message;
    verdict text;
  BEGIN
    message.event_id := event_id;
    message.event_type := event_type;
    message.ordering_key := coalesce(ordering_key, '');
    message.version := version;
    message.commit_lsn := commit_lsn;
    message.tx_index := tx_index;
    message.occurred_at := occurred_at;
    message.message_id := message_id;
    message.publish_time := publish_time;
    verdict := (public.app_inbox_take(consumer, generation, ARRAY[message], park => false, wait => true))[1];
    IF verdict IN ('done', 'late') THEN
      PERFORM public.app_inbox_advance(consumer, generation, ARRAY[message]);
      RETURN true;
    END IF;
    IF verdict = 'deferred' THEN
      RAISE EXCEPTION 'event % waits behind an earlier one of its ordering key', quote_literal(event_id)
        USING ERRCODE = 'WR006',
              HINT = 'Do not acknowledge it. The key is held by an event in app_inbox that waits or is dead.';
    END IF;
    IF verdict = 'dead' THEN
      RAISE WARNING 'another event has the id %: recorded as dead', quote_literal(event_id);
    END IF;
    RETURN false;
  END
  $accept$;

  -- Starts a new generation, in which every event is new, and returns its number. Waits until no
  -- batch of this consumer is being applied, and blocks new batches until the transaction ends.
  -- Reset the projection in the same transaction, after this call.
  CREATE FUNCTION public.app_inbox_new_generation(consumer text) RETURNS int
    LANGUAGE plpgsql
  AS $new_generation$
  #variable_conflict use_variable
  DECLARE
    generation int;
  BEGIN
    -- Not a lock of the consumer's row, because every batch would have to share that lock.
    PERFORM pg_advisory_xact_lock(hashtextextended('walrelay inbox ' || consumer, 0));
    -- A rebuild already fills the next generation, so both rebuilds would share the generation.
    IF EXISTS (SELECT FROM public.app_inbox_consumer AS c
                WHERE c.consumer = consumer AND c.rebuilding IS NOT NULL) THEN
      RAISE EXCEPTION 'consumer % is being rebuilt in another schema', quote_literal(consumer)
        USING ERRCODE = 'WR007', HINT = format('Finish it with the same "walrelay consumer rebuild %1$s --into SCHEMA", '
          'or cancel it with "walrelay consumer rebuild %1$s --cancel".', consumer);
    END IF;
    UPDATE public.app_inbox_consumer AS c SET generation = c.generation + 1, updated_at = now()
     WHERE c.consumer = consumer
     RETURNING c.generation INTO generation;
    IF generation IS NULL THEN
      RAISE EXCEPTION 'consumer % is not known here', quote_literal(consumer) USING ERRCODE = 'WR001';
    END IF;
    RETURN generation;
  END
  $new_generation$;

  -- Grants a role what a consumer needs, for all consumers or for one. The policies have exactly the form
  -- that consumers accept. The handler runs as the role, so it needs its own privileges also.
  CREATE FUNCTION public.app_inbox_grant(role_name name, only_consumer text DEFAULT NULL)
  RETURNS void LANGUAGE plpgsql
  AS $grant$
  DECLARE
    condition text := CASE WHEN only_consumer IS NULL THEN 'true' ELSE format('consumer = %L', only_consumer) END;
    -- One name for each role and consumer, and short enough for its suffix.
    policy_name text := left(concat_ws('_', role_name, only_consumer), 40) || '_'
                        || left(md5(concat(role_name, '/', only_consumer)), 8);
    function text;
    wanted record;
  BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA public TO %I', role_name);
    EXECUTE format('GRANT SELECT, UPDATE (pruned_before) ON public.app_inbox_consumer TO %I', role_name);
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON public.app_inbox, public.app_inbox_key TO %I', role_name);
    FOR function IN
      SELECT p.oid::regprocedure FROM pg_catalog.pg_proc AS p
       WHERE p.pronamespace = 'public'::regnamespace AND p.proname ^@ 'app_inbox_'
         AND p.proname NOT IN ('app_inbox_grant', 'app_inbox_new_generation')
    LOOP
      EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', function, role_name);
    END LOOP;
    FOR wanted IN
      SELECT relation, suffix, clause
        FROM (VALUES ('app_inbox_consumer', '', 'FOR SELECT TO %1$I USING (%2$s)'),
                     ('app_inbox_consumer', '_prune', 'FOR UPDATE TO %1$I USING (%2$s)'),
                     ('app_inbox', '', 'TO %1$I USING (%2$s) WITH CHECK (%2$s)'),
                     ('app_inbox_key', '', 'TO %1$I USING (%2$s) WITH CHECK (%2$s)')) AS v(relation, suffix, clause)
       WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_policy AS p
                          WHERE p.polrelid = to_regclass(format('public.%I', relation))
                            AND p.polname = (policy_name || suffix)::name)
    LOOP
      EXECUTE format('CREATE POLICY %I ON public.%I ', policy_name || wanted.suffix, wanted.relation)
              || format(wanted.clause, role_name, condition);
    END LOOP;
  END
  $grant$;

  -- Only the owner may execute the functions until EXECUTE is granted.
  FOR function IN
    SELECT p.oid::regprocedure FROM pg_catalog.pg_proc AS p
     WHERE p.pronamespace = 'public'::regnamespace AND p.proname = ANY (ARRAY[
       'app_inbox_blame', 'app_inbox_apply', 'app_inbox_redeliver', 'app_inbox_accept',
       'app_inbox_new_generation', 'app_inbox_grant'])
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
