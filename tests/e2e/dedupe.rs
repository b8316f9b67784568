//! `--dedupe position`: an event behind its key's position is skipped on two conditions. Both
//! positions belong to the same WAL history, and `consumer prune` may have deleted the event's row.

use walrelay_emulator::{Ordering, SubscriptionOptions};
use walrelay_tests::{CONSUMER, DEADLINE, InboxDatabase, topic};

/// The subscription that receives replays.
const AGAIN: &str = "projects/test/subscriptions/again";

/// Keeps the last ten events, which include the newest event of each of the five keys.
const PRUNE: &str = "UPDATE app_inbox_consumer SET pruned_before = now();
     DELETE FROM app_inbox WHERE version <= 40";

/// Publishes all events again, and applies them.
async fn replay(world: &InboxDatabase, options: &[&str]) {
    let replay = ["replay", "start", "--yes", "--from-anchor", "start", "--to-topic", "again"];
    world.succeed(replay.into_iter().chain(options.iter().copied())).await;
    let consume = ["--dedupe", "position", "--subscription", "again", "--until-caught-up"];
    let done = world.consumer(consume).finish(DEADLINE).await;
    assert_eq!(done.code, Some(0), "{}", done.text);
}

async fn with_status(world: &InboxDatabase, status: &str) -> i64 {
    world.number(&format!("SELECT count(*) FROM app_inbox WHERE status = '{status}'")).await
}

#[tokio::test]
async fn a_replay_of_pruned_events_is_skipped_within_one_wal_history() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.set_up_consumer().await;
    world.pubsub.create_topic("again");
    let ordered =
        SubscriptionOptions { ordering: Ordering::PerKey, ..SubscriptionOptions::default() };
    let created = world.pubsub.emulator().create_subscription(AGAIN, &topic("again"), ordered);
    created.expect("a subscription");
    world.succeed(["anchor", "create", "start"]).await;
    world.insert_events(5, 50).await;
    world.succeed(["run", "--until-caught-up", "--system-identifier"]).await;
    world.consume_all().await;
    let of_this_log = "SELECT count(*) FROM app_inbox_key WHERE system_identifier =
          (SELECT system_identifier FROM pg_control_system()) || '/' || (SELECT timeline_id FROM pg_control_checkpoint())";
    assert_eq!((world.applied_count().await, world.number(of_this_log).await), (50, 5));

    world.execute(PRUNE).await;
    replay(&world, &["--system-identifier"]).await;
    assert_eq!((world.applied_count().await, with_status(&world, "discarded").await), (50, 40));
    let why = "SELECT count(*) FROM app_inbox WHERE error_code = 'BEHIND_POSITION'";
    assert_eq!(world.number(why).await, 40);

    // The messages do not carry a system identifier, so their positions cannot be compared.
    world.execute(PRUNE).await;
    replay(&world, &[]).await;
    assert_eq!((world.applied_count().await, with_status(&world, "late").await), (90, 40));

    // Simulates a promotion: the keys' positions belong to another timeline.
    world.execute(PRUNE).await;
    let promote =
        "UPDATE app_inbox_key SET system_identifier = replace(system_identifier, '/1', '/0')";
    world.execute(promote).await;
    replay(&world, &["--system-identifier"]).await;
    assert_eq!((world.applied_count().await, with_status(&world, "discarded").await), (130, 0));
    assert_eq!(world.number(of_this_log).await, 5);

    // Without a prune, an event that the inbox does not list was never applied. The last event of
    // each key is at its key's position, and so not late.
    world.execute("UPDATE app_inbox_consumer SET pruned_before = NULL").await;
    world.execute("DELETE FROM app_inbox WHERE version <= 40").await;
    replay(&world, &["--system-identifier"]).await;
    assert_eq!((world.applied_count().await, with_status(&world, "late").await), (170, 35));
}

/// Sets a key as a message with a forged position and version would have left it ten minutes ago.
const FORGED: &str =
    "UPDATE app_inbox_key SET commit_lsn = 'FFFF/0', version = 1000000, moved_at = now() - interval '10 minutes'
      WHERE ordering_key = 'key-1'";

/// Counts the applied events of the key that were applied once and in order.
const APPLIED: &str = "SELECT count(*) FILTER (WHERE a.is_next) FROM (
   SELECT o.version > coalesce(lag(o.version) OVER (ORDER BY a.n), 0) AS is_next
     FROM effect.applied AS a JOIN app_outbox AS o ON o.id::text = a.event_id WHERE a.key = 'key-1') AS a";

#[tokio::test]
async fn a_key_at_a_forged_position_is_named_and_reset_and_what_it_skipped_is_applied() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.set_up_consumer().await;
    let relay = world.start_relay(["--system-identifier"]).await;
    let consumer = world.start_consumer(["--dedupe", "position"]).await;
    world.insert_events(5, 50).await;
    world.wait_applied(50).await;
    world.execute(FORGED).await;
    // As after a prune whose server had its clock an hour ahead: the next events may be deleted ones.
    world.execute("UPDATE app_inbox_consumer SET pruned_before = now() + interval '1 hour'").await;
    world.insert_events(5, 50).await;
    world.wait_applied(90).await;
    consumer.wait_for_line(DEADLINE, "have an older position than their key").await;
    let line = "walrelay_inbox_implausible_positions{consumer=\"ledger\"} 1";
    let is_counted = |metrics: &str| metrics.lines().any(|found| found == line);
    consumer.wait_for_metrics(DEADLINE, is_counted).await;
    assert_eq!(with_status(&world, "discarded").await, 10);

    let status = world.succeed(["consumer", "status", CONSUMER]).await;
    assert!(status.contains("key-1") && status.contains("consumer reset-key"), "{status}");
    let reset = |key| ["consumer", "reset-key", CONSUMER, "--key", key];
    let unknown = world.run(reset("key-9")).await;
    assert_eq!(unknown.code, Some(2), "{}", unknown.text);
    let unasked = world.run(reset("key-1")).await;
    assert_eq!(unasked.code, Some(2), "{}", unasked.text);
    assert!(unasked.text.contains("FFFF/0") && unasked.text.contains("10 event(s)"), "{unasked:?}");
    let done = world.succeed(reset("key-1").into_iter().chain(["--yes"])).await;
    assert!(
        done.contains("10 skipped event(s)")
            && done.contains("walrelay replay start --source table"),
        "{done}"
    );

    world
        .succeed([
            "replay",
            "start",
            "--yes",
            "--source",
            "table",
            "--in-place",
            "--aggregate-id",
            "key-1",
        ])
        .await;
    world.wait_applied(100).await;
    assert_eq!(world.number(APPLIED).await, 20, "each once and in order");
    // The next event sets the position, and no event is behind it.
    world.insert_events(5, 5).await;
    world.wait_applied(105).await;
    let implausible =
        "SELECT count(*) FROM app_inbox_key WHERE implausible > 0 OR commit_lsn = 'FFFF/0'";
    assert_eq!(world.number(implausible).await, 0);
    // Nothing was deleted, so a forged position skips nothing: younger events are applied.
    world.execute("UPDATE app_inbox_consumer SET pruned_before = NULL").await;
    world.execute(FORGED).await;
    world.insert_events(5, 50).await;
    world.wait_applied(155).await;
    assert_eq!(world.number(APPLIED).await, 31, "each once and in order");
    drop((relay, consumer));
}
