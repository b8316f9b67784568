-- The append-only table that producers insert into, in their business transaction.
--
-- A single statement, so it is atomic under psql, `supabase db push` and `walrelay init`. Safe to
-- run again: an existing table of this name stays unchanged.
DO $walrelay$
DECLARE
  web_role text;
BEGIN
  -- Concurrent runs wait for each other. The second run then finds every object in place.
  PERFORM pg_advisory_xact_lock(hashtextextended('walrelay migrations', 0));

  IF to_regclass('public.app_outbox') IS NOT NULL THEN
    RETURN;
  END IF;

  CREATE TABLE public.app_outbox (
    id             uuid        PRIMARY KEY DEFAULT gen_random_uuid(), -- event id, the consumer's dedupe key
    aggregatetype  text        NOT NULL, -- routes to a topic
    aggregateid    text        NOT NULL, -- ordering key
    event_type     text        NOT NULL,
    version        bigint      NOT NULL, -- increases within one aggregate
    schema_version int         NOT NULL DEFAULT 1,
    payload        jsonb       NOT NULL, -- make it bytea for protobuf or avro: published verbatim
    headers        jsonb,                -- object of strings: extra attributes, traceparent, ...
    occurred_at    timestamptz NOT NULL DEFAULT now()
  );

  -- For retention, and for a backfill from a point in time.
  CREATE INDEX ON public.app_outbox (occurred_at);

  IF to_regprocedure('public.app_outbox_is_append_only()') IS NULL THEN
    CREATE FUNCTION public.app_outbox_is_append_only() RETURNS trigger
      LANGUAGE plpgsql
      SET search_path = ''
    AS $guard$
    BEGIN
      RAISE EXCEPTION '%.% is append-only: % is refused', TG_TABLE_SCHEMA, TG_TABLE_NAME, TG_OP
        USING ERRCODE = 'restrict_violation',
              DETAIL = 'Only inserted rows are published; a change to one would reach nobody.',
              HINT = CASE TG_OP
                WHEN 'UPDATE' THEN
                  'INSERT a new row instead; with ON CONFLICT use DO NOTHING. DELETE is allowed, for retention.'
                ELSE
                  'Old rows are removed with DELETE, or by "walrelay prune".'
              END;
    END
    $guard$;

    REVOKE ALL ON FUNCTION public.app_outbox_is_append_only() FROM PUBLIC;
  END IF;

  -- Once per statement. An UPDATE that finds no row, or an INSERT .. ON CONFLICT DO UPDATE without
  -- a conflict, is therefore also refused. Such a statement would lose an event as soon as it
  -- affects a row.
  CREATE TRIGGER append_only
    BEFORE UPDATE OR TRUNCATE ON public.app_outbox
    FOR EACH STATEMENT EXECUTE FUNCTION public.app_outbox_is_append_only();

  -- Without a policy, only the owner and roles that bypass row-level security can use the table.
  ALTER TABLE public.app_outbox ENABLE ROW LEVEL SECURITY;

  -- On Supabase, the internet reaches the schema public through these two roles. Default privileges
  -- have just granted them all privileges on the new table.
  REVOKE ALL ON TABLE public.app_outbox FROM PUBLIC;
  FOR web_role IN
    SELECT rolname FROM pg_catalog.pg_roles WHERE rolname IN ('anon', 'authenticated')
  LOOP
    EXECUTE format('REVOKE ALL ON TABLE %s FROM %I', 'public.app_outbox'::regclass, web_role);
    EXECUTE format(
      'REVOKE ALL ON FUNCTION %s FROM %I', 'public.app_outbox_is_append_only()'::regprocedure, web_role);
  END LOOP;
END
$walrelay$;
