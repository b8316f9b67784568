-- Taking messages: what is unseen, whose turn it is, what waits.
--
-- The first step of applying a batch; then come run, which a handler in another language replaces, and
-- settle. Take and settle run no handler and choose their own plans: always by index, made once per
-- session, because tables that grow from nothing to millions of rows between two ANALYZE mislead the
-- planner. All are SECURITY INVOKER.
--
-- One statement, therefore atomic however it is run: psql, `supabase db push` or walrelay itself.
-- Safe to run again: functions of this version are left exactly as they are, those of an earlier one replaced.
DO $walrelay$
DECLARE
  web_role text;
  grantee regrole;
  function text;
BEGIN
  -- Two runs at the same moment take turns; the second then finds everything in place.
  PERFORM pg_advisory_xact_lock(hashtextextended('walrelay migrations', 0));

  IF to_regprocedure('public.app_inbox_is_let_through(text, int, text, boolean, text, int)') IS NOT NULL THEN
    RETURN;
  END IF;
  IF to_regprocedure('public.app_inbox_take_due(text, int, int)') IS NOT NULL THEN
    DROP FUNCTION public.app_inbox_take_due(text, int, int);
  END IF;

  -- May anything be applied for this consumer, and in which generation. Errors of class WR are
  -- walrelay's own.
  CREATE OR REPLACE FUNCTION public.app_inbox_check(consumer text, generation int) RETURNS int
    LANGUAGE plpgsql
  AS $check$
  #variable_conflict use_variable
  DECLARE
    current public.app_inbox_consumer;
  BEGIN
    -- Under a snapshot of the whole transaction, whoever has waited for a lock would not see what the
    -- other one has done, and apply it again.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
      RAISE EXCEPTION 'events are applied in READ COMMITTED only, this transaction is %',
          upper(current_setting('transaction_isolation'))
        USING ERRCODE = 'WR004', HINT = 'BEGIN ISOLATION LEVEL READ COMMITTED.';
    END IF;

    -- A new generation begins under the exclusive form of this lock: it waits for this transaction, or
    -- this one for it and then sees it. It is the consumer's own, so that no other consumer waits too,
    -- and no row's, which every batch would have to share. The reading is a statement after the lock.
    PERFORM pg_advisory_xact_lock_shared(hashtextextended('walrelay inbox ' || consumer, 0));
    SELECT c.* INTO current FROM public.app_inbox_consumer AS c WHERE c.consumer = consumer;

    IF current.consumer IS NULL THEN
      RAISE EXCEPTION 'consumer % is not known here', quote_literal(consumer)
        USING ERRCODE = 'WR001',
              HINT = 'INSERT INTO app_inbox_consumer (consumer, subscription) VALUES (...) first; '
                'a role without a policy sees no row of it.';
    END IF;
    -- A rebuild beside the read model fills the next generation, while this one is in use.
    IF generation = current.rebuilding AND current.rebuilding_in IS NOT NULL THEN
      RETURN generation;
    END IF;
    IF current.generation <> generation THEN
      RAISE EXCEPTION 'consumer % is in generation %, not %', consumer, current.generation, generation
        USING ERRCODE = 'WR002', HINT = 'It is being rebuilt: read its row again.';
    END IF;
    IF current.paused THEN
      RAISE EXCEPTION 'consumer % is paused', consumer
        USING ERRCODE = 'WR003', HINT = 'Set paused to false in app_inbox_consumer to go on.';
    END IF;
    RETURN current.generation;
  END
  $check$;

  -- A message as it is kept while it waits: JSON, in which bytes are base64. The attributes stay a
  -- string, so that this cannot fail whatever they hold.
  CREATE OR REPLACE FUNCTION public.app_inbox_encode(message public.app_inbox_message) RETURNS bytea
    LANGUAGE sql STABLE
  AS $encode$
    SELECT convert_to(
      (to_jsonb(message) || jsonb_build_object(
        'data', translate(encode((message).data, 'base64'), E'\n', '')))::text, 'UTF8')
  $encode$;

  -- And back. The row's id takes the place of the message's, which it is not where ids collided.
  CREATE OR REPLACE FUNCTION public.app_inbox_stored(message bytea, event_id text) RETURNS public.app_inbox_message
    LANGUAGE sql STABLE
  AS $stored$
    SELECT m FROM (SELECT convert_from(message, 'UTF8')::jsonb AS kept) AS s,
      jsonb_populate_record(
        NULL::public.app_inbox_message,
        s.kept || jsonb_build_object(
          'event_id', event_id, 'data', decode(s.kept ->> 'data', 'base64'))) AS m
  $stored$;

  -- Locks the rows of these keys, which are sorted: in one order in all sessions, and returns those it
  -- has got. A key that somebody else is just creating is waited for; one that somebody else has
  -- locked is left to them, so that it does not stall all others, unless "wait" says otherwise.
  CREATE OR REPLACE FUNCTION public.app_inbox_lock(consumer text, generation int, keys text[], wait boolean)
    RETURNS public.app_inbox_key[]
    LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
  AS $lock$
  #variable_conflict use_variable
  DECLARE
    locked public.app_inbox_key[] := '{}';
    missing text[] := keys;
    created public.app_inbox_key[];
  BEGIN
    -- Nearly all keys are there; then one more round for those that were not. A row of our own is
    -- nobody else's until we commit.
    FOR round IN 1 .. 2 LOOP
      -- Key by key, so that no plan can read more of the table than these.
      IF wait THEN
        locked := locked || ARRAY(
          SELECT l.k FROM unnest(missing) AS u(key)
           CROSS JOIN LATERAL (
             SELECT k FROM public.app_inbox_key AS k
              WHERE k.consumer = consumer AND k.generation = generation AND k.ordering_key = u.key
                FOR NO KEY UPDATE) AS l);
      ELSE
        locked := locked || ARRAY(
          SELECT l.k FROM unnest(missing) AS u(key)
           CROSS JOIN LATERAL (
             SELECT k FROM public.app_inbox_key AS k
              WHERE k.consumer = consumer AND k.generation = generation AND k.ordering_key = u.key
                FOR NO KEY UPDATE SKIP LOCKED) AS l);
      END IF;
      EXIT WHEN round = 2 OR cardinality(locked) = cardinality(keys);

      -- Not those that are there: for a row that somebody is just changing, the insert would wait.
      missing := ARRAY(
        SELECT u.key COLLATE "C" FROM unnest(keys) AS u(key)
        EXCEPT SELECT l.ordering_key FROM unnest(locked) AS l ORDER BY 1);
      missing := ARRAY(
        SELECT u.key
          FROM unnest(missing) AS u(key)
          LEFT JOIN LATERAL (
            SELECT true AS is_there FROM public.app_inbox_key AS k
             WHERE k.consumer = consumer AND k.generation = generation AND k.ordering_key = u.key
             LIMIT 1) AS l ON true
         WHERE l.is_there IS NULL);
      EXIT WHEN missing = '{}';
      WITH new AS (
        INSERT INTO public.app_inbox_key AS k (consumer, generation, ordering_key)
          SELECT consumer, generation, u.key FROM unnest(missing) AS u(key) ORDER BY u.key COLLATE "C"
          ON CONFLICT DO NOTHING
          RETURNING k)
      SELECT array_agg(n.k) INTO created FROM new AS n;
      locked := locked || created;
      EXIT WHEN cardinality(locked) = cardinality(keys);
      missing := ARRAY(
        SELECT u.key COLLATE "C" FROM unnest(missing) AS u(key)
        EXCEPT SELECT c.ordering_key FROM unnest(created) AS c ORDER BY 1);
    END LOOP;
    RETURN locked;
  END
  $lock$;

  -- Takes a batch: locks its keys, records what is unseen, and says for each message what is to be
  -- done with it. Messages of one key stand in the order of their arrival.
  --
  --   done, late   unseen and recorded as such: run the handler, then settle
  --   retrying     stored behind an earlier event of its key that waits: to be acknowledged
  --   duplicate    seen before: to be acknowledged
  --   dead         the id of a different event: stored beside it, to be acknowledged
  --   discarded    behind its key's position, which was asked to be skipped: to be acknowledged. Not where its
  --                version is above all that its key has applied: such an event cannot have been applied before,
  --                whatever a position says
  --   deferred     nothing was recorded: somebody else has the key, or it is held and not to be parked
  --
  -- With "wait", keys that somebody else has are waited for instead of deferred.
  CREATE OR REPLACE FUNCTION public.app_inbox_take(
    consumer text, generation int, messages public.app_inbox_message[],
    dedupe text DEFAULT 'event', park boolean DEFAULT true, wait boolean DEFAULT false)
    RETURNS text[]
    LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET enable_nestloop = off
    SET jit = off
  AS $take$
  #variable_conflict use_variable
  DECLARE
    keys text[];
    locked public.app_inbox_key[];
    holds_any boolean;
    unseen text[];
    statuses text[];
    verdicts text[];
    contradicted record;
  BEGIN
    IF dedupe NOT IN ('event', 'position') THEN
      RAISE EXCEPTION 'dedupe is "event" or "position", not %', quote_literal(dedupe)
        USING ERRCODE = 'WR005';
    END IF;
    PERFORM public.app_inbox_check(consumer, generation);

    keys := ARRAY(
      SELECT DISTINCT m.ordering_key COLLATE "C" FROM unnest(messages) AS m
       WHERE m.ordering_key <> '' ORDER BY 1);
    IF keys <> '{}' THEN
      locked := public.app_inbox_lock(consumer, generation, keys, wait);
      SELECT bool_or(l.held_by IS NOT NULL) INTO holds_any FROM unnest(locked) AS l;
    END IF;

    -- The unique index decides what is unseen, before anything is applied; waiting for a session that
    -- is just recording the same event is part of it. Of several copies in the batch the first counts.
    WITH batch AS (
      SELECT m.*, k.held_by,
             -- Positions as one number; null for messages that walrelay did not publish.
             (m.commit_lsn - '0/0'::pg_lsn) * 2147483648 + m.tx_index AS place,
             -- Only positions of one server can be compared.
             CASE WHEN k.system_identifier <> m.system_identifier THEN NULL
                  ELSE (k.commit_lsn - '0/0'::pg_lsn) * 2147483648 + k.tx_index END AS key_place,
             k.system_identifier AS key_system, k.version AS key_version
        FROM ROWS FROM (unnest(messages)) WITH ORDINALITY AS m
        LEFT JOIN unnest(locked) AS k ON k.ordering_key = m.ordering_key
       -- Null is nobody's key and is refused by the table.
       WHERE coalesce(m.ordering_key, '') = '' OR (k.ordering_key IS NOT NULL AND (park OR k.held_by IS NULL))
    ), placed AS (
      SELECT b.*, b.ordering_key <> '' AND b.place < greatest(b.key_place, max(b.place) OVER before) AS is_behind,
             b.version > greatest(b.key_version, max(b.version) OVER before) AS is_newer
        FROM batch AS b
      WINDOW before AS (
               PARTITION BY b.ordering_key, b.system_identifier ORDER BY b.ordinality
               ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
    ), judged AS (
      SELECT DISTINCT ON (p.event_id COLLATE "C") p.*,
             CASE WHEN p.held_by IS NOT NULL THEN 'retrying'
                  WHEN NOT p.is_behind OR p.is_behind IS NULL THEN 'done'
                  -- Only where message and key say whose positions these are, and it is one server.
                  WHEN dedupe = 'position' AND p.is_newer IS NOT TRUE AND p.system_identifier IS NOT NULL
                   AND (p.key_system = p.system_identifier OR p.key_place IS NULL) THEN 'discarded'
                  ELSE 'late' END AS status
        FROM placed AS p
       ORDER BY p.event_id COLLATE "C", p.ordinality
    ), recorded AS (
      INSERT INTO public.app_inbox AS i (
          consumer, generation, event_id, ordering_key, event_type, version, commit_lsn, tx_index,
          occurred_at, status, attempts, error_code, message, done_at)
        SELECT consumer, generation, j.event_id, j.ordering_key, j.event_type, j.version, j.commit_lsn,
               j.tx_index, j.occurred_at, j.status,
               CASE WHEN j.status IN ('retrying', 'discarded') THEN 0 ELSE 1 END,
               CASE WHEN j.status = 'discarded' THEN 'BEHIND_POSITION' END,
               CASE WHEN j.status = 'retrying' THEN public.app_inbox_encode(messages[j.ordinality]) END,
               CASE WHEN j.status <> 'retrying' THEN now() END
          FROM judged AS j
         ORDER BY j.event_id COLLATE "C"
        ON CONFLICT DO NOTHING
        RETURNING i.event_id, i.status)
    SELECT array_agg(r.event_id), array_agg(r.status) INTO unseen, statuses FROM recorded AS r;

    -- Everything unseen and in order: what nearly every batch is.
    IF cardinality(unseen) = cardinality(messages) AND 'done' = ALL (statuses) THEN
      RETURN statuses;
    END IF;

    -- An event behind its key's position that has a higher version, or that occurred after the position was
    -- reached, proves the position wrong: whoever publishes to the topic may have forged it. The minute is for clocks
    -- that differ. Only what is recorded counts, against what the key had before this batch.
    IF dedupe = 'position' AND statuses && ARRAY['late', 'discarded'] THEN
      FOR contradicted IN
        SELECT k.ordering_key, count(DISTINCT m.event_id)::int AS events
          FROM unnest(unseen, statuses) AS u(event_id, status)
          JOIN unnest(messages) AS m ON m.event_id = u.event_id
          JOIN unnest(locked) AS k ON k.ordering_key = m.ordering_key
         WHERE u.status IN ('late', 'discarded') AND k.system_identifier = m.system_identifier
           AND (m.commit_lsn, m.tx_index) < (k.commit_lsn, k.tx_index)
           AND (m.version > k.version OR m.occurred_at > k.moved_at + interval '1 minute')
         GROUP BY k.ordering_key
      LOOP
        UPDATE public.app_inbox_key AS k SET implausible = k.implausible + contradicted.events
         WHERE k.consumer = consumer AND k.generation = generation AND k.ordering_key = contradicted.ordering_key;
      END LOOP;
    END IF;

    verdicts := public.app_inbox_verdicts(
      consumer, generation, messages, unseen, statuses,
      ARRAY(SELECT l.ordering_key FROM unnest(locked) AS l));
    IF holds_any AND park THEN
      -- Numbered by event id, as they were recorded; without positions only this number keeps order.
      FOR n IN 1 .. cardinality(messages) LOOP
        IF verdicts[n] = 'retrying' AND messages[n].commit_lsn IS NULL THEN
          UPDATE public.app_inbox AS i SET arrival = DEFAULT
           WHERE i.consumer = consumer AND i.generation = generation AND i.event_id = messages[n].event_id;
        END IF;
      END LOOP;
      -- One that stands before what holds its key is due at once.
      PERFORM public.app_inbox_heads(consumer, generation, ARRAY(
        SELECT l.ordering_key FROM unnest(locked) AS l WHERE l.held_by IS NOT NULL ORDER BY 1));
    END IF;
    RETURN verdicts;
  END
  $take$;

  -- What take found, message by message, where the batch was not plain; stores collisions.
  CREATE OR REPLACE FUNCTION public.app_inbox_verdicts(
    consumer text, generation int, messages public.app_inbox_message[],
    unseen text[], statuses text[], locked text[])
    RETURNS text[]
    LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
    SET enable_nestloop = off
    SET jit = off
  AS $verdicts$
  #variable_conflict use_variable
  DECLARE
    verdicts text[];
  BEGIN
    -- Only what was in the way is read again: in a statement of its own, which sees what another
    -- session has committed while take waited for it.
    WITH batch AS MATERIALIZED (
      SELECT m.ordinality, m.event_id, m.ordering_key, m.version, l.key IS NOT NULL AS is_ours,
             row_number() OVER (
               PARTITION BY m.event_id, l.key IS NOT NULL ORDER BY m.ordinality) AS copy
        FROM ROWS FROM (unnest(messages)) WITH ORDINALITY AS m
        LEFT JOIN unnest(locked || ''::text) AS l(key) ON l.key = m.ordering_key
    ), new AS MATERIALIZED (
      SELECT u.event_id, u.status FROM unnest(unseen, statuses) AS u(event_id, status)
    ), seen AS MATERIALIZED (
      SELECT r.event_id, r.ordering_key, r.version
        FROM (SELECT DISTINCT b.event_id FROM batch AS b LEFT JOIN new AS n ON n.event_id = b.event_id
               WHERE b.is_ours AND (n.event_id IS NULL OR b.copy > 1)) AS q
       CROSS JOIN LATERAL (
         SELECT i.event_id, i.ordering_key, i.version FROM public.app_inbox AS i
          WHERE i.consumer = consumer AND i.generation = generation AND i.event_id = q.event_id
          LIMIT 1) AS r
    )
    SELECT array_agg(
             CASE WHEN NOT b.is_ours THEN 'deferred'
                  WHEN n.event_id IS NOT NULL AND b.copy = 1 THEN n.status
                  -- Not parked, or removed in this very moment.
                  WHEN s.event_id IS NULL THEN 'deferred'
                  -- The position is not compared: it differs in replayed and recovered copies.
                  WHEN s.ordering_key = b.ordering_key AND s.version IS NOT DISTINCT FROM b.version
                    THEN 'duplicate'
                  ELSE 'dead' END
             ORDER BY b.ordinality)
      INTO verdicts
      FROM batch AS b
      LEFT JOIN new AS n ON n.event_id = b.event_id
      LEFT JOIN seen AS s ON s.event_id = b.event_id;

    IF 'dead' = ANY (verdicts) THEN
      -- Under its position its redelivery finds it again. It holds no key.
      WITH collided AS (
        SELECT m.*,
               m.event_id || '@' || coalesce(m.commit_lsn || '/' || m.tx_index, m.message_id, '') AS stored_id
          FROM ROWS FROM (unnest(messages)) WITH ORDINALITY AS m
          JOIN unnest(verdicts) WITH ORDINALITY AS v(verdict, i) ON v.i = m.ordinality
         WHERE v.verdict = 'dead'
      ), stored AS (
        INSERT INTO public.app_inbox AS i (
            consumer, generation, event_id, ordering_key, event_type, version, commit_lsn, tx_index,
            occurred_at, status, attempts, error_code, last_error, message)
          SELECT consumer, generation, c.stored_id, c.ordering_key, c.event_type, c.version, c.commit_lsn,
                 c.tx_index, c.occurred_at, 'dead', 0, 'ID_COLLISION',
                 'another event has this id already: compare ordering key and version',
                 public.app_inbox_encode(messages[c.ordinality])
            FROM collided AS c
           ORDER BY c.stored_id COLLATE "C"
          ON CONFLICT DO NOTHING
          RETURNING i.event_id)
      SELECT array_agg(
               CASE WHEN c.event_id IS NULL THEN v.verdict
                    WHEN s.event_id IS NULL THEN 'duplicate' ELSE 'dead' END
               ORDER BY v.i)
        INTO verdicts
        FROM unnest(verdicts) WITH ORDINALITY AS v(verdict, i)
        LEFT JOIN collided AS c ON c.ordinality = v.i
        LEFT JOIN stored AS s ON s.event_id = c.stored_id;
    END IF;
    RETURN verdicts;
  END
  $verdicts$;

  -- Whether a message is applied although a version is missing before it: a person has said so, or nothing
  -- waits for ever, where a dead event lets its key go on, and this is its last attempt.
  CREATE OR REPLACE FUNCTION public.app_inbox_is_let_through(
    consumer text, generation int, event_id text, was_stored boolean, on_dead text, max_attempts int)
    RETURNS boolean
    LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
  AS $is_let_through$
  #variable_conflict use_variable
  DECLARE
    has_passed boolean;
  BEGIN
    SELECT coalesce(i.error_code = 'GAP_ACCEPTED', false)
        OR on_dead = 'continue' AND CASE WHEN was_stored THEN i.attempts ELSE 0 END + 1 >= max_attempts
      INTO has_passed
      FROM public.app_inbox AS i
     WHERE i.consumer = consumer AND i.generation = generation AND i.event_id = event_id;
    RETURN coalesce(has_passed, false);
  END
  $is_let_through$;

  -- Which of these messages, whose keys are locked, come too soon: a version of their key is missing
  -- before them. For each "failed" if it is the first such one of its key, "held" if another one is, and
  -- what is missing; null for all others. A key of which nothing was applied begins with whatever comes.
  -- Behind one that waits nothing is let through that would have to wait too.
  CREATE OR REPLACE FUNCTION public.app_inbox_gaps(
    consumer text, generation int, messages public.app_inbox_message[], were_stored boolean,
    on_dead text DEFAULT 'hold', max_attempts int DEFAULT 10,
    OUT outcomes text[], OUT reasons text[])
    LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
  AS $gaps$
  #variable_conflict use_variable
  DECLARE
    it record;
    current text;
    last bigint;
    has_gap boolean;
  BEGIN
    outcomes := array_fill(NULL::text, ARRAY[cardinality(messages)]);
    reasons := outcomes;
    FOR it IN
      SELECT m.ordinality AS n, m.event_id, m.ordering_key, m.version, l.version AS applied
        FROM ROWS FROM (unnest(messages)) WITH ORDINALITY AS m
       CROSS JOIN LATERAL (
         SELECT k.version FROM public.app_inbox_key AS k
          WHERE k.consumer = consumer AND k.generation = generation AND k.ordering_key = m.ordering_key
          LIMIT 1) AS l
       WHERE m.ordering_key <> '' AND m.version IS NOT NULL
       ORDER BY m.ordering_key COLLATE "C", m.ordinality
    LOOP
      IF it.ordering_key IS DISTINCT FROM current THEN
        current := it.ordering_key;
        last := it.applied;
        has_gap := false;
      END IF;
      IF it.version > last + 1 AND (has_gap OR NOT public.app_inbox_is_let_through(
           consumer, generation, it.event_id, were_stored, on_dead, max_attempts))
      THEN
        outcomes[it.n] := CASE WHEN has_gap THEN 'held' ELSE 'failed' END;
        reasons[it.n] := format(
          'version %s has not come, %s was applied last: publish what is missing again, or '
          '`walrelay inbox retry` applies this one without it', last + 1, last);
        has_gap := true;
        CONTINUE;
      END IF;
      last := greatest(last, it.version);
    END LOOP;
  END
  $gaps$;

  -- Which event holds each of these keys: its first that waits, or is dead and holds. That one is due,
  -- now if it was not; all others wait for it, or keys that cannot move would crowd out those that
  -- can. The caller has locked the keys; "failed" names the event, if any, that has just failed in the
  -- key at the same place.
  --
  -- A key that waits for a version is looked at by version: what is missing may have come at any
  -- position. Once it is applied, what has waited for it is due, even if it was dead.
  CREATE OR REPLACE FUNCTION public.app_inbox_heads(
    consumer text, generation int, keys text[], failed text[] DEFAULT '{}')
    RETURNS void
    LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
  AS $heads$
  #variable_conflict use_variable
  DECLARE
    ordering_key text;
    head public.app_inbox;
    former text;
    reached bigint;
    waits_for_version boolean;
  BEGIN
    FOR n IN 1 .. cardinality(keys) LOOP
      ordering_key := keys[n];
      SELECT i.* INTO head
        FROM public.app_inbox AS i
       WHERE i.consumer = consumer AND i.generation = generation AND i.ordering_key = ordering_key
         AND (i.status = 'retrying' OR i.next_attempt_at = 'infinity')
       ORDER BY i.commit_lsn, i.tx_index, i.arrival
       LIMIT 1;
      SELECT k.held_by, k.version INTO former, reached FROM public.app_inbox_key AS k
       WHERE k.consumer = consumer AND k.generation = generation AND k.ordering_key = ordering_key;
      waits_for_version := head.error_code = 'VERSION_GAP';
      IF waits_for_version IS NOT TRUE AND former <> head.event_id THEN
        SELECT i.error_code = 'VERSION_GAP' INTO waits_for_version FROM public.app_inbox AS i
         WHERE i.consumer = consumer AND i.generation = generation AND i.event_id = former;
      END IF;
      IF waits_for_version THEN
        SELECT i.* INTO head
          FROM public.app_inbox AS i
         WHERE i.consumer = consumer AND i.generation = generation AND i.ordering_key || '' = ordering_key
           AND (i.status = 'retrying' OR i.next_attempt_at = 'infinity')
         ORDER BY i.version
         LIMIT 1;
        IF head.error_code = 'VERSION_GAP' AND head.version <= reached + 1 THEN
          UPDATE public.app_inbox AS i SET status = 'retrying', next_attempt_at = clock_timestamp()
           WHERE i.consumer = consumer AND i.generation = generation AND i.event_id = head.event_id
          RETURNING i.* INTO head;
        END IF;
      END IF;
      IF former IS DISTINCT FROM head.event_id THEN
        UPDATE public.app_inbox_key AS k SET held_by = head.event_id
         WHERE k.consumer = consumer AND k.generation = generation AND k.ordering_key = ordering_key;
      END IF;
      FOREACH former IN ARRAY ARRAY[former, failed[n]] LOOP
        IF former <> head.event_id THEN
          -- The status is not a condition: another index than the primary key would offer itself.
          UPDATE public.app_inbox AS i
             SET next_attempt_at = CASE WHEN i.status = 'dead' THEN i.next_attempt_at END
           WHERE i.consumer = consumer AND i.generation = generation AND i.event_id = former;
        END IF;
      END LOOP;
      IF head.status = 'retrying' AND head.next_attempt_at IS NULL THEN
        UPDATE public.app_inbox AS i SET next_attempt_at = clock_timestamp()
         WHERE i.consumer = consumer AND i.generation = generation AND i.event_id = head.event_id;
      END IF;
    END LOOP;
  END
  $heads$;

  -- Stored messages whose time has come, and whatever can follow them in their keys, in the order in
  -- which they are to be applied: that of their positions, or, where gaps hold a key, of their versions.
  -- Their keys stay locked until the transaction ends.
  CREATE OR REPLACE FUNCTION public.app_inbox_take_due(
    consumer text, generation int, batch int DEFAULT 200, on_gap text DEFAULT 'accept')
    RETURNS public.app_inbox_message[]
    LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
  AS $take_due$
  #variable_conflict use_variable
  DECLARE
    now CONSTANT timestamptz := clock_timestamp();
    keys text[];
    keyed public.app_inbox_message[];
    ids text[];
    free public.app_inbox[];
  BEGIN
    PERFORM public.app_inbox_check(consumer, generation);

    WITH due AS (
      SELECT i.ordering_key, i.event_id FROM public.app_inbox AS i
       WHERE i.consumer = consumer AND i.generation = generation AND i.status = 'retrying'
         AND i.next_attempt_at <= now
       ORDER BY i.next_attempt_at LIMIT batch)
    SELECT array_agg(DISTINCT d.ordering_key ORDER BY d.ordering_key) FILTER (WHERE d.ordering_key <> ''),
           array_agg(d.event_id ORDER BY d.event_id) FILTER (WHERE d.ordering_key = '')
      INTO keys, ids
      FROM due AS d;
    keys := ARRAY(
      SELECT l.ordering_key
        FROM unnest(public.app_inbox_lock(consumer, generation, coalesce(keys, '{}'), false)) AS l);
    free := ARRAY(
      SELECT l.i FROM unnest(ids) AS u(id)
       CROSS JOIN LATERAL (
         SELECT i FROM public.app_inbox AS i
          WHERE i.consumer = consumer AND i.generation = generation AND i.event_id = u.id
            FOR NO KEY UPDATE SKIP LOCKED) AS l);

    -- Read after the lock: an operator or another instance may have changed them meanwhile.
    IF on_gap = 'hold' THEN
      keyed := ARRAY(
        SELECT public.app_inbox_stored(w.message, w.event_id)
          FROM unnest(keys) WITH ORDINALITY AS u(key, n)
         CROSS JOIN LATERAL (
           SELECT i.message, i.event_id,
                  row_number() OVER in_order AS place,
                  bool_or(i.status <> 'retrying' OR i.next_attempt_at > now OR i.message IS NULL)
                    OVER in_order AS is_blocked
             FROM public.app_inbox AS i
            WHERE i.consumer = consumer AND i.generation = generation AND i.ordering_key || '' = u.key
              AND (i.status = 'retrying' OR i.next_attempt_at = 'infinity')
           WINDOW in_order AS (
             ORDER BY i.version, i.commit_lsn, i.tx_index, i.arrival ROWS UNBOUNDED PRECEDING)
            ORDER BY i.version, i.commit_lsn, i.tx_index, i.arrival
            LIMIT batch) AS w
         WHERE NOT w.is_blocked
         ORDER BY u.n, w.place
         LIMIT batch);
    ELSE
      keyed := ARRAY(
        SELECT public.app_inbox_stored(w.message, w.event_id)
          FROM unnest(keys) WITH ORDINALITY AS u(key, n)
         CROSS JOIN LATERAL (
           SELECT i.message, i.event_id,
                  row_number() OVER in_order AS place,
                  bool_or(i.status <> 'retrying' OR i.next_attempt_at > now OR i.message IS NULL)
                    OVER in_order AS is_blocked
             FROM public.app_inbox AS i
            WHERE i.consumer = consumer AND i.generation = generation AND i.ordering_key = u.key
              AND (i.status = 'retrying' OR i.next_attempt_at = 'infinity')
           WINDOW in_order AS (
             ORDER BY i.commit_lsn, i.tx_index, i.arrival ROWS UNBOUNDED PRECEDING)
            ORDER BY i.commit_lsn, i.tx_index, i.arrival
            LIMIT batch) AS w
         WHERE NOT w.is_blocked
         ORDER BY u.n, w.place
         LIMIT batch);
    END IF;
    RETURN keyed || ARRAY(
      SELECT public.app_inbox_stored(f.message, f.event_id) FROM unnest(free) AS f
       WHERE f.status = 'retrying' AND f.next_attempt_at <= now AND f.message IS NOT NULL);
  END
  $take_due$;

  -- Closed to everybody but the owner until granted.
  FOR function IN
    SELECT p.oid::regprocedure FROM pg_catalog.pg_proc AS p
     WHERE p.pronamespace = 'public'::regnamespace AND p.proname = ANY (ARRAY[
       'app_inbox_check', 'app_inbox_encode', 'app_inbox_stored', 'app_inbox_lock',
       'app_inbox_take', 'app_inbox_verdicts', 'app_inbox_is_let_through', 'app_inbox_gaps',
       'app_inbox_heads', 'app_inbox_take_due'])
  LOOP
    EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', function);
    FOR web_role IN
      SELECT rolname FROM pg_catalog.pg_roles WHERE rolname IN ('anon', 'authenticated')
    LOOP
      EXECUTE format('REVOKE ALL ON FUNCTION %s FROM %I', function, web_role);
    END LOOP;
    -- A role that applies by functions of an earlier version goes on with these.
    FOR grantee IN
      SELECT a.grantee::regrole
        FROM pg_catalog.pg_proc AS p CROSS JOIN LATERAL pg_catalog.aclexplode(p.proacl) AS a
       WHERE p.oid = 'public.app_inbox_check(text, int)'::regprocedure
         AND a.privilege_type = 'EXECUTE' AND a.grantee NOT IN (0, p.proowner)
    LOOP
      EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %s', function, grantee);
    END LOOP;
  END LOOP;
END
$walrelay$;
