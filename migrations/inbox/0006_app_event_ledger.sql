-- A view of every event's life, for an outbox and an inbox in one database: one row per event and
-- consumer.
--
-- Created only if both are in one database and the outbox has the columns of 0001_app_outbox.sql.
-- Otherwise `walrelay audit` and `walrelay trace` compare two databases.
--
-- A single statement, so it is atomic under psql, `supabase db push` and walrelay itself. Safe to
-- run again: an existing view stays unchanged.
DO $walrelay$
DECLARE
  web_role text;
BEGIN
  -- Concurrent runs wait for each other. The second run then finds every object in place.
  PERFORM pg_advisory_xact_lock(hashtextextended('walrelay migrations', 0));

  IF to_regclass('public.app_event_ledger') IS NOT NULL
    OR to_regclass('public.app_outbox_dispatch') IS NULL
    OR to_regclass('public.app_outbox_relay') IS NULL
    OR 7 <> (
      SELECT count(*) FROM pg_catalog.pg_attribute
       WHERE attrelid = to_regclass('public.app_outbox') AND NOT attisdropped
         AND attname IN ('id', 'aggregatetype', 'aggregateid', 'event_type', 'version', 'payload', 'occurred_at'))
  THEN
    RETURN;
  END IF;

  -- The view uses the permissions and policies of the querying role. It leaves payloads out.
  CREATE VIEW public.app_event_ledger WITH (security_invoker = true) AS
    SELECT concat(o.id) AS event_id, o.aggregatetype AS aggregate_type, o.aggregateid AS aggregate_id,
           o.event_type, o.version, o.occurred_at,
           -- The same comparison as in `prune`: every transaction below the horizon is settled.
           coalesce((SELECT bool_or(age(o.xmin) > age(r.settled_xid::xid))
                       FROM public.app_outbox_relay AS r), false) AS settled,
           d.status AS dispatch_status, d.attempts AS dispatch_attempts, d.error_code AS dispatch_error,
           c.consumer, i.status AS inbox_status, i.attempts AS inbox_attempts, i.error_code AS inbox_error,
           i.commit_lsn, i.tx_index, i.message_id, i.publish_time, i.received_at, i.done_at
      FROM public.app_outbox AS o
      LEFT JOIN public.app_outbox_dispatch AS d ON d.event_id = concat(o.id)
      LEFT JOIN public.app_inbox_consumer AS c ON true
      LEFT JOIN public.app_inbox AS i
        ON i.consumer = c.consumer AND i.generation = c.generation AND i.event_id = concat(o.id);

  -- On Supabase, the internet reaches the schema public through these two roles.
  REVOKE ALL ON public.app_event_ledger FROM PUBLIC;
  FOR web_role IN
    SELECT rolname FROM pg_catalog.pg_roles WHERE rolname IN ('anon', 'authenticated')
  LOOP
    EXECUTE format('REVOKE ALL ON public.app_event_ledger FROM %I', web_role);
  END LOOP;
END
$walrelay$;
