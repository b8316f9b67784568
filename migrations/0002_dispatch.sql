-- The relay's own tables: the outbox as `walrelay init` recorded it, rows that were not published
-- at the first attempt, the settled position of each slot, and the keys that are held for a replay.
--
-- A single statement, so it is atomic under psql, `supabase db push` and `walrelay init`. Safe to
-- run again: an existing table stays unchanged.
DO $walrelay$
DECLARE
  created text[] := '{}';
  relation text;
  web_role text;
BEGIN
  -- Concurrent runs wait for each other. The second run then finds every object in place.
  PERFORM pg_advisory_xact_lock(hashtextextended('walrelay migrations', 0));

  IF to_regclass('public.app_outbox_definition') IS NULL THEN
    created := array_append(created, 'app_outbox_definition');
    CREATE TABLE public.app_outbox_definition ( -- one row per outbox and its relays, written by `walrelay init` only
      slot              text        PRIMARY KEY, -- without the number of a shard
      system_identifier text,                 -- the server ...
      database          oid         NOT NULL, -- ... and the database whose table ids these are
      publication       text        NOT NULL, -- without the number of a shard
      tables            jsonb       NOT NULL, -- oid, schema and name of each outbox table
      columns           jsonb       NOT NULL  -- the column of each part of an event
    );
    -- A role with a grant may read it, because it holds names only.
    CREATE POLICY reading ON public.app_outbox_definition FOR SELECT USING (true);
  END IF;

  IF to_regclass('public.app_outbox_dispatch') IS NULL THEN
    created := array_append(created, 'app_outbox_dispatch');
    CREATE TABLE public.app_outbox_dispatch (
      slot            text        NOT NULL, -- which relay owns it
      event_id        text        NOT NULL, -- the outbox id as text: uuid, bigint or text outboxes alike
      replay_id       text        NOT NULL DEFAULT '', -- of a copy that a replay publishes; empty: the row itself
      commit_lsn      pg_lsn      NOT NULL, -- the row's position: its transaction's commit ...
      tx_index        int         NOT NULL, -- ... and its index among the inserts there, from 0
      topic           text        NOT NULL,
      ordering_key    text        NOT NULL, -- empty: unordered
      event_type      text,                 -- of the attributes
      message         bytea       NOT NULL, -- the whole message as it would be published; ends early where a value is too large
      status          text        NOT NULL CHECK (status IN ('retrying', 'dead', 'published', 'discarded')),
      attempts        int         NOT NULL DEFAULT 0,
      next_attempt_at timestamptz,          -- null: it waits behind the head of its key
      error_code      text,                 -- gRPC code or our own reason
      last_error      text,                 -- newest attempt first, a line each
      message_id      text,                 -- Pub/Sub's id once published
      parked_at       timestamptz NOT NULL DEFAULT now(),
      edited_at       timestamptz,          -- a person has replaced parts of the message
      updated_at      timestamptz NOT NULL DEFAULT now(), -- moves with each claim; an outcome counts only if it still stands
      PRIMARY KEY (slot, event_id, replay_id)
    );

    -- Finds the first rows of a key in order, independent of the rows of other keys.
    CREATE INDEX app_outbox_dispatch_retrying ON public.app_outbox_dispatch
      (slot, topic, ordering_key, commit_lsn, tx_index) WHERE status = 'retrying';
    -- Finds the due keys, once per second. Only the first row of a key has a due time.
    CREATE INDEX app_outbox_dispatch_due_keys ON public.app_outbox_dispatch
      (slot, topic, next_attempt_at)
      WHERE status = 'retrying' AND ordering_key <> '' AND next_attempt_at IS NOT NULL;
    -- Finds the dead rows that hold a key.
    CREATE INDEX app_outbox_dispatch_dead ON public.app_outbox_dispatch
      (slot, topic, ordering_key, commit_lsn, tx_index) WHERE status = 'dead';
    -- Finds unordered rows by their due time, not by their position.
    CREATE INDEX app_outbox_dispatch_unordered ON public.app_outbox_dispatch
      (slot, topic, next_attempt_at) WHERE status = 'retrying' AND ordering_key = '';
    -- Finds, at start, recorded rows that the server may stream again. The slot is the last column,
    -- so that for a search by slot and id only the primary key is suitable.
    CREATE INDEX app_outbox_dispatch_position ON public.app_outbox_dispatch
      (commit_lsn, tx_index, slot);
    -- Finds rows for retention.
    CREATE INDEX app_outbox_dispatch_finished ON public.app_outbox_dispatch
      (slot, status, updated_at) WHERE status IN ('published', 'discarded');
    -- Finds the progress of a replay.
    CREATE INDEX app_outbox_dispatch_replay ON public.app_outbox_dispatch
      (slot, replay_id, status) WHERE replay_id <> '';
  END IF;

  IF to_regclass('public.app_outbox_relay') IS NULL THEN
    created := array_append(created, 'app_outbox_relay');
    CREATE TABLE public.app_outbox_relay ( -- one row per slot, written up to ten times a second while rows flow
      slot              text        PRIMARY KEY,
      system_identifier text        NOT NULL, -- whose LSNs these are
      timeline          int         NOT NULL, -- the log it was written into; an update of another one does nothing
      generation        bigint      NOT NULL, -- raised by whatever moves the slot by an operator's will
      operation         jsonb,                -- what an operator has begun with the slot and not finished
      settled_lsn       pg_lsn      NOT NULL, -- the watermark
      settled_xid       xid8        NOT NULL, -- every committed transaction below this one is settled
      origin            jsonb,                -- oids of the database and tables whose transaction ids these are
      written_xid       xid8        NOT NULL DEFAULT pg_current_xact_id(), -- the transaction that wrote this row version
      failover          boolean,              -- whether the slot was a failover slot, for the slot that replaces it
      publication       jsonb,                -- the publication at the last start: later changes may hide rows
      condition         jsonb,                -- what the relay does, and why rows do not flow: for `walrelay status`
      published         jsonb,                -- how many rows Pub/Sub has stored, also today, and when the last: for `walrelay status`
      last_skipped      jsonb,                -- the rows that the last `walrelay slot advance` skips, before it skips them
      updated_at        timestamptz NOT NULL DEFAULT now()
    );

    -- A row version that was written here has the xmin that it names. An upgrade copies the files and keeps
    -- that. A restored dump has another xmin, and no later update on the other server may hide that.
    IF to_regprocedure('public.app_outbox_relay_proof()') IS NULL THEN
      CREATE FUNCTION public.app_outbox_relay_proof() RETURNS trigger
        LANGUAGE plpgsql
        SET search_path = ''
      AS $proof$
      BEGIN
        IF OLD.xmin = OLD.written_xid::pg_catalog.xid THEN
          NEW.written_xid := pg_catalog.pg_current_xact_id();
        END IF;
        RETURN NEW;
      END
      $proof$;
      REVOKE ALL ON FUNCTION public.app_outbox_relay_proof() FROM PUBLIC;
      FOR web_role IN
        SELECT rolname FROM pg_catalog.pg_roles WHERE rolname IN ('anon', 'authenticated')
      LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION public.app_outbox_relay_proof() FROM %I', web_role);
      END LOOP;
    END IF;
    CREATE TRIGGER proof BEFORE UPDATE ON public.app_outbox_relay
      FOR EACH ROW EXECUTE FUNCTION public.app_outbox_relay_proof();
  END IF;

  IF to_regclass('public.app_outbox_hold') IS NULL THEN
    created := array_append(created, 'app_outbox_hold');
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
