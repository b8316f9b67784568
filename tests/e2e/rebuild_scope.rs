//! The rows that a rebuild applies: those that the consumer's subscription delivers.

use walrelay_tests::{DEADLINE, InboxDatabase};

use crate::rebuild_into_schema::{INTO, PLAIN, read_model, world};

#[tokio::test]
async fn rows_that_the_subscription_does_not_deliver_are_not_applied_in_the_schema() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.pubsub.create_topic("audio.events");
    world.set_up_consumer_with(["--filter", "attributes.event_type = \"made\""]).await;
    world.execute(PLAIN).await;
    world.insert_events(5, 60).await;
    world.insert_events_of(("audio", "made"), 5, 60).await;
    world.insert_events_of(("video", "drafted"), 5, 60).await;
    world.catch_up().await;
    world.consume_all().await;
    let before = read_model(&world).await;
    world.execute("UPDATE effect.balance SET events = events + 1").await;

    let elsewhere = INTO.into_iter().chain(["--topic-template", "elsewhere.{aggregatetype}"]);
    let refused = world.run(elsewhere).await;
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    let nothing = "no row of the outbox goes to topic projects/test/topics/video.events, which the consumer reads, and passes the filter";
    assert!(refused.text.contains(nothing), "{}", refused.text);

    let told = world.succeed(INTO).await;
    assert!(told.contains("60 row(s)"), "{told}");
    assert_eq!(read_model(&world).await, before);
}

#[tokio::test]
async fn a_filter_on_the_position_of_a_message_is_refused_because_a_row_has_none() {
    let Some(world) = InboxDatabase::create().await else { return };
    let filter = "NOT (attributes.event_type = \"drafted\" AND attributes.tx_index != \"0\")";
    world.set_up_consumer_with(["--filter", filter]).await;
    world.execute(PLAIN).await;
    world.insert_events(5, 10).await;
    world.catch_up().await;
    world.consume_all().await;
    let before = read_model(&world).await;
    let refused = world.run(INTO).await;
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    assert!(refused.text.contains("its filter names tx_index"), "{}", refused.text);
    assert_eq!(read_model(&world).await, before);
}

#[tokio::test]
async fn a_row_to_which_an_edit_gave_the_topic_is_rebuilt_with_the_others() {
    let Some(world) = world().await else { return };
    let relay = world.start_relay([]).await;
    let id = "00000000-0000-4000-8000-0000000000aa";
    world
        .execute(&format!(
            "INSERT INTO app_outbox (id, aggregatetype, aggregateid, event_type, version, payload)
             VALUES ('{id}', 'no topic', 'key-1', 'made', 1, '{{\"n\": 1}}')"
        ))
        .await;
    world.wait_dispatch(DEADLINE, "dead", 1).await;
    world.succeed(["dispatch", "edit", id, "--set-topic", "video.events"]).await;
    world.wait_dispatch(DEADLINE, "published", 1).await;
    drop(relay);
    world.insert_events(5, 10).await;
    world.catch_up().await;
    world.consume_all().await;
    let before = read_model(&world).await;
    let told = world.succeed(INTO).await;
    assert!(told.contains("11 row(s)"), "{told}");
    assert_eq!(read_model(&world).await, before);
}
