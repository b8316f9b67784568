//! What a consumer lacks for a while: a right for one event, a server that writes, its own row.

use walrelay_testkit::relay::Relay;
use walrelay_testkit::wait_until;
use walrelay_tests::{CONSUMER, DEADLINE, World};

/// Waits until `/readyz` gives this as a reason.
async fn told(consumer: &Relay, reason: &str) -> String {
    wait_until(DEADLINE, &format!("{reason:?} to be told"), async || {
        let body = consumer.wait_for_http(DEADLINE, "/readyz", 503).await;
        body.contains(reason).then_some(body)
    })
    .await
}

#[tokio::test]
async fn an_event_that_alone_lacks_a_right_is_named_and_every_other_key_goes_on() {
    let Some(world) = World::create().await else { return };
    world.set_up_consumer().await;
    world
        .execute(
            "CREATE FUNCTION effect.guarded(events app_inbox_event[]) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
               IF EXISTS (SELECT FROM unnest(events) AS e WHERE e.ordering_key = 'forbidden') THEN
                 RAISE EXCEPTION 'new row violates row-level security policy' USING ERRCODE = '42501';
               END IF;
               -- What a batch sets for its session is not there in the next one.
               IF current_setting('test.batch', true) NOT IN ('', pg_current_xact_id()::text) THEN
                 RAISE EXCEPTION 'another batch has left something';
               END IF;
               PERFORM set_config('test.batch', pg_current_xact_id()::text, false);
               PERFORM effect.add(events);
             END $$;
             INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             VALUES ('video', 'forbidden', 'made', 1, '{}')",
        )
        .await;
    let id = "SELECT id::text FROM app_outbox WHERE aggregateid = 'forbidden'";
    let id: String = world.client().query_one(id, &[]).await.expect("one row").get(0);
    world.catch_up().await;
    let consume = ["consume", CONSUMER, "--handler", "effect.guarded"];
    let consumer = world.command(consume).with_http().start();

    // Nothing else has come: it may be everybody's trouble.
    told(&consumer, &format!("(event {id})")).await;
    assert_eq!(world.number("SELECT count(*) FROM app_inbox").await, 0);

    world.insert_events(50, 50).await;
    world.catch_up().await;
    world.wait_applied(50).await;
    world.insert_events(50, 50).await;
    world.catch_up().await;
    world.wait_applied(100).await;
    let left = "SELECT count(*) FROM app_inbox WHERE last_error LIKE '%another batch%'";
    assert_eq!(world.number(left).await, 0);
    let why = told(&consumer, &format!("inbox discard {id}")).await;
    assert!(why.contains("42501") && why.contains("row-level security"), "{why}");
    world.succeed(["inbox", "discard", &id, "--reason", "not ours"]).await;
    consumer.wait_for_http(DEADLINE, "/readyz", 200).await;
}

#[tokio::test]
async fn a_read_only_server_and_a_row_that_is_gone_are_waited_for() {
    let Some(world) = World::create().await else { return };
    world.set_up_consumer().await;
    let consumer = world.start_consumer([]).await;

    let row = "SELECT subscription FROM app_inbox_consumer";
    let subscription: String = world.client().query_one(row, &[]).await.expect("one row").get(0);
    world.execute("DELETE FROM app_inbox_consumer").await;
    told(&consumer, "not known in this database any more").await;
    world.insert_events(5, 20).await;
    world.catch_up().await;
    world
        .execute(&format!(
            "INSERT INTO app_inbox_consumer (consumer, subscription) VALUES ('{CONSUMER}', '{subscription}')"
        ))
        .await;
    world.wait_applied(20).await;
    consumer.wait_for_http(DEADLINE, "/readyz", 200).await;

    world.execute("UPDATE app_inbox_consumer SET paused = true").await;
    told(&consumer, "consumer resume").await;
    world.insert_events(5, 20).await;
    world.catch_up().await;
    let name = world.name();
    world
        .execute(&format!(
            "ALTER DATABASE \"{name}\" SET default_transaction_read_only = on;
             SELECT pg_terminate_backend(pid) FROM pg_stat_activity
              WHERE datname = current_database() AND pid <> pg_backend_pid();
             UPDATE app_inbox_consumer SET paused = false"
        ))
        .await;
    told(&consumer, "25006").await;
    world.execute(&format!("ALTER DATABASE \"{name}\" RESET default_transaction_read_only")).await;
    world.wait_applied(40).await;
    consumer.wait_for_http(DEADLINE, "/readyz", 200).await;
    world.assert_applied_exactly_once().await;
}

#[tokio::test]
async fn a_lock_that_somebody_keeps_is_a_reason_and_no_attempt_of_any_event() {
    let Some(world) = World::create().await else { return };
    world.set_up_consumer().await;
    let somebody = world.connect().await;
    let lock = "BEGIN; LOCK TABLE effect.balance IN ACCESS EXCLUSIVE MODE";
    somebody.batch_execute(lock).await.expect("it is free");
    world.insert_events(5, 20).await;
    world.catch_up().await;
    let consumer = world.consumer(["--handler-timeout", "1s"]).with_http().start();
    let why = told(&consumer, "others are in the way of every batch").await;
    assert!(why.contains("55P03"), "{why}");
    let status = consumer.wait_for_http(DEADLINE, "/status", 200).await;
    assert!(status.contains("others are in the way") && status.contains("55P03"), "{status}");
    consumer.wait_for_line(DEADLINE, "others are in the way of every batch").await;
    assert_eq!(world.number("SELECT count(*) FROM app_inbox").await, 0);

    somebody.batch_execute("ROLLBACK").await.expect("it ends");
    world.wait_applied(20).await;
    consumer.wait_for_http(DEADLINE, "/readyz", 200).await;
    let tried = "SELECT count(*) FROM app_inbox WHERE status <> 'done' OR attempts <> 1";
    assert_eq!(world.number(tried).await, 0);
    world.assert_applied_exactly_once().await;
}
