//! Outbox tables with other columns, and other message formats.

use std::collections::BTreeMap;

use walrelay_tests::{DEADLINE, InboxDatabase, topic};

/// Returns attributes, key and data of each message of a topic.
fn messages(world: &InboxDatabase, name: &str) -> Vec<(BTreeMap<String, String>, String, Vec<u8>)> {
    let published = world.pubsub.emulator().published(&topic(name));
    let parts = published.iter().map(|message| {
        let attributes = message.attributes().into_iter();
        let attributes =
            attributes.map(|(attribute, value)| (attribute.to_owned(), value.to_owned()));
        (attributes.collect(), message.key().to_owned(), message.data().to_vec())
    });
    parts.collect()
}

/// Returns a test environment whose outbox tables exist before `init`.
async fn world_with(tables: &str, init: &[&str]) -> Option<InboxDatabase> {
    let world = InboxDatabase::create_empty().await?;
    world.execute(tables).await;
    world.succeed(["init"].into_iter().chain(init.iter().copied())).await;
    Some(world)
}

#[tokio::test]
async fn a_debezium_style_outbox_works_without_touching_the_table() {
    let table =
        "CREATE TABLE outboxevent (id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL,
        aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload jsonb,
        timestamp timestamptz)";
    let options = ["--preset", "debezium", "--outbox-table", "public.outboxevent"];
    let Some(world) = world_with(table, &options).await else { return };
    let _relay = world.start_relay(options).await;
    world
        .execute(
            "INSERT INTO outboxevent VALUES ('00000000-0000-4000-8000-000000000001', 'video', 'v-1',
             'Uploaded', '{\"n\": 1}', '2024-01-01 00:00:00+00')",
        )
        .await;
    world.pubsub.wait_stored(DEADLINE, 1).await;

    let (attributes, key, data) = messages(&world, "video.events").remove(0);
    assert_eq!((key.as_str(), data.as_slice()), ("v-1", b"{\"n\": 1}".as_slice()));
    assert_eq!(attributes["event_type"], "Uploaded");
    assert_eq!(attributes["occurred_at"], "2024-01-01T00:00:00.000000Z");
    assert!(!attributes.contains_key("version"), "{attributes:?}");
}

#[tokio::test]
async fn bytes_and_other_column_names_and_types_are_published_verbatim() {
    let table = "CREATE TYPE kind AS ENUM ('made', 'gone');
        CREATE TABLE events (event_no bigint PRIMARY KEY, aggregate_type text NOT NULL,
        aggregate_id numeric NOT NULL, what kind NOT NULL, body bytea NOT NULL)";
    let options = [
        "--outbox-table",
        "public.events",
        "--column-id",
        "event_no",
        "--column-aggregate-type",
        "aggregate_type",
        "--column-aggregate-id",
        "aggregate_id",
        "--column-event-type",
        "what",
        "--column-payload",
        "body",
        "--column-version",
        "",
        "--column-schema-version",
        "",
        "--column-headers",
        "",
        "--column-occurred-at",
        "",
        "--topic-template",
        "{aggregate_type}.events",
        "--ordering-key",
        "{aggregate_id}",
    ];
    let Some(world) = world_with(table, &options).await else { return };
    let _relay = world.start_relay(options).await;
    world
        .execute(
            r"INSERT INTO events VALUES (7, 'video', 12.50, 'made', '\x00ff0a8022'), (8, 'video', 12.50, 'gone', '\x')",
        )
        .await;
    world.pubsub.wait_stored(DEADLINE, 2).await;

    let messages = messages(&world, "video.events");
    assert_eq!(messages[0].2, [0x00, 0xff, 0x0a, 0x80, 0x22]);
    assert_eq!(messages[1].2, b"");
    for (message, (id, kind)) in messages.iter().zip([("7", "made"), ("8", "gone")]) {
        assert_eq!(message.1, "12.50");
        assert_eq!(message.0["event_id"], id);
        assert_eq!(message.0["event_type"], kind);
        assert_eq!(message.0["aggregate_id"], "12.50");
    }
}

#[tokio::test]
async fn several_outbox_tables_feed_one_relay() {
    let shape = "(id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype text NOT NULL,
        aggregateid text NOT NULL, event_type text NOT NULL, version bigint NOT NULL,
        schema_version int NOT NULL DEFAULT 1, payload jsonb NOT NULL, headers jsonb,
        occurred_at timestamptz NOT NULL DEFAULT now())";
    let tables = format!(
        "CREATE SCHEMA video; CREATE SCHEMA billing;
         CREATE TABLE video.app_outbox {shape}; CREATE TABLE billing.app_outbox {shape}"
    );
    let options = ["--outbox-table", "video.app_outbox,billing.app_outbox"];
    let Some(world) = world_with(&tables, &options).await else { return };
    world.pubsub.create_topic("invoice.events");
    let _relay = world.start_relay(options).await;
    world
        .execute(
            "BEGIN;
             INSERT INTO video.app_outbox (aggregatetype, aggregateid, event_type, version, payload)
               VALUES ('video', 'v-1', 'a', 1, '1');
             INSERT INTO billing.app_outbox (aggregatetype, aggregateid, event_type, version, payload)
               VALUES ('invoice', 'i-1', 'b', 1, '2');
             INSERT INTO video.app_outbox (aggregatetype, aggregateid, event_type, version, payload)
               VALUES ('video', 'v-1', 'c', 2, '3');
             COMMIT",
        )
        .await;
    world.pubsub.wait_stored(DEADLINE, 3).await;

    let (videos, invoices) = (messages(&world, "video.events"), messages(&world, "invoice.events"));
    let types: Vec<&str> = videos.iter().map(|message| message.0["event_type"].as_str()).collect();
    assert_eq!(types, ["a", "c"]);
    assert_eq!(invoices[0].0["tx_index"], "1");
    assert_eq!(invoices[0].0["commit_lsn"], videos[0].0["commit_lsn"]);
    // Ids may be equal in two tables, so the attribute `source` distinguishes them.
    assert_eq!(videos[0].0["source"], "video.app_outbox");
    assert_eq!(invoices[0].0["source"], "billing.app_outbox");
}

#[tokio::test]
async fn topic_and_ordering_key_follow_their_templates() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.pubsub.create_topic("app-video-Uploaded");
    let _relay = world
        .start_relay([
            "--topic-template",
            "app-{aggregatetype}-{event_type}",
            "--ordering-key",
            "{aggregatetype}/{aggregateid}",
        ])
        .await;
    world
        .execute(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             VALUES ('video', 'v-1', 'Uploaded', 1, '{}')",
        )
        .await;
    world.pubsub.wait_stored(DEADLINE, 1).await;
    assert_eq!(messages(&world, "app-video-Uploaded")[0].1, "video/v-1");
}

#[tokio::test]
async fn cloudevents_attributes_follow_the_binding() {
    let Some(world) = InboxDatabase::create().await else { return };
    let _relay = world
        .start_relay([
            "--attributes",
            "cloudevents",
            "--cloudevents-source",
            "//app.example/outbox",
        ])
        .await;
    world
        .execute(
            "INSERT INTO app_outbox (id, aggregatetype, aggregateid, event_type, version, payload, occurred_at)
             VALUES ('00000000-0000-4000-8000-000000000001', 'video', 'v-1', 'Uploaded', 1, '{}',
                     '2024-01-01 00:00:00+00')",
        )
        .await;
    world.pubsub.wait_stored(DEADLINE, 1).await;
    let (attributes, ..) = messages(&world, "video.events").remove(0);
    for (name, value) in [
        ("ce-id", "00000000-0000-4000-8000-000000000001"),
        ("ce-type", "Uploaded"),
        ("ce-source", "//app.example/outbox"),
        ("ce-subject", "v-1"),
        ("ce-time", "2024-01-01T00:00:00.000000Z"),
        ("ce-specversion", "1.0"),
        ("content-type", "application/json"),
        ("tx_index", "0"),
        // The binding has no names for these attributes, and consumers order and read events by
        // them.
        ("aggregate_type", "video"),
        ("version", "1"),
        ("schema_version", "1"),
    ] {
        assert_eq!(attributes.get(name).map(String::as_str), Some(value), "{name}: {attributes:?}");
    }
    assert!(attributes.contains_key("commit_lsn"), "{attributes:?}");
}

#[tokio::test]
async fn without_an_ordering_key_everything_arrives_all_the_same() {
    let Some(world) = InboxDatabase::create().await else { return };
    let _relay = world.start_relay(["--ordering-key", ""]).await;
    world
        .execute(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             SELECT 'video', 'v-1', 'test.inserted', n, '{}' FROM generate_series(1, 3000) AS n",
        )
        .await;
    world.pubsub.wait_stored(DEADLINE, 3_000).await;
    world.wait_confirmed(DEADLINE).await;
    let committed: Vec<_> = world
        .committed()
        .await
        .into_iter()
        .map(|row| walrelay_testkit::checker::Committed { key: String::new(), ..row })
        .collect();
    let verdict = walrelay_testkit::checker::check(&committed, &world.pubsub.stored());
    verdict.assert_exactly_once();
}
