-- The tables for replays: the WAL position at known times, and the progress of each replay.
--
-- A single statement, so it is atomic under psql, `supabase db push` and `walrelay init`. Safe to
-- run again. The relay works without these tables, but then no time can be converted into a
-- position.
DO $walrelay$
DECLARE
  created text[] := '{}';
  relation text;
  web_role text;
BEGIN
  -- Concurrent runs wait for each other. The second run then finds every object in place.
  PERFORM pg_advisory_xact_lock(hashtextextended('walrelay migrations', 0));

  IF to_regclass('public.app_outbox_relay_time') IS NULL THEN
    created := array_append(created, 'app_outbox_relay_time');
    CREATE TABLE public.app_outbox_relay_time ( -- a row a minute, kept for a month; written by the relays
      system_identifier text        NOT NULL, -- whose position it is
      noted_at          timestamptz NOT NULL, -- a commit of this moment or later ...
      lsn               pg_lsn      NOT NULL, -- ... lies at this position or behind it
      PRIMARY KEY (system_identifier, noted_at)
    );
  END IF;

  IF to_regclass('public.app_outbox_replay') IS NULL THEN
    created := array_append(created, 'app_outbox_replay');
    CREATE TABLE public.app_outbox_replay ( -- one row per replay, so that it can be resumed
      id                text        PRIMARY KEY, -- the attribute replay_id
      slot              text        NOT NULL,
      system_identifier text        NOT NULL, -- of the server that the positions belong to
      source            text        NOT NULL CHECK (source IN ('wal', 'table')),
      anchor            text        CHECK ((source = 'wal') = (anchor IS NOT NULL)), -- streamed from a copy
      from_lsn          pg_lsn      CHECK ((source = 'wal') = (from_lsn IS NOT NULL)),
      to_lsn            pg_lsn      CHECK ((source = 'wal') = (to_lsn IS NOT NULL)),
      snapshot          text        CHECK ((source = 'table') = (snapshot IS NOT NULL)), -- sees the rows to publish
      destination       text        NOT NULL CHECK (destination IN ('topic', 'in place')),
      to_topic          text        CHECK ((destination = 'topic') = (to_topic IS NOT NULL)), -- a template
      rate              bigint, -- rows per second, at most
      since             timestamptz, -- only rows of this time or later
      until             timestamptz, -- only rows of this time or earlier
      aggregate_types   text[]      NOT NULL DEFAULT '{}', -- only rows with these values; empty accepts any value
      aggregate_ids     text[]      NOT NULL DEFAULT '{}',
      event_types       text[]      NOT NULL DEFAULT '{}',
      event_ids         text[]      NOT NULL DEFAULT '{}',
      order_by          text[]      NOT NULL DEFAULT '{}', -- columns; empty means version, time and id
      skip_dead         boolean     NOT NULL DEFAULT false, -- leave out rows that Pub/Sub never accepts
      settled_lsn       pg_lsn      NOT NULL, -- every row before is published
      rows_published    bigint      NOT NULL DEFAULT 0,
      resume_table      integer, -- source table: every row before this aggregate of this table is published
      resume_type       text,
      resume_id         text,
      started_at        timestamptz NOT NULL DEFAULT now(),
      updated_at        timestamptz NOT NULL DEFAULT now(),
      finished_at       timestamptz,
      ended             text        CHECK ((ended IS NULL) = (finished_at IS NULL) AND ended IN ('done', 'cancelled'))
    );
  END IF;

  FOREACH relation IN ARRAY created LOOP
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
