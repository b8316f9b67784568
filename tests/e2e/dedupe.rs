//! `--dedupe position`: what is behind its key is skipped, while positions are known to be of one log.

use walrelay_emulator::{Ordering, SubscriptionOptions};
use walrelay_tests::{DEADLINE, World, topic};

/// Where replays go, and how the consumer reads them.
const AGAIN: &str = "projects/test/subscriptions/again";

/// The newest event of each of five keys is among the last ten.
const PRUNE: &str = "DELETE FROM app_inbox WHERE version <= 40";

/// Publishes everything again, and applies it.
async fn replay(world: &World, options: &[&str]) {
    let replay = ["replay", "--from-anchor", "start", "--to-topic", "again"];
    world.succeed(replay.into_iter().chain(options.iter().copied())).await;
    let consume = ["--dedupe", "position", "--subscription", "again", "--until-caught-up"];
    let done = world.consumer(consume).finish(DEADLINE).await;
    assert_eq!(done.code, Some(0), "{}", done.text);
}

async fn with_status(world: &World, status: &str) -> i64 {
    world.number(&format!("SELECT count(*) FROM app_inbox WHERE status = '{status}'")).await
}

#[tokio::test]
async fn a_replay_of_what_was_pruned_is_skipped_until_positions_are_of_another_log() {
    let Some(world) = World::create().await else { return };
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

    // A message that does not say whose its position is.
    world.execute(PRUNE).await;
    replay(&world, &[]).await;
    assert_eq!((world.applied_count().await, with_status(&world, "late").await), (90, 40));

    // As after a promotion: the keys are at positions of another timeline.
    world.execute(PRUNE).await;
    let promote =
        "UPDATE app_inbox_key SET system_identifier = replace(system_identifier, '/1', '/0')";
    world.execute(promote).await;
    replay(&world, &["--system-identifier"]).await;
    assert_eq!((world.applied_count().await, with_status(&world, "discarded").await), (130, 0));
    assert_eq!(world.number(of_this_log).await, 5);
}
