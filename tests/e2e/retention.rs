//! `--prune-older-than` of `run` and `consumer run`: old rows are deleted without a scheduler, and
//! no row that is still needed.

use walrelay_testkit::outbox::Workload;
use walrelay_testkit::wait_until;
use walrelay_tests::{CONSUMER, DEADLINE, InboxDatabase};

const ROWS: &str = "SELECT count(*) FROM app_outbox";
const EVERY_SECOND: [&str; 4] = ["--prune-older-than", "1s", "--prune-interval", "1s"];

/// Moves the end of WAL, so that the relay confirms and records its horizon.
async fn move_wal(world: &InboxDatabase) {
    world.execute("SELECT pg_logical_emit_message(true, 'foreign', 'x')").await;
}

async fn wait_rows(world: &InboxDatabase, sql: &str, count: i64) {
    wait_until(DEADLINE, &format!("{sql} to be {count}"), async || {
        move_wal(world).await;
        (world.number(sql).await == count).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_relay_deletes_old_confirmed_rows_and_keeps_those_that_are_parked_or_dead() {
    let Some(world) = InboxDatabase::create().await else { return };
    Workload::of_rows(30).insert(world.client()).await.expect("rows");
    world
        .execute(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             VALUES ('no topic!', 'a-1', 'test.made', 1, '{}')",
        )
        .await;
    let relay = world.start_relay(EVERY_SECOND).await;
    wait_rows(&world, ROWS, 1).await;
    assert_eq!(world.dispatch_count("dead").await, 1);
    let never = "walrelay_last_prune_timestamp_seconds 0.0";
    let is_counted = |metrics: &str| {
        metrics.contains("walrelay_rows_pruned_total 30") && !metrics.contains(never)
    };
    relay.wait_for_metrics(DEADLINE, is_counted).await;
    relay.wait_for_line(DEADLINE, "old rows are deleted from the outbox").await;
}

#[tokio::test]
async fn a_relay_deletes_nothing_while_an_operation_is_unfinished_and_continues_afterwards() {
    let Some(world) = InboxDatabase::create().await else { return };
    Workload::of_rows(9).insert(world.client()).await.expect("rows");
    world
        .execute(
            "INSERT INTO app_outbox_hold (slot, topic, ordering_key, replay_id)
             SELECT 'other', 't', 'k', 'r-1'",
        )
        .await;
    let relay = world.start_relay(EVERY_SECOND).await;
    relay.wait_for_line(DEADLINE, "old rows stay in the outbox").await;
    assert_eq!(world.number(ROWS).await, 9);
    world.execute("DELETE FROM app_outbox_hold").await;
    wait_rows(&world, ROWS, 0).await;
}

#[tokio::test]
async fn a_consumer_deletes_old_finished_rows_and_refuses_an_age_within_which_events_may_return() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.set_up_consumer().await;
    world.insert_events(3, 12).await;
    world.catch_up().await;
    world.consume_all().await;
    let soon = world.consumer(EVERY_SECOND).finish(DEADLINE).await;
    assert_eq!(soon.code, Some(2), "{}", soon.text);
    assert!(soon.text.contains("retention-too-short"), "{}", soon.text);
    world
        .execute(&format!(
            "UPDATE app_inbox SET received_at = now() - interval '50 days';
             UPDATE app_inbox SET status = 'dead' WHERE event_id IN
               (SELECT event_id FROM app_inbox WHERE consumer = '{CONSUMER}' LIMIT 2)"
        ))
        .await;
    let options = ["--prune-older-than", "40d", "--prune-interval", "1s"];
    let consumer = world.start_consumer(options).await;
    wait_rows(&world, "SELECT count(*) FROM app_inbox", 2).await;
    consumer.wait_for_line(DEADLINE, "old rows are deleted from the inbox").await;
    let counted = "walrelay_inbox_rows_pruned_total{consumer=\"ledger\"} 10";
    consumer.wait_for_metrics(DEADLINE, |metrics| metrics.contains(counted)).await;
}
