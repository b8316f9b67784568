//! `consumer rebuild`: the same read model again, from what the topic keeps.

use std::time::Duration;

use walrelay_emulator::SubscriptionOptions;
use walrelay_tests::{CONSUMER, World, topic};

/// What the read model of these tests holds, whoever has written it.
const READ_MODEL: &str =
    "SELECT coalesce(string_agg(key || '=' || events, ',' ORDER BY key), '') FROM effect.balance";

async fn read_model(world: &World) -> String {
    world.client().query_one(READ_MODEL, &[]).await.expect("the read model").get(0)
}

/// A topic that keeps messages, and a consumer of it.
async fn world() -> Option<World> {
    let world = World::create().await?;
    keep_messages(&world, Duration::from_hours(1));
    world.set_up_consumer().await;
    Some(world)
}

fn keep_messages(world: &World, period: Duration) {
    world.pubsub.emulator().retain(&topic("video.events"), period).expect("it keeps them");
}

fn reset_file(world: &World, sql: &str) -> String {
    let file = std::env::temp_dir().join(format!("{}-reset.sql", world.name()));
    std::fs::write(&file, sql).expect("a file");
    file.to_str().expect("a plain name").to_owned()
}

#[tokio::test]
async fn a_rebuild_gives_the_same_read_model_while_an_instance_runs_and_events_come() {
    let Some(world) = world().await else { return };
    let consumer = world.start_consumer([]).await;
    world.insert_events(20, 500).await;
    world.catch_up().await;
    world.wait_applied(500).await;
    let before = read_model(&world).await;

    let reset = reset_file(&world, "TRUNCATE effect.balance; TRUNCATE effect.applied;");
    let told = world
        .succeed(["consumer", "rebuild", CONSUMER, "--seek-to", "1h", "--reset-sql", &reset])
        .await;
    assert!(told.contains("begun: generation 2") && told.contains("-g2"), "{told}");
    world.wait_applied(500).await;
    assert_eq!(read_model(&world).await, before);
    // What comes later comes from the new subscription.
    world.insert_events(20, 100).await;
    world.catch_up().await;
    world.wait_applied(600).await;
    drop(consumer);
    world.assert_applied_exactly_once().await;

    // Once more, with nobody running and a consumer that an operator has paused.
    world.succeed(["consumer", "pause", CONSUMER]).await;
    world
        .succeed(["consumer", "rebuild", CONSUMER, "--seek-to", "1h", "--reset-sql", &reset])
        .await;
    std::fs::remove_file(&reset).expect("it is there");
    assert_eq!(world.applied_count().await, 0);
    world.succeed(["consumer", "resume", CONSUMER]).await;
    world.consume_all().await;
    world.assert_applied_exactly_once().await;
}

#[tokio::test]
async fn a_rebuild_that_cannot_be_whole_changes_nothing() {
    let Some(world) = World::create().await else { return };
    world.set_up_consumer().await;
    world.insert_events(5, 50).await;
    world.catch_up().await;
    world.consume_all().await;

    let rebuild = ["consumer", "rebuild", CONSUMER, "--seek-to"];
    let forgetful = world.run(rebuild.into_iter().chain(["10m"])).await;
    assert_eq!(forgetful.code, Some(2), "{}", forgetful.text);
    assert!(
        forgetful.text.contains("keeps no messages for new subscriptions"),
        "{}",
        forgetful.text
    );

    keep_messages(&world, Duration::from_mins(10));
    let beyond = world.run(rebuild.into_iter().chain(["2h"])).await;
    assert_eq!(beyond.code, Some(2), "{}", beyond.text);
    assert!(beyond.text.contains("keeps messages for 10m"), "{}", beyond.text);

    let future = world.run(rebuild.into_iter().chain(["2099-01-01T00:00:00Z"])).await;
    assert_eq!(future.code, Some(2), "{}", future.text);
    assert!(future.text.contains("is in the future"), "{}", future.text);
    world.pubsub.create_topic("other.events");
    let other = "projects/test/subscriptions/other";
    world
        .pubsub
        .emulator()
        .create_subscription(other, &topic("other.events"), SubscriptionOptions::default())
        .expect("a subscription");
    let elsewhere = world.run(rebuild.into_iter().chain(["5m", "--subscription", other])).await;
    assert_eq!(elsewhere.code, Some(2), "{}", elsewhere.text);
    assert!(elsewhere.text.contains("its topic, filter or ordering"), "{}", elsewhere.text);

    let wrong = reset_file(&world, "TRUNCATE effect.balance; TRUNCATE no_such_table");
    let failed = world.run(rebuild.into_iter().chain(["5m", "--reset-sql", &wrong])).await;
    assert_ne!(failed.code, Some(0), "{}", failed.text);
    let commits = reset_file(&world, "SELECT 1; COMMIT; BEGIN");
    let ended = world.run(rebuild.into_iter().chain(["5m", "--reset-sql", &commits])).await;
    assert!(ended.text.contains("leave COMMIT and ROLLBACK out"), "{}", ended.text);
    std::fs::remove_file(&commits).expect("it is there");
    assert_eq!(world.number("SELECT sum(events)::bigint FROM effect.balance").await, 50);
    let status = world.succeed(["consumer", "status", CONSUMER, "--format", "json"]).await;
    assert!(status.contains("\"paused\": false"), "{status}");
    assert!(status.contains("\"generation\": 1"), "{status}");
}
