//! Rust handlers, and handlers that never return: each effect is applied once, and the failing
//! event is identified.

use std::time::Duration;

use walrelay_inbox::{
    ConnectConfig, Consumer, Effect, Endpoint, Event, Handler, HandlerError, Health, Metrics,
    OnGap, PgEnv, Settings, Transaction, Until,
};
use walrelay_testkit::wait_until;
use walrelay_tests::{CONSUMER, DEADLINE, InboxDatabase};

async fn world() -> Option<InboxDatabase> {
    let world = InboxDatabase::create().await?;
    world.set_up_consumer().await;
    Some(world)
}

/// Writes the same rows as the SQL handler of these tests, and fails if an event demands it.
struct AddHandler;

impl Handler for AddHandler {
    async fn handle(
        &self,
        transaction: &Transaction<'_>,
        events: &[Event],
    ) -> Result<(), HandlerError> {
        for event in events {
            let data = String::from_utf8_lossy(&event.data).into_owned();
            let lsn = event.commit_lsn.map(|lsn| lsn.to_string());
            let index = event.tx_index.map(|index| index.to_string());
            let insert = "INSERT INTO effect.applied (event_id, key, lsn, tx_index, data) VALUES ($1, $2, $3, $4, $5)";
            let values: [&(dyn walrelay_inbox::tokio_postgres::types::ToSql + Sync); 5] =
                [&event.event_id, &event.ordering_key, &lsn, &index, &event.data.as_ref()];
            transaction.execute(insert, &values).await?;
            let add = "INSERT INTO effect.balance AS b VALUES ($1, 1)
                ON CONFLICT (key) DO UPDATE SET events = b.events + 1";
            transaction.execute(add, &[&event.ordering_key]).await?;
            // The failure follows the effect, which must be rolled back.
            if data.contains("\"hangs\"") {
                std::future::pending::<()>().await;
            }
            if data.contains("\"fails\"") {
                transaction.batch_execute("SELECT 1 / 0").await?;
            }
            if data.contains("\"never\"") {
                return Err(HandlerError::dead("no such thing"));
            }
        }
        Ok(())
    }
}

/// A handler that leaves changed session settings behind.
struct SessionChanger;

impl Handler for SessionChanger {
    async fn handle(
        &self,
        transaction: &Transaction<'_>,
        events: &[Event],
    ) -> Result<(), HandlerError> {
        let found = "SELECT current_user = session_user AND current_setting('search_path') LIKE '%public%'
                        AND current_setting('lock_timeout') = '500ms' AND coalesce(current_setting('test.batch', true), '') = ''";
        let is_fresh: bool = transaction.query_one(found, &[]).await?.get(0);
        if !is_fresh {
            return Err(HandlerError::dead("another batch has left something"));
        }
        AddHandler.handle(transaction, events).await?;
        let leave = "SET search_path = effect; SET lock_timeout = 1; SET test.batch = 'left';
                     SET synchronous_commit = off; SET session_replication_role = replica; SET ROLE pg_monitor";
        Ok(transaction.batch_execute(leave).await?)
    }
}

async fn consume(world: &InboxDatabase, until: Until) {
    consume_by(world, Effect::handler(AddHandler), until).await;
}

async fn consume_by(world: &InboxDatabase, effect: Effect, until: Until) {
    consume_with(settings(world, effect, until)).await;
}

/// No other consumer holds messages. A failed event is retried within the quiet time.
const CAUGHT_UP: Until = Until::CaughtUp { quiet_for: Duration::from_secs(3) };

fn settings(world: &InboxDatabase, effect: Effect, until: Until) -> Settings {
    let connect = ConnectConfig::parse(world.url(), &PgEnv::default()).expect("a URL");
    let endpoint = Endpoint::emulator(world.pubsub.address()).expect("an address");
    Settings {
        until,
        max_attempts: 2,
        handler_timeout: Duration::from_secs(1),
        batch: 20,
        ..Settings::new(CONSUMER, effect, connect, endpoint)
    }
}

async fn consume_with(settings: Settings) {
    let consumer = Consumer::prepare(settings).await.expect("everything is there");
    let stop = std::future::pending();
    consumer
        .run(stop, Metrics::new(CONSUMER), Health::new(CONSUMER))
        .await
        .expect("it is caught up");
}

async fn insert(world: &InboxDatabase, key: &str, payload: &str) {
    world
        .execute(&format!(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             VALUES ('video', '{key}', 'made', 1000, '{payload}')"
        ))
        .await;
}

#[tokio::test]
async fn with_a_handler_in_rust_every_event_takes_effect_once_and_in_order() {
    let Some(world) = world().await else { return };
    world.pubsub.fault(&format!("on=acknowledge,subscription={CONSUMER},first=3,lose"));
    world.insert_events(20, 600).await;
    world.catch_up().await;
    consume(&world, CAUGHT_UP).await;
    world.assert_applied_exactly_once().await;
}

#[tokio::test]
async fn an_event_that_fails_in_a_rust_handler_is_isolated_and_its_key_waits() {
    let Some(world) = world().await else { return };
    world.insert_events(10, 100).await;
    insert(&world, "key-1", r#"{"fails": 1}"#).await;
    insert(&world, "key-2", r#"{"never": 1}"#).await;
    world.insert_events(10, 100).await;
    world.catch_up().await;
    let until_caught_up = consume(&world, CAUGHT_UP);
    until_caught_up.await;

    assert_eq!(world.applied_count().await, 180);
    let dead = "SELECT string_agg(ordering_key || ' ' || attempts || ' ' || error_code, ', ' ORDER BY ordering_key)
        FROM app_inbox WHERE status = 'dead'";
    let dead: String = world.client().query_one(dead, &[]).await.expect("dead rows").get(0);
    assert_eq!(dead, "key-1 2 22012, key-2 1 HANDLER_DEAD");
    let waiting = "SELECT count(*) FROM app_inbox WHERE status = 'retrying' AND ordering_key IN ('key-1', 'key-2')";
    assert_eq!(world.number(waiting).await, 20);
    // After the discard, the keys continue in order, each event once.
    let ids = "SELECT event_id FROM app_inbox WHERE status = 'dead'";
    for row in world.client().query(ids, &[]).await.expect("dead rows") {
        world.succeed(["inbox", "discard", "--yes", row.get(0), "--reason", "poison"]).await;
    }
    consume(&world, CAUGHT_UP).await;
    assert_eq!(world.applied_count().await, 200);
    let sum = "SELECT sum(events)::bigint FROM effect.balance";
    assert_eq!(world.number(sum).await, 200);
}

#[tokio::test]
async fn a_gap_behind_what_a_handler_in_rust_fails_on_uses_up_no_attempt() {
    let Some(world) = world().await else { return };
    // key-1 fails for now, and key-2 always. Version 4 of both keys is missing.
    for (key, poison) in [("key-1", r#"{"fails": 1}"#), ("key-2", r#"{"never": 1}"#)] {
        for (version, payload) in [(1, "{}"), (2, poison), (3, "{}"), (5, "{}")] {
            world
                .execute(&format!(
                    "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
                     VALUES ('video', '{key}', 'made', {version}, '{payload}')"
                ))
                .await;
        }
    }
    world.catch_up().await;
    let hold = || Settings {
        on_gap: OnGap::Hold,
        ..settings(&world, Effect::handler(AddHandler), CAUGHT_UP)
    };
    consume_with(hold()).await;
    let waiting = "SELECT string_agg(concat_ws(' ', ordering_key, version, status, attempts, error_code), ', '
                               ORDER BY ordering_key, version) FROM app_inbox WHERE status <> 'done'";
    let told: String = world.client().query_one(waiting, &[]).await.expect("rows").get(0);
    assert_eq!(
        told,
        "key-1 2 dead 2 22012, key-1 3 retrying 0, key-1 5 retrying 0 VERSION_GAP, \
         key-2 2 dead 1 HANDLER_DEAD, key-2 3 retrying 0, key-2 5 retrying 0 VERSION_GAP"
    );

    let ids = "SELECT event_id FROM app_inbox WHERE status = 'dead'";
    for row in world.client().query(ids, &[]).await.expect("dead rows") {
        world.succeed(["inbox", "discard", "--yes", row.get(0), "--reason", "poison"]).await;
    }
    consume_with(hold()).await;
    let dead =
        "SELECT count(*) FROM app_inbox WHERE status = 'dead' AND version = 5 AND attempts = 2
                   AND last_error LIKE '%version 4 has not come, 3 was applied last%'";
    assert_eq!(world.number(dead).await, 2);
    assert_eq!(world.applied_count().await, 4);
}

#[tokio::test]
async fn session_settings_of_a_rust_handler_are_reset_before_the_next_statement() {
    let Some(world) = world().await else { return };
    // Notes the settings in force when the positions of keys are recorded, after the handler.
    world
        .execute(
            "CREATE TABLE effect.seen (settings text);
             CREATE FUNCTION effect.watch() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
               INSERT INTO effect.seen VALUES (concat_ws(' ', current_setting('synchronous_commit'), current_user = session_user));
               RETURN NULL;
             END $$;
             CREATE TRIGGER watch AFTER UPDATE ON app_inbox_key FOR EACH ROW EXECUTE FUNCTION effect.watch()",
        )
        .await;
    world.insert_events(10, 100).await;
    // The consumer's own role records failures, although the handler changed the session's role.
    insert(&world, "key-1", r#"{"never": 1}"#).await;
    world.insert_events(10, 100).await;
    world.catch_up().await;
    let consuming = consume_by(&world, Effect::handler(SessionChanger), CAUGHT_UP);
    tokio::time::timeout(DEADLINE, consuming).await.expect("nothing is in the way of any batch");
    let dead = "SELECT string_agg(error_code || ' ' || last_error, ', ') FROM app_inbox WHERE status = 'dead'";
    let dead: String = world.client().query_one(dead, &[]).await.expect("dead rows").get(0);
    assert!(dead.starts_with("HANDLER_DEAD") && dead.ends_with("no such thing"), "{dead}");
    assert_eq!(world.applied_count().await, 190);
    let seen = "SELECT string_agg(DISTINCT settings, ', ') FROM effect.seen";
    let seen: String = world.client().query_one(seen, &[]).await.expect("settings").get(0);
    assert_eq!(seen, "on t");
}

#[tokio::test]
async fn an_event_on_which_a_handler_in_rust_hangs_is_parked_and_the_others_go_on() {
    let Some(world) = world().await else { return };
    insert(&world, "key-1", r#"{"hangs": 1}"#).await;
    world.insert_events(4, 20).await;
    world.catch_up().await;
    let told = "SELECT count(*) FROM app_inbox WHERE status = 'dead' AND error_code = '57014'";
    let parked = wait_until(DEADLINE, "the event to be dead", async || {
        (world.number(told).await == 1).then_some(())
    });
    tokio::select! {
        () = consume(&world, Until::Stopped) => unreachable!("nobody stops it"),
        () = parked => {}
    }
    world.wait_applied(15).await;
}

#[tokio::test]
async fn an_event_whose_sql_handler_never_ends_is_parked_and_the_others_go_on() {
    let Some(world) = world().await else { return };
    world
        .execute(
            "CREATE FUNCTION effect.slow(events app_inbox_event[]) RETURNS void LANGUAGE plpgsql AS $$
             BEGIN
               IF EXISTS (SELECT FROM unnest(events) AS e WHERE e.payload ->> 'hangs' IS NOT NULL) THEN
                 PERFORM pg_sleep(60);
               END IF;
               PERFORM effect.add(events);
             END $$",
        )
        .await;
    world.insert_events(4, 20).await;
    insert(&world, "key-1", r#"{"hangs": 1}"#).await;
    world.insert_events(4, 20).await;
    world.catch_up().await;
    let options = ["--handler-timeout", "1s", "--max-attempts", "2"];
    let consume = ["consumer", "run", CONSUMER, "--handler", "effect.slow"];
    let consumer = world.command(consume.into_iter().chain(options)).start();
    world.wait_applied(35).await;
    // The event is retried from the inbox, where many other events are due.
    let dead = "SELECT count(*) FROM app_inbox WHERE status = 'dead' AND error_code = '57014' AND attempts = 2";
    wait_until(DEADLINE, "the event to be dead", async || {
        (world.number(dead).await == 1).then_some(())
    })
    .await;
    drop(consumer);
    assert_eq!(world.applied_count().await, 35);
}
