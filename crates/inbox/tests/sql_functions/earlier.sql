-- The inbox before --on-gap hold was added: a database that a test upgrades.

-- The tables of a consumer: the applied events, the position of each ordering key, and the waiting
-- events.
--
-- A single statement, so it is atomic under psql, `supabase db push` and walrelay itself. Safe to
-- run again: an existing table or type stays unchanged.
DO $walrelay$
DECLARE
  web_role text;
  relation text;
BEGIN
  -- Concurrent runs wait for each other. The second run then finds every object in place.
  PERFORM pg_advisory_xact_lock(hashtextextended('walrelay migrations', 0));

  IF to_regclass('public.app_inbox_consumer') IS NOT NULL THEN
    ALTER TABLE public.app_inbox_consumer ADD COLUMN IF NOT EXISTS pruned_before timestamptz;
    RETURN;
  END IF;

  -- Names are compared byte by byte (COLLATE "C"). This is faster, and every session locks in the
  -- same order. An upgrade of the system's collations also cannot corrupt the index that prevents
  -- an event from being applied twice.
  CREATE TABLE public.app_inbox_consumer (
    consumer     text        COLLATE "C" PRIMARY KEY,
    subscription text        NOT NULL,
    generation   int         NOT NULL DEFAULT 1,     -- a rebuild begins a new one
    paused       boolean     NOT NULL DEFAULT false, -- nothing is applied meanwhile
    pruned_before timestamptz,                       -- finished events received earlier were deleted
    updated_at   timestamptz NOT NULL DEFAULT now()
  );

  CREATE TABLE public.app_inbox ( -- one row per event and consumer
    consumer        text        COLLATE "C" NOT NULL,
    generation      int         NOT NULL,
    event_id        text        COLLATE "C" NOT NULL,
    ordering_key    text        COLLATE "C" NOT NULL, -- empty: without order
    event_type      text,
    version         bigint,
    commit_lsn      pg_lsn,               -- the position; null: not published by walrelay
    tx_index        int,
    arrival         bigint      GENERATED ALWAYS AS IDENTITY, -- held rows drain by position, then by this
    occurred_at     timestamptz,          -- from the attribute; the clock of `audit`
    status          text        NOT NULL CHECK (status IN ('done', 'late', 'retrying', 'dead', 'discarded')),
    attempts        int         NOT NULL DEFAULT 1,
    next_attempt_at timestamptz,          -- null: not by itself; infinity: dead, and holds its key
    error_code      text,                 -- SQLSTATE or our own reason
    last_error      text,                 -- newest attempt first, a line each
    message         bytea,                -- of retrying and dead rows only: an app_inbox_message as JSON
    received_at     timestamptz NOT NULL DEFAULT now(),
    done_at         timestamptz,
    PRIMARY KEY (consumer, generation, event_id)
  );

  -- Finds the waiting and blocking events of a key in their order.
  CREATE INDEX app_inbox_waiting ON public.app_inbox
    (consumer, generation, ordering_key, commit_lsn, tx_index, arrival)
    WHERE status = 'retrying' OR next_attempt_at = 'infinity';
  -- Finds due events, which is the most frequent query.
  CREATE INDEX app_inbox_due ON public.app_inbox
    (consumer, generation, next_attempt_at)
    WHERE status = 'retrying' AND next_attempt_at IS NOT NULL;
  -- Finds dead events for operators who list, retry or discard them.
  CREATE INDEX app_inbox_dead ON public.app_inbox
    (consumer, generation, received_at) WHERE status = 'dead';
  -- Finds events by time, for retention and audits. Rows arrive in time order, so a BRIN index is
  -- almost free for an insert. A B-tree index would cost as much as the primary key.
  CREATE INDEX app_inbox_times ON public.app_inbox USING brin (received_at, occurred_at);

  CREATE TABLE public.app_inbox_key ( -- one row per ordering key; also its lock across instances
    consumer          text   COLLATE "C" NOT NULL,
    generation        int    NOT NULL,
    ordering_key      text   COLLATE "C" NOT NULL,
    commit_lsn        pg_lsn, -- the furthest position applied
    tx_index          int,
    system_identifier text,   -- whose position that is; null: the messages do not say
    version           bigint, -- the highest applied
    held_by           text   COLLATE "C", -- the first event that waits or is dead and holds the key
    PRIMARY KEY (consumer, generation, ordering_key)
  ) WITH (fillfactor = 70); -- each batch writes its keys; room in the page spares the index

  -- A message as it arrived, with its contents unchecked. The attributes are JSON in a text, and
  -- the data are bytes. Content that Postgres cannot store as jsonb is then an error of one event,
  -- found when the event is applied. It does not keep a whole batch from being read.
  CREATE TYPE public.app_inbox_message AS (
    event_id          text,
    event_type        text,
    aggregate_type    text,
    aggregate_id      text,
    ordering_key      text,        -- empty: without order
    version           bigint,
    schema_version    int,
    occurred_at       timestamptz,
    commit_lsn        pg_lsn,
    tx_index          int,
    system_identifier text,        -- of the producer's server, where the message says it
    message_id        text,        -- Pub/Sub's
    publish_time      timestamptz,
    attributes        text,        -- a JSON object of strings: all of them
    data              bytea
  );

  -- The event that a handler receives.
  CREATE TYPE public.app_inbox_event AS (
    event_id       text,
    event_type     text,
    aggregate_type text,
    aggregate_id   text,
    ordering_key   text,
    version        bigint,
    schema_version int,
    occurred_at    timestamptz,
    commit_lsn     pg_lsn,
    tx_index       int,
    message_id     text,
    publish_time   timestamptz,
    attributes     jsonb,
    payload        jsonb,          -- null when the data are no JSON
    data           bytea
  );

  FOREACH relation IN ARRAY ARRAY['app_inbox_consumer', 'app_inbox', 'app_inbox_key'] LOOP
    -- Without a policy, only the owner and roles that bypass row-level security can use the table.
    EXECUTE format('ALTER TABLE public.%I ENABLE ROW LEVEL SECURITY', relation);
    -- On Supabase, the internet reaches the schema public through these two roles. Default
    -- privileges have just granted them all privileges on the new table.
    EXECUTE format('REVOKE ALL ON TABLE public.%I FROM PUBLIC', relation);
    FOR web_role IN
      SELECT rolname FROM pg_catalog.pg_roles WHERE rolname IN ('anon', 'authenticated')
    LOOP
      EXECUTE format('REVOKE ALL ON TABLE public.%I FROM %I', relation, web_role);
    END LOOP;
  END LOOP;
END
$walrelay$;

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

  IF EXISTS (
    SELECT FROM pg_catalog.pg_proc
     WHERE proname = 'app_inbox_take' AND pronamespace = 'public'::regnamespace)
  THEN
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
  -- - `discarded`: behind its key's position, with dedupe = 'position'. Acknowledge the message.
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
             k.system_identifier AS key_system
        FROM ROWS FROM (unnest(messages)) WITH ORDINALITY AS m
        LEFT JOIN unnest(locked) AS k ON k.ordering_key = m.ordering_key
       -- The table refuses a null ordering key.
       WHERE coalesce(m.ordering_key, '') = '' OR (k.ordering_key IS NOT NULL AND (park OR k.held_by IS NULL))
    ), placed AS (
      SELECT b.*, b.ordering_key <> '' AND b.place < greatest(b.key_place, max(b.place) OVER (
               PARTITION BY b.ordering_key, b.system_identifier ORDER BY b.ordinality
               ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)) AS is_behind
        FROM batch AS b
    ), judged AS (
      SELECT DISTINCT ON (p.event_id COLLATE "C") p.*,
             CASE WHEN p.held_by IS NOT NULL THEN 'retrying'
                  WHEN NOT p.is_behind OR p.is_behind IS NULL THEN 'done'
                  -- Only if message and key name the same server as the origin of their positions.
                  WHEN dedupe = 'position' AND p.system_identifier IS NOT NULL
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

    -- The usual batch: every event is new and in order.
    IF cardinality(unseen) = cardinality(messages) AND 'done' = ALL (statuses) THEN
      RETURN statuses;
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

  -- Sets the event that blocks each key: the first waiting event, or the first dead event that
  -- blocks its key. That event becomes due now, unless it is already due. All other events of the
  -- key wait for it. Otherwise events that cannot proceed would crowd out events that can.
  --
  -- The caller has locked the keys. `failed[i]` names the event of `keys[i]` that has just failed,
  -- if any.
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
  BEGIN
    FOR n IN 1 .. cardinality(keys) LOOP
      ordering_key := keys[n];
      SELECT i.* INTO head
        FROM public.app_inbox AS i
       WHERE i.consumer = consumer AND i.generation = generation AND i.ordering_key = ordering_key
         AND (i.status = 'retrying' OR i.next_attempt_at = 'infinity')
       ORDER BY i.commit_lsn, i.tx_index, i.arrival
       LIMIT 1;
      SELECT k.held_by INTO former FROM public.app_inbox_key AS k
       WHERE k.consumer = consumer AND k.generation = generation AND k.ordering_key = ordering_key;
      IF former IS DISTINCT FROM head.event_id THEN
        UPDATE public.app_inbox_key AS k SET held_by = head.event_id
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
  -- keys stay locked until the transaction ends.
  CREATE FUNCTION public.app_inbox_take_due(consumer text, generation int, batch int DEFAULT 200)
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

    -- Read after the lock, because an operator or another instance may have changed the rows
    -- before.
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
       'app_inbox_take', 'app_inbox_verdicts', 'app_inbox_heads', 'app_inbox_take_due'])
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

  IF EXISTS (
    SELECT FROM pg_catalog.pg_proc
     WHERE proname = 'app_inbox_run' AND pronamespace = 'public'::regnamespace)
  THEN
    RETURN;
  END IF;

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
  -- - `deferred`: not attempted, because the limit of savepoints is reached.
  --
  -- Raises errors that do not depend on an event: a deadlock, a serialization failure, an outage, a
  -- missing permission or function.
  CREATE FUNCTION public.app_inbox_run(
    handler regprocedure, messages public.app_inbox_message[],
    OUT outcomes text[], OUT error_codes text[], OUT errors text[])
    LANGUAGE plpgsql
  AS $run$
  DECLARE
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
    events public.app_inbox_event[];
    is_first_pass boolean := true;
    deferred_constraints text;
    event_result refcursor;
    ignored record;
    code text;
    error text;
    detail text;
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

    outcomes := array_fill(NULL::text, ARRAY[size]);
    error_codes := outcomes;
    errors := outcomes;
    WHILE depth > 0 LOOP
      first := firsts[depth];
      last := lasts[depth];
      depth := depth - 1;

      -- A known failure, unless an earlier message of its key was not applied after all.
      IF outcomes[first] = 'failed' AND savepoints < savepoints_max
        AND messages[first].ordering_key <> ALL (held_keys)
      THEN
        IF messages[first].ordering_key <> '' THEN
          held_keys := held_keys || messages[first].ordering_key;
        END IF;
        CONTINUE;
      END IF;

      IF is_first_pass THEN
        -- No message has failed yet, so all messages run without a check of each.
        chosen := ARRAY(SELECT generate_series(first, last));
      ELSE
        chosen := '{}';
        FOR i IN first .. last LOOP
          IF messages[i].ordering_key = ANY (held_keys) THEN
            outcomes[i] := 'held';
          ELSIF savepoints >= savepoints_max THEN
            -- All later messages are deferred as well.
            outcomes[i] := 'deferred';
          ELSE
            chosen := chosen || i;
          END IF;
        END LOOP;
      END IF;
      CONTINUE WHEN chosen = '{}';

      reached := NULL;
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

        IF is_first_pass THEN
          outcomes := array_fill('applied'::text, ARRAY[size]);
        ELSE
          FOREACH reached IN ARRAY chosen LOOP
            outcomes[reached] := 'applied';
          END LOOP;
        END IF;
      EXCEPTION WHEN OTHERS OR assert_failure THEN
        GET STACKED DIAGNOSTICS
          code = RETURNED_SQLSTATE, error = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL;
        IF left(code, 2) IN ('08', '42', '53') OR left(code, 3) = '57P'
          OR code IN ('25006', '40001', '40P01')
        THEN
          RAISE;
        END IF;
        -- The rollback also removed the savepoint.
        savepoints := savepoints - 1;
        is_first_pass := false;
        IF cardinality(chosen) = 1 THEN
          reached := 1;
        END IF;
        IF reached IS NULL THEN
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
          errors[reached] := concat_ws(': ', error, nullif(detail, ''));
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

  -- Only the owner may execute the functions until EXECUTE is granted.
  FOR function IN
    SELECT p.oid::regprocedure FROM pg_catalog.pg_proc AS p
     WHERE p.pronamespace = 'public'::regnamespace AND p.proname = ANY (ARRAY[
       'app_inbox_payload', 'app_inbox_events', 'app_inbox_run'])
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

  IF EXISTS (
    SELECT FROM pg_catalog.pg_proc
     WHERE proname = 'app_inbox_settle' AND pronamespace = 'public'::regnamespace)
  THEN
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
        consumer, generation, ordering_key, commit_lsn, tx_index, system_identifier, version)
      SELECT DISTINCT ON (m.ordering_key COLLATE "C")
             consumer, generation, m.ordering_key, m.commit_lsn, m.tx_index, m.system_identifier, m.version
        FROM unnest(messages) AS m
       WHERE m.ordering_key <> ''
       ORDER BY m.ordering_key COLLATE "C", m.commit_lsn DESC NULLS LAST, m.tx_index DESC
      ON CONFLICT ON CONSTRAINT app_inbox_key_pkey DO UPDATE SET
        commit_lsn = coalesce(excluded.commit_lsn, k.commit_lsn),
        tx_index = coalesce(excluded.tx_index, k.tx_index),
        system_identifier =
          CASE WHEN excluded.commit_lsn IS NULL THEN k.system_identifier ELSE excluded.system_identifier END,
        version = greatest(k.version, excluded.version)
      WHERE excluded.commit_lsn IS NULL OR k.commit_lsn IS NULL
         OR k.system_identifier <> excluded.system_identifier
         OR (excluded.commit_lsn, excluded.tx_index) > (k.commit_lsn, k.tx_index);
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
    -- The first wait, which doubles with each attempt, and the longest wait. Ten attempts take
    -- about ten minutes. Each wait is multiplied by a random factor from 0.1 to 1, which spreads
    -- messages that failed together.
    wait_first CONSTANT interval := '1 second';
    wait_longest CONSTANT interval := '5 minutes';
    new_attempts int;
    new_status text;
    due timestamptz;
    line text;
  BEGIN
    SELECT CASE WHEN was_stored THEN i.attempts + 1 ELSE 1 END INTO new_attempts
      FROM public.app_inbox AS i
     WHERE i.consumer = consumer AND i.generation = generation AND i.event_id = message.event_id;
    IF new_attempts < max_attempts THEN
      new_status := 'retrying';
      due := clock_timestamp() + (0.1 + 0.9 * random())
        * least(wait_longest, wait_first * 2 ^ least(new_attempts - 1, 20));
    ELSE
      new_status := 'dead';
      due := CASE WHEN on_dead = 'hold' AND message.ordering_key <> '' THEN 'infinity' END;
    END IF;
    line := format('attempt %s at %s: %s: %s', new_attempts,
      to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), code,
      left(regexp_replace(coalesce(error, ''), '[[:cntrl:]]+', ' ', 'g'), 1000));
    UPDATE public.app_inbox AS i
       SET status = new_status, attempts = new_attempts, next_attempt_at = due, error_code = code,
           -- Newest first, and the oldest lines are cut off.
           last_error = left(concat_ws(E'\n', line, i.last_error), 4000),
           message = coalesce(i.message, public.app_inbox_encode(message)), done_at = NULL
     WHERE i.consumer = consumer AND i.generation = generation AND i.event_id = message.event_id;
    RETURN new_status;
  END
  $record_failed$;

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
      ELSIF outcomes[n] = 'held' AND park THEN
        -- Stored behind its key in the order of arrival, because take numbered the rows by event
        -- id.
        UPDATE public.app_inbox AS i
           SET status = 'retrying', attempts = 0, done_at = NULL, arrival = DEFAULT,
               message = public.app_inbox_encode(messages[n])
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
       'app_inbox_advance', 'app_inbox_record_applied', 'app_inbox_record_failed',
       'app_inbox_settle'])
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

  IF EXISTS (
    SELECT FROM pg_catalog.pg_proc
     WHERE proname = 'app_inbox_apply' AND pronamespace = 'public'::regnamespace)
  THEN
    RETURN;
  END IF;

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
    dedupe text DEFAULT 'event', park boolean DEFAULT true)
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
    IF NOT 'done' = ALL (verdicts) THEN
      chosen := ARRAY(
        SELECT v.i FROM unnest(verdicts) WITH ORDINALITY AS v(verdict, i)
         WHERE v.verdict IN ('done', 'late') ORDER BY v.i);
      batch := ARRAY(SELECT messages[u.i] FROM unnest(chosen) WITH ORDINALITY AS u(i, n) ORDER BY u.n);
    END IF;
    IF batch <> '{}' THEN
      SELECT r.outcomes, r.error_codes, r.errors INTO outcomes, error_codes, errors
        FROM public.app_inbox_run(handler, batch) AS r;
      settled := public.app_inbox_settle(
        consumer, generation, batch, outcomes, error_codes, errors, false, on_dead, max_attempts, park);
      IF NOT 'applied' = ALL (outcomes) THEN
        FOR n IN 1 .. cardinality(batch) LOOP
          IF settled[n] IS NOT NULL THEN
            verdicts[coalesce(chosen[n], n)] := settled[n];
            codes[coalesce(chosen[n], n)] := error_codes[n];
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
    on_dead text DEFAULT 'hold', max_attempts int DEFAULT 10, batch int DEFAULT 200)
    RETURNS TABLE (event_id text, result text, error_code text)
    LANGUAGE plpgsql
  AS $redeliver$
  #variable_conflict use_variable
  DECLARE
    messages public.app_inbox_message[] := public.app_inbox_take_due(consumer, generation, batch);
    outcomes text[];
    error_codes text[];
    errors text[];
    settled text[];
  BEGIN
    IF messages <> '{}' THEN
      SELECT r.outcomes, r.error_codes, r.errors INTO outcomes, error_codes, errors
        FROM public.app_inbox_run(handler, messages) AS r;
      settled := public.app_inbox_settle(
        consumer, generation, messages, outcomes, error_codes, errors, true, on_dead, max_attempts);
      RETURN QUERY
        SELECT messages[s.i].event_id, s.result, error_codes[s.i]
          FROM unnest(settled) WITH ORDINALITY AS s(result, i);
    END IF;
  END
  $redeliver$;

  -- For subscribers without `walrelay consume`. Call this function first in the transaction that
  -- writes the effect. The result true means that the event is new, so continue. The result false
  -- means that the event was recorded before, so acknowledge the message and do nothing else.
  --
  -- Call the function in the order of ordering keys if a transaction accepts several events.
  -- Otherwise two such transactions deadlock.
  --
  -- A different event with an existing id is recorded as dead, and the result is false.
  CREATE FUNCTION public.app_inbox_accept(
    consumer text, event_id text, ordering_key text, version bigint, commit_lsn pg_lsn, tx_index int,
    event_type text DEFAULT NULL, occurred_at timestamptz DEFAULT NULL)
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
    UPDATE public.app_inbox_consumer AS c SET generation = c.generation + 1, updated_at = now()
     WHERE c.consumer = consumer
     RETURNING c.generation INTO generation;
    IF generation IS NULL THEN
      RAISE EXCEPTION 'consumer % is not known here', quote_literal(consumer) USING ERRCODE = 'WR001';
    END IF;
    RETURN generation;
  END
  $new_generation$;

  -- Only the owner may execute the functions until EXECUTE is granted.
  FOR function IN
    SELECT p.oid::regprocedure FROM pg_catalog.pg_proc AS p
     WHERE p.pronamespace = 'public'::regnamespace AND p.proname = ANY (ARRAY[
       'app_inbox_apply', 'app_inbox_redeliver', 'app_inbox_accept', 'app_inbox_new_generation'])
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

