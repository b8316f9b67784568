//! `consumer run --prune-keys`: only keys that nothing needs, and never where positions are compared.

use walrelay_testkit::wait_until;
use walrelay_tests::{CONSUMER, DEADLINE, InboxDatabase};

const OPTIONS: [&str; 5] = ["--prune-older-than", "40d", "--prune-interval", "1s", "--prune-keys"];

/// Moves all rows and keys into the past, as if no event had come for fifty days.
const AGE: &str = "UPDATE app_inbox SET received_at = now() - interval '50 days';
     UPDATE app_inbox_key SET updated_at = now() - interval '50 days'";

async fn keys(world: &InboxDatabase) -> String {
    let sql = "SELECT coalesce(string_agg(ordering_key, ' ' ORDER BY ordering_key), '') FROM app_inbox_key";
    world.client().query_one(sql, &[]).await.expect("the keys").get(0)
}

async fn wait_keys(world: &InboxDatabase, expected: &str) {
    wait_until(DEADLINE, &format!("the keys to be {expected:?}"), async || {
        (keys(world).await == expected).then_some(())
    })
    .await;
}

/// Creates a consumer that has applied events of these keys.
async fn with_keys(count: u32) -> Option<InboxDatabase> {
    let world = InboxDatabase::create().await?;
    world.set_up_consumer().await;
    world.insert_events(count, 2 * count).await;
    world.catch_up().await;
    world.consume_all().await;
    Some(world)
}

#[tokio::test]
async fn only_keys_that_nothing_needs_are_deleted_and_their_next_event_is_applied_once() {
    let Some(world) = with_keys(6).await else { return };
    world
        .execute(&format!(
            "{AGE};
             UPDATE app_inbox_key SET updated_at = now() WHERE ordering_key = 'key-1';
             UPDATE app_inbox SET status = 'dead' WHERE ordering_key = 'key-2';
             UPDATE app_inbox_key SET held_by = 'x' WHERE ordering_key = 'key-3';
             UPDATE app_inbox SET received_at = now() WHERE ordering_key = 'key-4'"
        ))
        .await;
    let consumer = world.start_consumer(OPTIONS).await;
    wait_keys(&world, "key-1 key-2 key-3 key-4").await;
    let counted = format!("walrelay_inbox_keys_pruned_total{{consumer=\"{CONSUMER}\"}} 2");
    consumer.wait_for_metrics(DEADLINE, |metrics| metrics.contains(&counted)).await;

    world.execute("UPDATE app_inbox_key SET held_by = NULL").await;
    world.insert_events(6, 6).await;
    world.catch_up().await;
    world.wait_applied(18).await;
    world.assert_applied_exactly_once().await;
    let rows = "SELECT count(*) FROM app_inbox_key WHERE ordering_key IN ('key-0', 'key-5') AND version > 12";
    assert_eq!(world.number(rows).await, 2);
}

#[tokio::test]
async fn a_key_whose_event_is_being_applied_stays_also_when_its_position_does_not_move() {
    let Some(world) = with_keys(2).await else { return };
    world.execute(AGE).await;
    let batch = world.connect().await;
    // As a batch with a late event does: it locks the key and adds a row, and leaves the position.
    let locking = format!(
        "BEGIN; SELECT app_inbox_lock('{CONSUMER}', 1, '{{key-1}}', true);
         INSERT INTO app_inbox (consumer, generation, event_id, ordering_key, status)
           VALUES ('{CONSUMER}', 1, 'late', 'key-1', 'late')"
    );
    batch.batch_execute(&locking).await.expect("a batch in flight");
    let consumer = world.start_consumer(OPTIONS).await;
    wait_keys(&world, "key-1").await;
    batch.batch_execute("COMMIT").await.expect("committed");
    world.insert_events(2, 2).await;
    world.catch_up().await;
    world.wait_applied(6).await;
    drop(consumer);
    let restarted = world.start_consumer(OPTIONS).await;
    restarted.wait_for_line(DEADLINE, "old rows are deleted from the inbox").await;
    assert_eq!(keys(&world).await, "key-0 key-1");
}

#[tokio::test]
async fn no_key_is_deleted_before_a_row_of_the_inbox_is() {
    let Some(world) = with_keys(2).await else { return };
    // Somebody else has deleted the rows, so that no horizon is known.
    world.execute("UPDATE app_inbox_key SET updated_at = now() - interval '50 days'; DELETE FROM app_inbox").await;
    let consumer = world.start_consumer(OPTIONS).await;
    consumer.wait_for_line(DEADLINE, "old rows are deleted from the inbox").await;
    assert_eq!(keys(&world).await, "key-0 key-1");
}

#[tokio::test]
async fn keys_are_not_deleted_by_a_consumer_that_needs_their_positions() {
    let Some(world) = with_keys(2).await else { return };
    world.execute(AGE).await;
    for needed in [["--dedupe", "position"], ["--on-gap", "hold"]] {
        let refused = world.consumer(OPTIONS.into_iter().chain(needed)).finish(DEADLINE).await;
        assert_eq!(refused.code, Some(2), "{}", refused.text);
        assert!(refused.text.contains("prune-keys"), "{}", refused.text);
    }
    let alone = world.consumer(["--prune-keys"]).finish(DEADLINE).await;
    assert_eq!(alone.code, Some(2), "{}", alone.text);
    // Without the option, keys stay.
    let consumer = world.start_consumer(OPTIONS.into_iter().take(4)).await;
    consumer.wait_for_line(DEADLINE, "old rows are deleted from the inbox").await;
    assert_eq!(keys(&world).await, "key-0 key-1");
}
