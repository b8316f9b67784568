-- The table producers insert into, in their business transaction; append-only.
--
-- One statement, therefore atomic however it is run: psql, `supabase db push` or `walrelay init`.
-- Safe to run again. A table of this name that already exists is left exactly as it is.
DO $walrelay$
DECLARE
  web_role text;
BEGIN
  -- Two runs at the same moment take turns; the second then finds everything in place.
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

  -- For retention and for a backfill since a moment.
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

  -- Once per statement, so that an UPDATE that finds no row and an INSERT .. ON CONFLICT DO UPDATE
  -- that meets no conflict are refused as well: on the day they do, the event would be lost.
  CREATE TRIGGER append_only
    BEFORE UPDATE OR TRUNCATE ON public.app_outbox
    FOR EACH STATEMENT EXECUTE FUNCTION public.app_outbox_is_append_only();

  -- No policies: whoever is not the owner and does not bypass row level security needs one.
  ALTER TABLE public.app_outbox ENABLE ROW LEVEL SECURITY;

  -- On Supabase the schema public is served to the internet through these two roles, and default
  -- privileges have just given them every right on the new table.
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
