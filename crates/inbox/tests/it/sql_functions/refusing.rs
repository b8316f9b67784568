//! Batches that are refused as a whole, before or after attempts, and change nothing.

use tokio_postgres::error::{DbError, SqlState};

use super::messages::event;
use super::world::{BOTH, EACH, InboxDatabase, apply_sql, world};

/// Returns one of walrelay's own error codes.
fn own(code: &str) -> SqlState {
    SqlState::from_code(code)
}

#[tokio::test]
async fn only_read_committed_will_do() {
    let Some(world) = world().await else { return };
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        refuses_level(&world, level).await;
    }
}

async fn refuses_level(world: &InboxDatabase, level: &str) {
    for sql in [
        apply_sql(EACH, &[event(1, "a")], ""),
        format!("SELECT event_id FROM app_inbox_redeliver('c', 1, '{EACH}')"),
        "SELECT app_inbox_accept('c', 'e1', 'a', 1, '0/1', 0)".to_owned(),
    ] {
        world.run(&format!("BEGIN ISOLATION LEVEL {level}")).await;
        let error = world.query(&sql, &[]).await.expect_err(&sql);
        world.run("ROLLBACK").await;
        assert_eq!(error.code(), Some(&own("WR004")));
        let hint = error.as_db_error().and_then(DbError::hint);
        assert_eq!(hint, Some("BEGIN ISOLATION LEVEL READ COMMITTED."));
    }
}

#[tokio::test]
async fn an_unknown_a_paused_and_a_rebuilt_consumer_apply_nothing() {
    let Some(world) = world().await else { return };
    world.run("UPDATE app_inbox_consumer SET paused = true").await;
    assert_eq!(world.refused(EACH, &[event(1, "a")]).await, own("WR003"));
    world.run("UPDATE app_inbox_consumer SET paused = false").await;

    assert_eq!(world.text("SELECT app_inbox_new_generation('c')::text").await, "2");
    assert_eq!(world.refused(EACH, &[event(1, "a")]).await, own("WR002"));

    world.run("DELETE FROM app_inbox_consumer").await;
    assert_eq!(world.refused(EACH, &[event(1, "a")]).await, own("WR001"));
    let error = world.query("SELECT app_inbox_new_generation('c')", &[]).await.unwrap_err();
    assert_eq!(error.code(), Some(&own("WR001")));
}

#[tokio::test]
async fn a_function_that_is_no_handler_is_named_with_what_would_be_one() {
    let Some(world) = world().await else { return };
    world
        .run(
            "CREATE FUNCTION counts(app_inbox_event) RETURNS int LANGUAGE sql AS 'SELECT 1';
             CREATE FUNCTION wants(app_inbox_event, int) RETURNS void LANGUAGE sql AS 'SELECT';
             CREATE FUNCTION many(app_inbox_event) RETURNS SETOF void LANGUAGE sql AS 'SELECT';
             CREATE PROCEDURE calls(app_inbox_event) LANGUAGE sql AS 'SELECT'",
        )
        .await;
    for handler in [
        "counts(app_inbox_event)",
        "wants(app_inbox_event, int)",
        "many(app_inbox_event)",
        "calls(app_inbox_event)",
        "lower(text)",
    ] {
        assert_eq!(world.refused(handler, &[event(1, "a")]).await, own("WR005"), "{handler}");
    }
    let missing = world.refused("missing(app_inbox_event)", &[event(1, "a")]).await;
    assert_eq!(missing, SqlState::UNDEFINED_FUNCTION);
}

#[tokio::test]
async fn an_unknown_option_is_refused() {
    let Some(world) = world().await else { return };
    for option in [", dedupe => 'id'", ", on_dead => 'wait'"] {
        let error = world.query(&apply_sql(EACH, &[event(1, "a")], option), &[]).await;
        assert_eq!(error.expect_err(option).code(), Some(&own("WR005")));
    }
}

#[tokio::test]
async fn a_message_without_id_or_key_is_refused_loudly() {
    let Some(world) = world().await else { return };
    for column in ["event_id", "ordering_key"] {
        let sql = format!(
            "SELECT result FROM app_inbox_apply('c', 1, '{EACH}', ARRAY[jsonb_populate_record(
               NULL::app_inbox_message, '{{\"event_id\": \"e\", \"ordering_key\": \"k\"}}'::jsonb - '{column}')])"
        );
        let error = world.query(&sql, &[]).await.expect_err(column);
        assert_eq!(error.code(), Some(&SqlState::NOT_NULL_VIOLATION));
    }
}

/// Transient errors: deadlock, serialization failure, lock not available, read-only server.
const OF_THE_MOMENT: [&str; 4] = ["40001", "40P01", "55P03", "25006"];
/// Errors of the environment: outages, and problems that an operator has to fix.
const OF_THE_SURROUNDINGS: [&str; 8] =
    ["08006", "08P01", "57P01", "57P03", "53100", "42P01", "42501", "42883"];

#[tokio::test]
async fn what_says_nothing_about_an_event_costs_no_attempt() {
    let Some(world) = world().await else { return };
    for handler in BOTH {
        costs_no_attempt(&world, handler).await;
    }
}

async fn costs_no_attempt(world: &InboxDatabase, handler: &str) {
    for code in OF_THE_MOMENT {
        let batch = [event(1, "a"), event(2, "b").failing(code), event(3, "c")];
        assert_eq!(world.refused(handler, &batch).await, own(code));
    }
    // The same in the second pass, after an event has failed.
    let batch = [event(1, "a").failing("P0001"), event(2, "b").failing("40001")];
    assert_eq!(world.refused(handler, &batch).await, own("40001"));
    // If every event fails, no success shows that the events are at fault.
    for code in OF_THE_SURROUNDINGS {
        let failing = |n, key| event(n, key).failing(code);
        assert_eq!(world.refused(handler, &[failing(1, "a")]).await, own(code));
        let all = [failing(1, "a"), failing(2, "b"), event(3, "b"), failing(4, "")];
        assert_eq!(world.refused(handler, &all).await, own(code));
    }
}

/// The server refuses before the handler receives an event.
#[tokio::test]
async fn a_handler_that_may_not_be_called_refuses_the_batch_with_the_servers_advice() {
    let Some(world) = world().await else { return };
    for handler in BOTH {
        world.run(&format!("REVOKE EXECUTE ON FUNCTION {handler} FROM PUBLIC")).await;
    }
    world.run("DROP ROLE IF EXISTS inbox_stranger").await;
    world
        .run(
            "CREATE ROLE inbox_stranger;
             GRANT ALL ON ALL TABLES IN SCHEMA public TO inbox_stranger;
             ALTER TABLE app_inbox DISABLE ROW LEVEL SECURITY;
             ALTER TABLE app_inbox_key DISABLE ROW LEVEL SECURITY;
             ALTER TABLE app_inbox_consumer DISABLE ROW LEVEL SECURITY;
             DO $$ DECLARE f regprocedure; BEGIN
               FOR f IN SELECT oid FROM pg_proc WHERE proname LIKE 'app\\_inbox%' LOOP
                 EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO inbox_stranger', f);
               END LOOP;
             END $$;
             SET ROLE inbox_stranger",
        )
        .await;
    for handler in BOTH {
        let batch = [event(1, "a"), event(2, "b"), event(3, "")];
        assert_eq!(world.refused(handler, &batch).await, own("42501"), "{handler}");
    }
    world.run("RESET ROLE; DROP OWNED BY inbox_stranger; DROP ROLE inbox_stranger").await;
}

#[tokio::test]
async fn a_statement_timeout_ends_the_batch_and_leaves_nothing() {
    let Some(world) = world().await else { return };
    world
        .run(
            "CREATE FUNCTION sleeps(app_inbox_event) RETURNS void LANGUAGE sql AS 'SELECT pg_sleep(60)';
             SET statement_timeout = '100ms'",
        )
        .await;
    let error = world.refused("sleeps(app_inbox_event)", &[event(1, "a")]).await;
    assert_eq!(error, SqlState::QUERY_CANCELED);
}
