-- What a consumer keeps: which events it has applied, how far each ordering key is, what waits.
--
-- One statement, therefore atomic however it is run: psql, `supabase db push` or walrelay itself.
-- Safe to run again. A table or type that already exists keeps what it holds; it gets what it lacks.
DO $walrelay$
DECLARE
  web_role text;
  relation text;
  arrivals text;
BEGIN
  -- Two runs at the same moment take turns; the second then finds everything in place.
  PERFORM pg_advisory_xact_lock(hashtextextended('walrelay migrations', 0));

  IF to_regclass('public.app_inbox_consumer') IS NOT NULL THEN
    ALTER TABLE public.app_inbox_consumer
      ADD COLUMN IF NOT EXISTS pruned_before timestamptz,
      ADD COLUMN IF NOT EXISTS rebuilding int,
      ADD COLUMN IF NOT EXISTS rebuilding_in text,
      ADD COLUMN IF NOT EXISTS rebuilding_since timestamptz;
    -- Asked first, because ALTER TABLE waits for every batch, and keeps those behind it waiting, also where it
    -- finds the column.
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_attribute
                    WHERE attrelid = 'public.app_inbox'::regclass AND attname = 'edited_at' AND NOT attisdropped)
    THEN
      ALTER TABLE public.app_inbox ADD COLUMN edited_at timestamptz;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_attribute
                    WHERE attrelid = 'public.app_inbox_key'::regclass AND attname = 'implausible' AND NOT attisdropped)
    THEN
      ALTER TABLE public.app_inbox_key ADD COLUMN moved_at timestamptz, ADD COLUMN implausible int NOT NULL DEFAULT 0;
    END IF;
    CREATE INDEX IF NOT EXISTS app_inbox_versions ON public.app_inbox
      ((ordering_key || ''), consumer, generation, version)
      WHERE status = 'retrying' OR next_attempt_at = 'infinity';
    CREATE INDEX IF NOT EXISTS app_inbox_implausible ON public.app_inbox_key
      (consumer, generation, ordering_key) WHERE implausible > 0;
    -- Earlier versions left the sequence as default privileges had made it. Only where something is to be taken
    -- away, because every REVOKE writes.
    arrivals := pg_get_serial_sequence('public.app_inbox', 'arrival');
    FOR web_role IN
      SELECT grantee FROM unnest(ARRAY['public', 'anon', 'authenticated']) AS g(grantee)
       WHERE (grantee = 'public' OR to_regrole(grantee) IS NOT NULL)
         AND has_sequence_privilege(grantee, arrivals, 'USAGE, SELECT, UPDATE')
    LOOP
      EXECUTE format('REVOKE ALL ON SEQUENCE %s FROM %s', arrivals, web_role);
    END LOOP;
    RETURN;
  END IF;

  -- Names are compared and indexed byte by byte (COLLATE "C"): quicker, the same order in every
  -- session that locks, and an upgrade of the system's collations cannot corrupt the index that
  -- keeps an event from being applied twice.
  CREATE TABLE public.app_inbox_consumer (
    consumer     text        COLLATE "C" PRIMARY KEY,
    subscription text        NOT NULL,
    generation   int         NOT NULL DEFAULT 1,     -- a rebuild begins a new one
    paused       boolean     NOT NULL DEFAULT false, -- nothing is applied meanwhile
    pruned_before timestamptz,                       -- finished events received earlier were deleted
    rebuilding   int,                                -- the generation that an unfinished rebuild fills
    rebuilding_in text,                              -- in this schema, beside the tables; null: in the tables in use
    rebuilding_since timestamptz,                    -- when it began
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
    edited_at       timestamptz,          -- a person has replaced parts of the message
    PRIMARY KEY (consumer, generation, event_id)
  );

  -- What waits or holds, in the order in which a key drains.
  CREATE INDEX app_inbox_waiting ON public.app_inbox
    (consumer, generation, ordering_key, commit_lsn, tx_index, arrival)
    WHERE status = 'retrying' OR next_attempt_at = 'infinity';
  -- The same by version, for keys that wait for one. The key is an expression, so that this index offers
  -- itself only to who asks for it: of a table without statistics it looks as good for reading by position,
  -- and all of a hot key would be read and sorted.
  CREATE INDEX app_inbox_versions ON public.app_inbox
    ((ordering_key || ''), consumer, generation, version)
    WHERE status = 'retrying' OR next_attempt_at = 'infinity';
  -- Asked all the time: what is due.
  CREATE INDEX app_inbox_due ON public.app_inbox
    (consumer, generation, next_attempt_at)
    WHERE status = 'retrying' AND next_attempt_at IS NOT NULL;
  -- For whoever looks, retries or discards.
  CREATE INDEX app_inbox_dead ON public.app_inbox
    (consumer, generation, received_at) WHERE status = 'dead';
  -- Retention and audits read by time. Rows arrive in that order, so a summary of each block range
  -- costs an insert next to nothing, where a tree would cost as much as the primary key.
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
    PRIMARY KEY (consumer, generation, ordering_key)
  ) WITH (fillfactor = 70); -- each batch writes its keys; room in the page spares the index
  -- Counted every few seconds, and empty unless somebody has forged a position.
  CREATE INDEX app_inbox_implausible ON public.app_inbox_key
    (consumer, generation, ordering_key) WHERE implausible > 0;

  -- A message as it came, before its contents are looked at. The attributes are JSON, but as text, and
  -- the data are bytes: what Postgres cannot hold as jsonb is the fault of one event, found when it
  -- is applied, and must not keep a whole batch from being read.
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

  -- What a handler is given.
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
    -- No policies: whoever is not the owner and does not bypass row level security needs one.
    EXECUTE format('ALTER TABLE public.%I ENABLE ROW LEVEL SECURITY', relation);
    -- On Supabase the schema public is served to the internet through these two roles, and default
    -- privileges have just given them every right on the new table.
    EXECUTE format('REVOKE ALL ON TABLE public.%I FROM PUBLIC', relation);
    FOR web_role IN
      SELECT rolname FROM pg_catalog.pg_roles WHERE rolname IN ('anon', 'authenticated')
    LOOP
      EXECUTE format('REVOKE ALL ON TABLE public.%I FROM %I', relation, web_role);
    END LOOP;
  END LOOP;

  -- The sequence behind `arrival` has defaults of its own, and whoever moves it disturbs the order of held rows.
  arrivals := pg_get_serial_sequence('public.app_inbox', 'arrival');
  EXECUTE format('REVOKE ALL ON SEQUENCE %s FROM PUBLIC', arrivals);
  FOR web_role IN
    SELECT rolname FROM pg_catalog.pg_roles WHERE rolname IN ('anon', 'authenticated')
  LOOP
    EXECUTE format('REVOKE ALL ON SEQUENCE %s FROM %I', arrivals, web_role);
  END LOOP;
END
$walrelay$;
