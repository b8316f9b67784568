//! A handler that changes settings: the record of the events rests on those from before it.

use super::messages::event;
use super::world::{InboxDatabase, world};

/// Notes the settings that are in force when the positions of keys are recorded, after the handler.
/// Handlers that change them for the transaction and for the session.
const WATCHED: &str = "
CREATE TABLE seen (settings text);
CREATE FUNCTION in_force() RETURNS text LANGUAGE sql AS $$
  SELECT concat_ws(' ', session_user, current_user, current_setting('search_path'), current_setting('row_security'),
    current_setting('session_replication_role'), current_setting('statement_timeout'),
    current_setting('lock_timeout'), current_setting('idle_in_transaction_session_timeout'),
    current_setting('transaction_timeout', true), current_setting('synchronous_commit')) $$;
CREATE FUNCTION watch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN INSERT INTO public.seen SELECT public.in_force(); RETURN NULL; END $$;
CREATE TRIGGER watch AFTER UPDATE ON app_inbox_key FOR EACH ROW EXECUTE FUNCTION watch();

CREATE FUNCTION change_all(events app_inbox_event[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM add_all(events);
  SET synchronous_commit = off;
  SET search_path = pg_temp;
  SET row_security = off;
  SET session_replication_role = replica;
  SET statement_timeout = '1h';
  SET lock_timeout = 1;
  SET idle_in_transaction_session_timeout = 1;
  SET SESSION AUTHORIZATION pg_monitor;
END $$;
CREATE FUNCTION change(event app_inbox_event) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  PERFORM add_all(ARRAY[event]);
  SET LOCAL synchronous_commit = local;
  SET LOCAL row_security = off;
  SET LOCAL session_replication_role = replica;
  SET LOCAL statement_timeout = '1h';
END $$;
";

/// Returns what the trigger saw, without repetitions.
async fn seen(world: &InboxDatabase) -> Vec<String> {
    world.lines("SELECT DISTINCT settings FROM seen").await
}

#[tokio::test]
async fn settings_that_the_record_rests_on_are_as_before_the_handler() {
    let Some(world) = world().await else { return };
    world.run(WATCHED).await;
    let before = world.text("SELECT in_force()").await;
    for handler in ["change(app_inbox_event)", "change_all(app_inbox_event[])"] {
        world.run("TRUNCATE seen, app_inbox, app_inbox_key, applied, balance").await;
        let batch = [event(1, "a"), event(2, "b"), event(3, "a").failing("22012"), event(4, "c")];
        let applied = world.apply(handler, &batch).await;
        assert_eq!(applied, ["done", "done", "retrying 22012", "done"], "{handler}");
        // Without `walrelay consumer run`, the session keeps what the handler has set for it.
        world.run("RESET SESSION AUTHORIZATION; RESET ALL").await;
        assert_eq!(seen(&world).await, [&*before], "{handler}");
    }
}

#[tokio::test]
async fn a_handler_may_raise_synchronous_commit_and_not_lower_it() {
    let Some(world) = world().await else { return };
    world.run(WATCHED).await;
    for (number, session, handler, expected) in [
        (1, "on", "off", "on"),
        (2, "on", "local", "on"),
        (3, "local", "off", "local"),
        (4, "local", "on", "on"),
        (5, "on", "remote_apply", "remote_apply"),
    ] {
        let change = format!(
            "TRUNCATE seen; SET synchronous_commit = '{session}';
             CREATE OR REPLACE FUNCTION choose(app_inbox_event[]) RETURNS void LANGUAGE plpgsql AS
               $$ BEGIN SET LOCAL synchronous_commit = '{handler}'; END $$"
        );
        world.run(&change).await;
        world.apply("choose(app_inbox_event[])", &[event(number, "a")]).await;
        let levels = world.lines("SELECT DISTINCT split_part(settings, ' ', -1) FROM seen").await;
        assert_eq!(levels, [expected], "{session}, then {handler}");
    }
}

#[tokio::test]
async fn a_handler_that_makes_its_transaction_read_only_fails_alone() {
    let Some(world) = world().await else { return };
    world
        .run(
            "CREATE FUNCTION freeze(event app_inbox_event) RETURNS void LANGUAGE plpgsql AS $$
             BEGIN
               PERFORM add_all(ARRAY[event]);
               IF event.ordering_key = 'b' THEN SET LOCAL transaction_read_only = on; END IF;
             END $$",
        )
        .await;
    let batch = [event(1, "a"), event(2, "c"), event(3, "b")];
    let applied = world.apply("freeze(app_inbox_event)", &batch).await;
    assert_eq!(applied, ["done", "done", "retrying 25001"]);
}
