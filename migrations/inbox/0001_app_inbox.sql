-- The tables of a consumer: the applied events, the position of each ordering key, and the waiting
-- events.
--
-- A single statement, so it is atomic under psql, `supabase db push` and walrelay itself. Safe to
-- run again: existing tables and types stay unchanged.
DO $walrelay$
DECLARE
  web_role text;
  relation text;
  arrivals text;
BEGIN
  -- Concurrent runs wait for each other. The second run then finds every object in place.
  PERFORM pg_advisory_xact_lock(hashtextextended('walrelay migrations', 0));

  IF to_regclass('public.app_inbox_consumer') IS NOT NULL THEN
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
    rebuilding   int,                                -- the generation that an unfinished rebuild fills
    rebuilding_in text,                              -- in this schema, beside the tables in use
    rebuilding_files text[],                         -- the identities of the schema's tables and of their files
    rebuilding_since timestamptz,                    -- when it began
    registered_at timestamptz NOT NULL DEFAULT now(), -- messages are for it from here on
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
    message_id      text,                 -- Pub/Sub's id of the message that brought the event ...
    publish_time    timestamptz,          -- ... and when Pub/Sub stored it; null: applied from the outbox
    occurred_at     timestamptz,          -- from the attribute; the clock of `audit`
    status          text        NOT NULL CHECK (status IN ('done', 'late', 'retrying', 'dead', 'discarded')),
    attempts        int         NOT NULL DEFAULT 1,
    next_attempt_at timestamptz,          -- null: not by itself; infinity: dead, and holds its key
    error_code      text,                 -- SQLSTATE or our own reason
    last_error      text,                 -- newest attempt first, a line each
    message         bytea,                -- of retrying and dead rows only: an app_inbox_message as JSON
    received_at     timestamptz NOT NULL DEFAULT now(),
    done_at         timestamptz,
    edited_at       timestamptz,          -- a person has replaced parts of the message
    PRIMARY KEY (consumer, generation, event_id)
  );

  -- Finds the waiting and blocking events of a key in their order.
  CREATE INDEX app_inbox_waiting ON public.app_inbox
    (consumer, generation, ordering_key, commit_lsn, tx_index, arrival)
    WHERE status = 'retrying' OR next_attempt_at = 'infinity';
  -- The same by version, for keys that wait for a version. The first column is an expression, so
  -- that only queries with the same expression use this index. Without statistics, the planner
  -- would otherwise use this index for the order by position, and read and sort all events of a hot
  -- key.
  CREATE INDEX app_inbox_versions ON public.app_inbox
    ((ordering_key || ''), consumer, generation, version)
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
    version           bigint, -- the highest applied, or given up
    held_by           text   COLLATE "C", -- the first event that waits or is dead and holds the key
    moved_at          timestamptz,        -- when the position was reached
    implausible       int    NOT NULL DEFAULT 0, -- events since then that prove the position wrong
    updated_at        timestamptz NOT NULL DEFAULT now(), -- the last change; not that of implausible
    PRIMARY KEY (consumer, generation, ordering_key)
  ) WITH (fillfactor = 70); -- each batch writes its keys; room in the page spares the index
  -- Counted every few seconds. Empty unless a position was forged.
  CREATE INDEX app_inbox_implausible ON public.app_inbox_key
    (consumer, generation, ordering_key) WHERE implausible > 0;

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

  -- The sequence behind `arrival` has its own default privileges. A role that changes the sequence
  -- would break the order of held rows.
  arrivals := pg_get_serial_sequence('public.app_inbox', 'arrival');
  EXECUTE format('REVOKE ALL ON SEQUENCE %s FROM PUBLIC', arrivals);
  FOR web_role IN
    SELECT rolname FROM pg_catalog.pg_roles WHERE rolname IN ('anon', 'authenticated')
  LOOP
    EXECUTE format('REVOKE ALL ON SEQUENCE %s FROM %I', arrivals, web_role);
  END LOOP;
END
$walrelay$;
