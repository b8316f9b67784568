-- The inbox's migrations as they were before `--on-gap hold`, without their comments. Tests update a
-- database that these statements created.

DO $walrelay$
DECLARE
  web_role text;
  relation text;
BEGIN
  PERFORM pg_advisory_xact_lock(hashtextextended('walrelay migrations', 0));

  IF to_regclass('public.app_inbox_consumer') IS NOT NULL THEN
    ALTER TABLE public.app_inbox_consumer ADD COLUMN IF NOT EXISTS pruned_before timestamptz;
    RETURN;
  END IF;

  CREATE TABLE public.app_inbox_consumer (
    consumer     text        COLLATE "C" PRIMARY KEY,
    subscription text        NOT NULL,
    generation   int         NOT NULL DEFAULT 1,
    paused       boolean     NOT NULL DEFAULT false,
    pruned_before timestamptz,
    updated_at   timestamptz NOT NULL DEFAULT now()
  );

  CREATE TABLE public.app_inbox (
    consumer        text        COLLATE "C" NOT NULL,
    generation      int         NOT NULL,
    event_id        text        COLLATE "C" NOT NULL,
    ordering_key    text        COLLATE "C" NOT NULL,
    event_type      text,
    version         bigint,
    commit_lsn      pg_lsn,
    tx_index        int,
    arrival         bigint      GENERATED ALWAYS AS IDENTITY,
    occurred_at     timestamptz,
    status          text        NOT NULL CHECK (status IN ('done', 'late', 'retrying', 'dead', 'discarded')),
    attempts        int         NOT NULL DEFAULT 1,
    next_attempt_at timestamptz,
    error_code      text,
    last_error      text,
    message         bytea,
    received_at     timestamptz NOT NULL DEFAULT now(),
    done_at         timestamptz,
    PRIMARY KEY (consumer, generation, event_id)
  );

  CREATE INDEX app_inbox_waiting ON public.app_inbox
    (consumer, generation, ordering_key, commit_lsn, tx_index, arrival)
    WHERE status = 'retrying' OR next_attempt_at = 'infinity';
  CREATE INDEX app_inbox_due ON public.app_inbox
    (consumer, generation, next_attempt_at)
    WHERE status = 'retrying' AND next_attempt_at IS NOT NULL;
  CREATE INDEX app_inbox_dead ON public.app_inbox
    (consumer, generation, received_at) WHERE status = 'dead';
  CREATE INDEX app_inbox_times ON public.app_inbox USING brin (received_at, occurred_at);

  CREATE TABLE public.app_inbox_key (
    consumer          text   COLLATE "C" NOT NULL,
    generation        int    NOT NULL,
    ordering_key      text   COLLATE "C" NOT NULL,
    commit_lsn        pg_lsn,
    tx_index          int,
    system_identifier text,
    version           bigint,
    held_by           text   COLLATE "C",
    PRIMARY KEY (consumer, generation, ordering_key)
  ) WITH (fillfactor = 70);

  CREATE TYPE public.app_inbox_message AS (
    event_id          text,
    event_type        text,
    aggregate_type    text,
    aggregate_id      text,
    ordering_key      text,
    version           bigint,
    schema_version    int,
    occurred_at       timestamptz,
    commit_lsn        pg_lsn,
    tx_index          int,
    system_identifier text,
    message_id        text,
    publish_time      timestamptz,
    attributes        text,
    data              bytea
  );

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
    payload        jsonb,
    data           bytea
  );

  FOREACH relation IN ARRAY ARRAY['app_inbox_consumer', 'app_inbox', 'app_inbox_key'] LOOP
    EXECUTE format('ALTER TABLE public.%I ENABLE ROW LEVEL SECURITY', relation);
    EXECUTE format('REVOKE ALL ON TABLE public.%I FROM PUBLIC', relation);
    FOR web_role IN
      SELECT rolname FROM pg_catalog.pg_roles WHERE rolname IN ('anon', 'authenticated')
    LOOP
      EXECUTE format('REVOKE ALL ON TABLE public.%I FROM %I', relation, web_role);
    END LOOP;
  END LOOP;
END
$walrelay$;

DO $walrelay$
DECLARE
  web_role text;
  function text;
BEGIN
  PERFORM pg_advisory_xact_lock(hashtextextended('walrelay migrations', 0));

  IF EXISTS (
    SELECT FROM pg_catalog.pg_proc
     WHERE proname = 'app_inbox_take' AND pronamespace = 'public'::regnamespace)
  THEN
    RETURN;
  END IF;

  CREATE FUNCTION public.app_inbox_check(consumer text, generation int) RETURNS int
    LANGUAGE plpgsql
  AS $check$
  #variable_conflict use_variable
  DECLARE
    current public.app_inbox_consumer;
  BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
      RAISE EXCEPTION 'events are applied in READ COMMITTED only, this transaction is %',
          upper(current_setting('transaction_isolation'))
        USING ERRCODE = 'WR004', HINT = 'BEGIN ISOLATION LEVEL READ COMMITTED.';
    END IF;

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

  CREATE FUNCTION public.app_inbox_encode(message public.app_inbox_message) RETURNS bytea
    LANGUAGE sql STABLE
  AS $encode$
    SELECT convert_to(
      (to_jsonb(message) || jsonb_build_object(
        'data', translate(encode((message).data, 'base64'), E'\n', '')))::text, 'UTF8')
  $encode$;

  CREATE FUNCTION public.app_inbox_stored(message bytea, event_id text) RETURNS public.app_inbox_message
    LANGUAGE sql STABLE
  AS $stored$
    SELECT m FROM (SELECT convert_from(message, 'UTF8')::jsonb AS kept) AS s,
      jsonb_populate_record(
        NULL::public.app_inbox_message,
        s.kept || jsonb_build_object(
          'event_id', event_id, 'data', decode(s.kept ->> 'data', 'base64'))) AS m
  $stored$;

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
    FOR round IN 1 .. 2 LOOP
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

    WITH batch AS (
      SELECT m.*, k.held_by,
             (m.commit_lsn - '0/0'::pg_lsn) * 2147483648 + m.tx_index AS place,
             CASE WHEN k.system_identifier <> m.system_identifier THEN NULL
                  ELSE (k.commit_lsn - '0/0'::pg_lsn) * 2147483648 + k.tx_index END AS key_place,
             k.system_identifier AS key_system
        FROM ROWS FROM (unnest(messages)) WITH ORDINALITY AS m
        LEFT JOIN unnest(locked) AS k ON k.ordering_key = m.ordering_key
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

    IF cardinality(unseen) = cardinality(messages) AND 'done' = ALL (statuses) THEN
      RETURN statuses;
    END IF;

    verdicts := public.app_inbox_verdicts(
      consumer, generation, messages, unseen, statuses,
      ARRAY(SELECT l.ordering_key FROM unnest(locked) AS l));
    IF holds_any AND park THEN
      FOR n IN 1 .. cardinality(messages) LOOP
        IF verdicts[n] = 'retrying' AND messages[n].commit_lsn IS NULL THEN
          UPDATE public.app_inbox AS i SET arrival = DEFAULT
           WHERE i.consumer = consumer AND i.generation = generation AND i.event_id = messages[n].event_id;
        END IF;
      END LOOP;
      PERFORM public.app_inbox_heads(consumer, generation, ARRAY(
        SELECT l.ordering_key FROM unnest(locked) AS l WHERE l.held_by IS NOT NULL ORDER BY 1));
    END IF;
    RETURN verdicts;
  END
  $take$;

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
                  WHEN s.event_id IS NULL THEN 'deferred'
                  WHEN s.ordering_key = b.ordering_key AND s.version IS NOT DISTINCT FROM b.version
                    THEN 'duplicate'
                  ELSE 'dead' END
             ORDER BY b.ordinality)
      INTO verdicts
      FROM batch AS b
      LEFT JOIN new AS n ON n.event_id = b.event_id
      LEFT JOIN seen AS s ON s.event_id = b.event_id;

    IF 'dead' = ANY (verdicts) THEN
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

DO $walrelay$
DECLARE
  web_role text;
  function text;
BEGIN
  PERFORM pg_advisory_xact_lock(hashtextextended('walrelay migrations', 0));

  IF EXISTS (
    SELECT FROM pg_catalog.pg_proc
     WHERE proname = 'app_inbox_run' AND pronamespace = 'public'::regnamespace)
  THEN
    RETURN;
  END IF;

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

  CREATE FUNCTION public.app_inbox_run(
    handler regprocedure, messages public.app_inbox_message[],
    OUT outcomes text[], OUT error_codes text[], OUT errors text[])
    LANGUAGE plpgsql
  AS $run$
  DECLARE
    savepoints_max CONSTANT int := 60;
    savepoints int := 0;
    size CONSTANT int := cardinality(messages);
    handles_arrays boolean;
    call text;
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

      IF outcomes[first] = 'failed' AND savepoints < savepoints_max
        AND messages[first].ordering_key <> ALL (held_keys)
      THEN
        IF messages[first].ordering_key <> '' THEN
          held_keys := held_keys || messages[first].ordering_key;
        END IF;
        CONTINUE;
      END IF;

      IF is_first_pass THEN
        chosen := ARRAY(SELECT generate_series(first, last));
      ELSE
        chosen := '{}';
        FOR i IN first .. last LOOP
          IF messages[i].ordering_key = ANY (held_keys) THEN
            outcomes[i] := 'held';
          ELSIF savepoints >= savepoints_max THEN
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
          reached := 0;
          OPEN event_result NO SCROLL FOR EXECUTE call USING events;
          FOR i IN 1 .. cardinality(chosen) LOOP
            reached := i;
            FETCH event_result INTO ignored;
          END LOOP;
          CLOSE event_result;
          reached := NULL;
        END IF;
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
        savepoints := savepoints - 1;
        is_first_pass := false;
        IF cardinality(chosen) = 1 THEN
          reached := 1;
        END IF;
        IF reached IS NULL THEN
          firsts[depth + 1] := chosen[cardinality(chosen) / 2 + 1];
          lasts[depth + 1] := last;
          firsts[depth + 2] := first;
          lasts[depth + 2] := chosen[cardinality(chosen) / 2 + 1] - 1;
          depth := depth + 2;
        ELSE
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

DO $walrelay$
DECLARE
  web_role text;
  function text;
BEGIN
  PERFORM pg_advisory_xact_lock(hashtextextended('walrelay migrations', 0));

  IF EXISTS (
    SELECT FROM pg_catalog.pg_proc
     WHERE proname = 'app_inbox_settle' AND pronamespace = 'public'::regnamespace)
  THEN
    RETURN;
  END IF;

  CREATE FUNCTION public.app_inbox_advance(
    consumer text, generation int, messages public.app_inbox_message[])
    RETURNS void
    LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan
    SET enable_seqscan = off
  AS $advance$
  #variable_conflict use_variable
  BEGIN
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
           last_error = left(concat_ws(E'\n', line, i.last_error), 4000),
           message = coalesce(i.message, public.app_inbox_encode(message)), done_at = NULL
     WHERE i.consumer = consumer AND i.generation = generation AND i.event_id = message.event_id;
    RETURN new_status;
  END
  $record_failed$;

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

DO $walrelay$
DECLARE
  web_role text;
  function text;
BEGIN
  PERFORM pg_advisory_xact_lock(hashtextextended('walrelay migrations', 0));

  IF EXISTS (
    SELECT FROM pg_catalog.pg_proc
     WHERE proname = 'app_inbox_apply' AND pronamespace = 'public'::regnamespace)
  THEN
    RETURN;
  END IF;

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

  CREATE FUNCTION public.app_inbox_new_generation(consumer text) RETURNS int
    LANGUAGE plpgsql
  AS $new_generation$
  #variable_conflict use_variable
  DECLARE
    generation int;
  BEGIN
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

