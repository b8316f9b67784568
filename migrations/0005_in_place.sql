-- The state of in-place replays: the keys that are held, and the dispatch rows that belong to a
-- replay.
--
-- A single statement, so it is atomic under psql, `supabase db push` and `walrelay init`. Safe to
-- run again: existing objects stay unchanged.
DO $walrelay$
DECLARE
  web_role text;
BEGIN
  -- Concurrent runs wait for each other. The second run then finds every object in place.
  PERFORM pg_advisory_xact_lock(hashtextextended('walrelay migrations', 0));

  IF to_regclass('public.app_outbox_hold') IS NULL THEN
    CREATE TABLE public.app_outbox_hold ( -- one row per key that is held; it goes on once the row is deleted
      slot         text        NOT NULL, -- which relay publishes the key
      topic        text        NOT NULL,
      ordering_key text        NOT NULL,
      replay_id    text        NOT NULL, -- for which replay, as in app_outbox_replay
      state        text        NOT NULL DEFAULT 'wanted' CHECK (state IN ('wanted', 'held')),
      commit_lsn   pg_lsn,               -- held: of the key every row up to here has gone out, or never
      tx_index     int,                  -- will, and none behind it; -1: none of that transaction
      wanted_at    timestamptz NOT NULL DEFAULT now(),
      held_at      timestamptz,          -- when the relay answered
      PRIMARY KEY (slot, topic, ordering_key)
    );

    ALTER TABLE public.app_outbox_hold ENABLE ROW LEVEL SECURITY;
    REVOKE ALL ON TABLE public.app_outbox_hold FROM PUBLIC;
    FOR web_role IN
      SELECT rolname FROM pg_catalog.pg_roles WHERE rolname IN ('anon', 'authenticated')
    LOOP
      EXECUTE format('REVOKE ALL ON TABLE %s FROM %I', 'public.app_outbox_hold'::regclass, web_role);
    END LOOP;
  END IF;

  -- A replayed row is stored in addition to its original row.
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_attribute
                  WHERE attrelid = 'public.app_outbox_dispatch'::regclass AND attname = 'replay_id') THEN
    ALTER TABLE public.app_outbox_dispatch
      ADD COLUMN replay_id text NOT NULL DEFAULT '', -- empty: it is the row itself
      DROP CONSTRAINT app_outbox_dispatch_pkey;
    ALTER TABLE public.app_outbox_dispatch
      ADD CONSTRAINT app_outbox_dispatch_pkey PRIMARY KEY (slot, event_id, replay_id);
    -- Finds the progress of a replay.
    CREATE INDEX app_outbox_dispatch_replay ON public.app_outbox_dispatch
      (slot, replay_id, status) WHERE replay_id <> '';
  END IF;
END
$walrelay$;
