//! `consumer rebuild --key`: applies single ordering keys again, and affects no other key.

use walrelay_tests::{CONSUMER, DEADLINE, InboxDatabase};

const RESET: &str = "
CREATE FUNCTION effect.reset(keys text[]) RETURNS void LANGUAGE sql AS $$
  DELETE FROM effect.balance WHERE key = ANY (keys);
  DELETE FROM effect.applied WHERE key = ANY (keys);
$$";

const REBUILD: [&str; 11] = [
    "consumer",
    "rebuild",
    CONSUMER,
    "--key",
    "key-3",
    "--key",
    "key-4",
    "--handler",
    "effect.add",
    "--reset-function",
    "effect.reset",
];

async fn world() -> Option<InboxDatabase> {
    let world = InboxDatabase::create().await?;
    world.set_up_consumer().await;
    world.execute(RESET).await;
    Some(world)
}

async fn assert_each_once(world: &InboxDatabase) {
    let wrong = "SELECT count(*) FROM app_outbox AS o
          FULL JOIN (SELECT event_id, count(*) AS times FROM effect.applied GROUP BY 1) AS a
            ON a.event_id = o.id::text
         WHERE a.times IS DISTINCT FROM 1 OR o.id IS NULL";
    assert_eq!(world.number(wrong).await, 0, "applied twice, or not at all");
    let differs = "SELECT (SELECT count(*) FROM app_outbox) - (SELECT sum(events)::bigint FROM effect.balance)";
    assert_eq!(world.number(differs).await, 0, "the sums differ");
}

/// Makes two keys of the read model wrong.
async fn damage(world: &InboxDatabase) {
    let damage = "UPDATE effect.balance SET events = 77 WHERE key = 'key-3';
        DELETE FROM effect.balance WHERE key = 'key-4'; DELETE FROM effect.applied WHERE key = 'key-4'";
    world.execute(damage).await;
}

#[tokio::test]
async fn keys_are_rebuilt_while_their_events_come_and_the_others_are_left_alone() {
    let Some(world) = world().await else { return };
    let consumer = world.start_consumer([]).await;
    let relay = world.start_relay([]).await;
    world.insert_events(5, 500).await;
    world.wait_applied(500).await;
    damage(&world).await;
    let others = "SELECT sum(n)::bigint FROM effect.applied WHERE key NOT IN ('key-3', 'key-4') AND n <= 500";
    let untouched = world.number(others).await;
    world.insert_events(5, 500).await;
    let told = world.succeed(REBUILD).await;
    assert!(told.contains("event(s) of 2 key(s), in generation 1"), "{told}");
    world.wait_applied(1_000).await;
    assert_eq!(world.number(others).await, untouched);
    world.insert_events(5, 100).await;
    world.wait_applied(1_100).await;
    drop((consumer, relay));
    world.consume_all().await;
    assert_each_once(&world).await;
}

#[tokio::test]
async fn a_dry_run_for_keys_counts_their_events_and_runs_neither_handler_nor_reset() {
    let Some(world) = world().await else { return };
    world.insert_events(5, 100).await;
    world.catch_up().await;
    world.consume_all().await;
    // A rollback undoes the rows of the handler, but no sequence.
    let counted = "
        CREATE SEQUENCE effect.calls;
        CREATE OR REPLACE FUNCTION effect.reset(keys text[]) RETURNS void LANGUAGE sql AS $$
          SELECT setval('effect.calls', 77);
        $$";
    world.execute(counted).await;
    let sequences = "SELECT (SELECT last_value FROM effect.calls) * 1000000
        + (SELECT last_value FROM app_inbox_arrival_seq)";
    let before = world.number(sequences).await;
    let told = world.succeed(REBUILD.into_iter().chain(["--dry-run"])).await;
    let events = "SELECT count(*) FROM app_outbox WHERE aggregateid IN ('key-3', 'key-4')";
    let events = world.number(events).await;
    assert!(told.contains(&format!("would be rebuilt: {events} event(s)")), "{told}");
    assert_eq!(world.number(sequences).await, before);
    // It refuses what the rebuild would refuse.
    world.execute("ALTER TABLE app_outbox DISABLE TRIGGER USER").await;
    world.execute("DELETE FROM app_outbox WHERE aggregateid = 'key-3' AND version < 30").await;
    let refused = world.run(REBUILD.into_iter().chain(["--dry-run"])).await;
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    assert!(refused.text.contains("they are not in the outbox any more"), "{}", refused.text);
}

#[tokio::test]
async fn a_rebuild_of_keys_that_is_killed_has_done_all_or_nothing_and_is_run_again() {
    for place in ["keys-reset", "keys-applied", "keys-rebuilt"] {
        let Some(world) = world().await else { return };
        let consumer = world.start_consumer([]).await;
        world.insert_events(5, 100).await;
        world.catch_up().await;
        world.wait_applied(100).await;
        damage(&world).await;
        let killed = world.command(REBUILD).env("WALRELAY_FAILPOINT", place).finish(DEADLINE).await;
        assert_eq!(killed.code, None, "{place}: {}", killed.text);
        let wrong = "SELECT count(*) FROM effect.balance WHERE events = 77";
        assert_eq!(world.number(wrong).await, i64::from(place != "keys-rebuilt"), "{place}");
        world.insert_events(5, 50).await;
        world.catch_up().await;
        world.succeed(REBUILD).await;
        world.wait_applied(150).await;
        drop(consumer);
        world.consume_all().await;
        assert_each_once(&world).await;
    }
}

#[tokio::test]
async fn events_of_a_rebuilt_key_whose_rows_are_pruned_from_the_outbox_are_late() {
    let Some(world) = world().await else { return };
    world.insert_events(5, 100).await;
    world.settle().await;
    world.execute("ALTER TABLE app_outbox DISABLE TRIGGER USER").await;
    world.execute("DELETE FROM app_outbox WHERE version <= 50").await;
    world.execute("ALTER TABLE app_outbox ENABLE TRIGGER USER").await;
    world.succeed(REBUILD).await;
    assert_eq!(world.applied_count().await, 20);
    world.insert_events(5, 10).await;
    world.catch_up().await;
    world.consume_all().await;
    let states =
        "SELECT count(*) FROM app_inbox WHERE ordering_key IN ('key-3', 'key-4') AND status = ";
    assert_eq!(world.number(&format!("{states}'late'")).await, 20);
    assert_eq!(world.number(&format!("{states}'done'")).await, 24);
}

#[tokio::test]
async fn a_rebuild_of_keys_that_would_lose_something_is_refused_and_changes_nothing() {
    let Some(world) = world().await else { return };
    world.insert_events(5, 100).await;
    world.catch_up().await;
    world.consume_all().await;
    let mut unknown = REBUILD;
    (unknown[4], unknown[6]) = ("nobody", "no-one");
    let no_rows = world.run(unknown).await;
    assert_eq!(no_rows.code, Some(2), "{}", no_rows.text);
    assert!(no_rows.text.contains("no published rows of these keys"), "{}", no_rows.text);
    world.execute("ALTER TABLE app_outbox DISABLE TRIGGER USER").await;
    world.execute("DELETE FROM app_outbox WHERE aggregateid = 'key-3' AND version < 30").await;
    let refused = world.run(REBUILD).await;
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    assert!(refused.text.contains("they are not in the outbox any more"), "{}", refused.text);
    assert_eq!(world.number("SELECT sum(events)::bigint FROM effect.balance").await, 100);
    assert_eq!(world.number("SELECT count(*) FROM app_inbox WHERE generation < 1").await, 0);
    world.succeed(REBUILD.into_iter().chain(["--yes"])).await;
    assert_each_once(&world).await;
}

#[tokio::test]
async fn rows_of_a_key_that_the_subscription_does_not_deliver_are_not_applied() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.pubsub.create_topic("audio.events");
    world.set_up_consumer_with(["--filter", "attributes.event_type = \"made\""]).await;
    world.execute(RESET).await;
    world.insert_events(5, 50).await;
    world.insert_events_of(("audio", "made"), 5, 50).await;
    world.insert_events_of(("video", "drafted"), 5, 50).await;
    world.catch_up().await;
    world.consume_all().await;
    damage(&world).await;

    let told = world.succeed(REBUILD).await;
    assert!(told.contains("20 event(s) of 2 key(s)"), "{told}");
    let wrong = "SELECT count(*) FROM effect.balance WHERE events <> 10";
    assert_eq!(world.number(wrong).await, 0);
}

#[tokio::test]
async fn keys_whose_applied_events_fail_now_are_not_rebuilt_unasked() {
    let Some(world) = world().await else { return };
    world.insert_events(5, 50).await;
    world.catch_up().await;
    world.consume_all().await;
    let before = world.number("SELECT sum(events)::bigint FROM effect.balance").await;
    world
        .execute(
            "ALTER TABLE effect.balance ADD CONSTRAINT few CHECK (key <> 'key-3' OR events < 3) NOT VALID",
        )
        .await;
    let refused = world.run(REBUILD).await;
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    assert!(refused.text.contains("would not be applied again"), "{}", refused.text);
    assert!(refused.text.contains("violates check constraint"), "{}", refused.text);
    assert_eq!(world.number("SELECT sum(events)::bigint FROM effect.balance").await, before);
    let done = "SELECT count(*) FROM app_inbox WHERE status = 'done'";
    assert_eq!(world.number(done).await, 50);
}
