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

#[tokio::test]
async fn an_outbox_without_rows_is_refused_with_the_option_that_names_another() {
    let Some(world) = world().await else { return };
    let refused = world.run(INTO).await;
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    for part in ["outbox-empty", "--outbox-url"] {
        assert!(refused.text.contains(part), "{part}: {}", refused.text);
    }
}

#[tokio::test]
async fn a_dead_row_stops_the_rebuild_and_a_cured_one_is_rebuilt_as_it_was_published() {
    let Some(world) = world().await else { return };
    world.insert_events(5, 20).await;
    world
        .execute(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             SELECT 'video', repeat('k', 1100) || n, 'made', 1, '{}' FROM generate_series(1, 2) AS n",
        )
        .await;
    world.catch_up().await;
    let dead = "SELECT string_agg(event_id, ' ' ORDER BY event_id) FROM app_outbox_dispatch WHERE status = 'dead'";
    let dead: String = world.client().query_one(dead, &[]).await.expect("dead rows").get(0);
    let (cured, other) = dead.split_once(' ').expect("two rows are dead");
    world.succeed(["dispatch", "edit", cured, "--set-key", "A-17"]).await;
    world.catch_up().await;
    world.consume_all().await;
    let before = read_model(&world).await;
    assert!(before.contains("A-17=1"), "{before}");
    world.execute("UPDATE effect.balance SET events = events + 1").await;
    let wrong = read_model(&world).await;

    let refused = world.run(INTO).await;
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    for part in ["1 row(s) of the outbox cannot be applied again", "nothing has changed", other] {
        assert!(refused.text.contains(part), "{part}: {}", refused.text);
    }
    assert!(!refused.text.contains(cured), "{}", refused.text);
    assert_eq!(read_model(&world).await, wrong);
    assert_eq!(world.number("SELECT count(rebuilding) FROM app_inbox_consumer").await, 0);

    let told = world.succeed(INTO.into_iter().chain(["--skip-dead"])).await;
    assert!(told.contains("21 row(s)"), "{told}");
    assert_eq!(read_model(&world).await, before);
    // A discarded row is left out without the option.
    world.succeed(["dispatch", "discard", "--yes", other, "--reason", "never sent"]).await;
    let again = world.succeed(INTO).await;
    assert!(again.contains("21 row(s)"), "{again}");
    assert_eq!(read_model(&world).await, before);
}
