-- Functions that take messages: they record new events, lock keys, and select waiting events.
--
-- Applying a batch has three steps: take, run and settle. A handler in another language replaces
-- the step run. Take and settle run no handler and fix their own plans: always by index, planned
-- once per session. A table that grows from zero to millions of rows between two ANALYZE runs would
-- mislead the planner. All functions are SECURITY INVOKER.
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

  IF to_regproc('public.app_inbox_take') IS NOT NULL THEN
    RETURN;
  END IF;

  -- Checks that events may be applied for this consumer, and returns the generation. SQLSTATE class
  -- WR is reserved for walrelay's own errors.
  CREATE FUNCTION public.app_inbox_check(consumer text, generation int) RETURNS int
    LANGUAGE plpgsql
  AS $check$
  #variable_conflict use_variable
  DECLARE
    current public.app_inbox_consumer;
  BEGIN
    -- With a snapshot of the whole transaction, a session that waited for a lock would not see the
    -- changes of the other session. It would apply the same events again.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
      RAISE EXCEPTION 'events are applied in READ COMMITTED only, this transaction is %',
          upper(current_setting('transaction_isolation'))
        USING ERRCODE = 'WR004', HINT = 'BEGIN ISOLATION LEVEL READ COMMITTED.';
    END IF;

    -- A new generation takes this lock in exclusive mode. The new generation waits for this
    -- transaction, or this transaction waits and then sees the new generation. An advisory lock per
    -- consumer blocks no other consumer. Sharing a row lock would make every batch write to that
    -- row. The row is read in a later statement, so that its snapshot follows the lock.
    PERFORM pg_advisory_xact_lock_shared(hashtextextended('walrelay inbox ' || consumer, 0));
    SELECT c.* INTO current FROM public.app_inbox_consumer AS c WHERE c.consumer = consumer;

    IF current.consumer IS NULL THEN
      RAISE EXCEPTION 'consumer % is not known here', quote_literal(consumer)
        USING ERRCODE = 'WR001',
              HINT = 'INSERT INTO app_inbox_consumer (consumer, subscription) VALUES (...) first; '
                'a role without a policy sees no row of it.';
    END IF;
    -- A rebuild into another schema fills the next generation while the current generation is in
    -- use.
    IF generation = current.rebuilding THEN
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

  -- Encodes a waiting message as JSON with base64 data. The attributes stay a JSON string, so that
  -- no content of the attributes can cause an error.
  CREATE FUNCTION public.app_inbox_encode(message public.app_inbox_message) RETURNS bytea
    LANGUAGE sql STABLE
  AS $encode$
    SELECT convert_to(
      (to_jsonb(message) || jsonb_build_object(
        'data', translate(encode((message).data, 'base64'), E'\n', '')))::text, 'UTF8')
  $encode$;

  -- Decodes a stored message. The row's id replaces the message's id, because the ids differ after
  -- an id collision.
  CREATE FUNCTION public.app_inbox_stored(message bytea, event_id text) RETURNS public.app_inbox_message
    LANGUAGE sql STABLE
  AS $stored$
    SELECT m FROM (SELECT convert_from(message, 'UTF8')::jsonb AS kept) AS s,
      jsonb_populate_record(
        NULL::public.app_inbox_message,
        s.kept || jsonb_build_object(
          'event_id', event_id, 'data', decode(s.kept ->> 'data', 'base64'))) AS m
  $stored$;

  -- Locks the rows of these sorted keys, in the same order in all sessions, and returns the locked
  -- rows. The function waits for a key that another session is creating. A key locked by another
  -- session is left out, so that it does not delay all others. With "wait", the function also
  -- waits for such keys.
  CREATE FUNCTION public.app_inbox_lock(consumer text, generation int, keys text[], wait boolean)
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
    -- Most keys exist. A second round locks the keys that were missing. A row that this transaction
    -- inserted is locked until its commit.
    FOR round IN 1 .. 2 LOOP
      -- One lookup per key, so that no plan can read other parts of the table.
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

      -- Existing keys are left out, because an insert would wait for a session that is changing the
      -- row.
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

  -- Takes a batch: locks its keys, records new events, and returns the treatment of each message.
  -- Messages of one key are in the order of their arrival.
  --
  -- - `done`, `late`: new and recorded with this status. Run the handler, then settle.
  -- - `retrying`: stored behind an earlier waiting event of its key. Acknowledge the message.
  -- - `duplicate`: recorded before. Acknowledge the message.
  -- - `dead`: the id belongs to a different event. The message is stored under another id.
  --   Acknowledge the message.
  -- - `discarded`: behind its key's position, with dedupe = 'position', and old enough that
  --   `consumer prune` may have deleted its row. Acknowledge the message. A younger event that the
  --   inbox does not list, and an event with a higher version than all applied events of its key,
  --   cannot have been applied before. Such an event is `late`.
  -- - `deferred`: not recorded. Another session has locked the key, or the key is blocked and park
  --   is false.
  --
  -- With "wait", the function waits for keys that another session has locked, instead of deferring
  -- their messages.
  CREATE FUNCTION public.app_inbox_take(
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

    -- The unique index decides whether an event is new, before any event is applied. The insert may
    -- wait for a session that is recording the same event. If the batch contains several copies,
    -- the first copy counts.
    WITH batch AS (
      SELECT m.*, k.held_by,
             -- A position as one number. Null for messages that walrelay did not publish.
             (m.commit_lsn - '0/0'::pg_lsn) * 2147483648 + m.tx_index AS place,
             -- Only positions of one server are comparable.
             CASE WHEN k.system_identifier <> m.system_identifier THEN NULL
                  ELSE (k.commit_lsn - '0/0'::pg_lsn) * 2147483648 + k.tx_index END AS key_place,
             k.system_identifier AS key_system, k.version AS key_version
        FROM ROWS FROM (unnest(messages)) WITH ORDINALITY AS m
        LEFT JOIN unnest(locked) AS k ON k.ordering_key = m.ordering_key
       -- The table refuses a null ordering key.
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
                  -- Only if message and key name the same server as the origin of their positions.
                  WHEN dedupe = 'position' AND p.is_newer IS NOT TRUE AND p.system_identifier IS NOT NULL
                   AND (p.key_system = p.system_identifier OR p.key_place IS NULL) THEN 'discarded'
                  ELSE 'late' END AS status
        FROM placed AS p
       ORDER BY p.event_id COLLATE "C", p.ordinality
    ), recorded AS (
      INSERT INTO public.app_inbox AS i (
          consumer, generation, event_id, ordering_key, event_type, version, commit_lsn, tx_index,
          message_id, publish_time, occurred_at, status, attempts, error_code, message, done_at)
        SELECT consumer, generation, j.event_id, j.ordering_key, j.event_type, j.version, j.commit_lsn,
               j.tx_index, CASE WHEN j.publish_time IS NOT NULL THEN j.message_id END, j.publish_time,
               j.occurred_at, j.status,
               CASE WHEN j.status IN ('retrying', 'discarded') THEN 0 ELSE 1 END,
               CASE WHEN j.status = 'discarded' THEN 'BEHIND_POSITION' END,
               CASE WHEN j.status = 'retrying' THEN public.app_inbox_encode(messages[j.ordinality]) END,
               CASE WHEN j.status <> 'retrying' THEN now() END
          FROM judged AS j
         ORDER BY j.event_id COLLATE "C"
        ON CONFLICT DO NOTHING
        RETURNING i.event_id, i.status)
    SELECT array_agg(r.event_id), array_agg(r.status) INTO unseen, statuses FROM recorded AS r;

    -- A prune records its horizon before it deletes rows. Read after the insert, the horizon
    -- therefore covers every row whose absence the insert has seen. The minute allows for clock
    -- differences.
    IF 'discarded' = ANY (statuses) THEN
      WITH young AS (
        UPDATE public.app_inbox AS i SET status = 'late', attempts = 1, error_code = NULL
         WHERE i.consumer = consumer AND i.generation = generation
           AND i.event_id = ANY (ARRAY(
             SELECT u.event_id FROM unnest(unseen, statuses) AS u(event_id, status)
              WHERE u.status = 'discarded'))
           AND NOT EXISTS (
             SELECT FROM public.app_inbox_consumer AS c
              WHERE c.consumer = consumer
                AND coalesce(i.occurred_at, '-infinity') < c.pruned_before + interval '1 minute')
        RETURNING i.event_id)
      SELECT array_agg(CASE WHEN y.event_id IS NULL THEN u.status ELSE 'late' END ORDER BY u.n)
        INTO statuses
        FROM unnest(unseen, statuses) WITH ORDINALITY AS u(event_id, status, n)
        LEFT JOIN young AS y ON y.event_id = u.event_id;
    END IF;

    -- The usual batch: every event is new and in order.
    IF cardinality(unseen) = cardinality(messages) AND 'done' = ALL (statuses) THEN
      RETURN statuses;
    END IF;

    -- An event behind its key's position proves the position wrong in two cases. Either the event
    -- has a higher version, or it occurred after the position was reached. A publisher may have
    -- forged the position. The minute allows for clock differences. Only newly recorded events
    -- count, compared with the key's state before this batch.
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
      -- The insert numbered the rows by event id. Without positions, only `arrival` keeps the order
      -- of the messages, so it is assigned again.
      FOR n IN 1 .. cardinality(messages) LOOP
        IF verdicts[n] = 'retrying' AND messages[n].commit_lsn IS NULL THEN
          UPDATE public.app_inbox AS i SET arrival = DEFAULT
           WHERE i.consumer = consumer AND i.generation = generation AND i.event_id = messages[n].event_id;
        END IF;
      END LOOP;
      -- An event before the blocking event of its key becomes due at once.
      PERFORM public.app_inbox_heads(consumer, generation, ARRAY(
        SELECT l.ordering_key FROM unnest(locked) AS l WHERE l.held_by IS NOT NULL ORDER BY 1));
    END IF;
    RETURN verdicts;
  END
  $take$;

  -- Returns take's result for each message of an unusual batch, and stores events with an id
  -- collision.
  CREATE FUNCTION public.app_inbox_verdicts(
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
    -- Only conflicting rows are read again. A separate statement also sees rows that another
    -- session committed while take waited for it.
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
                  -- Not recorded because parking is off, or deleted by another session a moment
                  -- ago.
                  WHEN s.event_id IS NULL THEN 'deferred'
                  -- Positions are not compared, because they differ in replayed and recovered
                  -- copies.
                  WHEN s.ordering_key = b.ordering_key AND s.version IS NOT DISTINCT FROM b.version
                    THEN 'duplicate'
                  ELSE 'dead' END
             ORDER BY b.ordinality)
      INTO verdicts
      FROM batch AS b
      LEFT JOIN new AS n ON n.event_id = b.event_id
      LEFT JOIN seen AS s ON s.event_id = b.event_id;

    IF 'dead' = ANY (verdicts) THEN
      -- The stored id contains the position, so a redelivery is recognised as a duplicate. The row
      -- does not block its key.
      WITH collided AS (
        SELECT m.*,
               m.event_id || '@' || coalesce(m.commit_lsn || '/' || m.tx_index, m.message_id, '') AS stored_id
          FROM ROWS FROM (unnest(messages)) WITH ORDINALITY AS m
          JOIN unnest(verdicts) WITH ORDINALITY AS v(verdict, i) ON v.i = m.ordinality
         WHERE v.verdict = 'dead'
      ), stored AS (
        INSERT INTO public.app_inbox AS i (
            consumer, generation, event_id, ordering_key, event_type, version, commit_lsn, tx_index,
            message_id, publish_time, occurred_at, status, attempts, error_code, last_error, message)
          SELECT consumer, generation, c.stored_id, c.ordering_key, c.event_type, c.version, c.commit_lsn,
                 c.tx_index, CASE WHEN c.publish_time IS NOT NULL THEN c.message_id END, c.publish_time,
                 c.occurred_at, 'dead', 0, 'ID_COLLISION',
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

  -- Reports whether a message is applied although a preceding version is missing. Either an
  -- operator accepted the gap, or dead events do not block their key and this is the last attempt.
  -- In the second case no event must wait for ever.
  CREATE FUNCTION public.app_inbox_is_let_through(
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

  -- Finds messages with a missing preceding version in their key. The keys must be locked. The
  -- outcome is "failed" for the first such message of a key and "held" for later ones, with the
  -- missing version as the reason. All other outcomes are null. If no event of a key was applied,
  -- every version is accepted as the first. Behind a waiting message, no message with a gap is let
  -- through.
  CREATE FUNCTION public.app_inbox_gaps(
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

  -- Sets the event that blocks each key: the first waiting event, or the first dead event that
  -- blocks its key. That event becomes due now, unless it is already due. All other events of the
  -- key wait for it. Otherwise events that cannot proceed would crowd out events that can.
  --
  -- The caller has locked the keys. `failed[i]` names the event of `keys[i]` that has just failed,
  -- if any.
  --
  -- A key that waits for a version is ordered by version, because the missing version may arrive at
  -- any position. Once that version is applied, the event that waited for it becomes due, even if
  -- it was dead.
  CREATE FUNCTION public.app_inbox_heads(
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
        UPDATE public.app_inbox_key AS k SET held_by = head.event_id, updated_at = now()
         WHERE k.consumer = consumer AND k.generation = generation AND k.ordering_key = ordering_key;
      END IF;
      FOREACH former IN ARRAY ARRAY[former, failed[n]] LOOP
        IF former <> head.event_id THEN
          -- The status is not a condition, because the planner could then choose another index than
          -- the primary key.
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

  -- Returns the due stored messages and their unblocked successors, in the order to apply them. The
  -- order is by position, or by version if gaps hold a key. The keys stay locked until the
  -- transaction ends.
  CREATE FUNCTION public.app_inbox_take_due(
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

    -- No back-off is longer than five minutes. A later time was set before a step back of the clock.
    ids := ARRAY(
      SELECT i.event_id FROM public.app_inbox AS i
       WHERE i.consumer = consumer AND i.generation = generation AND i.status = 'retrying'
         AND i.next_attempt_at > now + interval '5 minutes' AND i.next_attempt_at < 'infinity'
       ORDER BY i.next_attempt_at LIMIT batch
         FOR NO KEY UPDATE SKIP LOCKED);
    IF ids <> '{}' THEN
      UPDATE public.app_inbox AS i SET next_attempt_at = now
       WHERE i.consumer = consumer AND i.generation = generation AND i.event_id = ANY (ids);
    END IF;

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

    -- Read after the lock, because an operator or another instance may have changed the rows
    -- before.
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

  -- Only the owner may execute the functions until EXECUTE is granted.
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
  END LOOP;
END
$walrelay$;
