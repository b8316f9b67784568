//! A publication with a row filter. What it leaves out is published by no command.

use serde_json::Value;
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase, topic};

const TABLE: &str = "CREATE TABLE app_outbox (
    id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype text NOT NULL, aggregateid text NOT NULL,
    event_type text NOT NULL, version bigint GENERATED ALWAYS AS IDENTITY, schema_version int NOT NULL DEFAULT 1,
    payload jsonb NOT NULL, headers jsonb, occurred_at timestamptz NOT NULL DEFAULT now())";

/// Adds rows of the key `v-1`: as many that are published, and as many that are left out.
async fn insert(world: &InboxDatabase, published: u32, internal: u32) {
    for (kind, rows) in [("Made", published), ("Internal", internal)] {
        world
            .execute(&format!(
                "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, payload)
                 SELECT 'video', 'v-1', '{kind}', '{{}}' FROM generate_series(1, {rows})"
            ))
            .await;
    }
}

async fn world() -> Option<InboxDatabase> {
    let world = InboxDatabase::create_empty().await?;
    world.execute(TABLE).await;
    world
        .execute(&format!(
            "CREATE PUBLICATION {} FOR TABLE ONLY app_outbox WHERE (event_type <> 'Internal')
               WITH (publish = 'insert', publish_via_partition_root = true)",
            world.name()
        ))
        .await;
    Some(world)
}

fn assert_published(world: &InboxDatabase, name: &str, count: usize) {
    let messages = world.pubsub.emulator().published(&topic(name));
    let types: Vec<_> = messages.iter().filter_map(|it| it.attribute("event_type")).collect();
    assert_eq!(types, vec!["Made"; count], "{name}");
}

#[tokio::test]
async fn rows_that_the_filter_leaves_out_are_no_rows_to_decide_about() {
    let Some(world) = world().await else { return };
    insert(&world, 0, 3).await;
    world.succeed(["init"]).await;
    insert(&world, 2, 2).await;
    world.catch_up().await;
    assert_published(&world, "video.events", 2);
}

#[tokio::test]
async fn stream_backfill_replays_and_audit_leave_the_same_rows_out() {
    let Some(world) = world().await else { return };
    insert(&world, 3, 2).await;
    let refused = world.run(["init"]).await;
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    assert!(refused.text.contains("3 row(s) of public.app_outbox"), "{}", refused.text);
    let told = world.succeed(["init", "--backfill"]).await;
    assert!(told.contains("3 row(s)"), "{told}");
    let checked = world.succeed(["check", "-v"]).await;
    assert!(checked.contains("publishes only rows of public.app_outbox for which"), "{checked}");
    world.set_up_consumer().await;
    world.succeed(["run", "--until-caught-up"]).await;
    assert_published(&world, "video.events", 3);

    world.succeed(["anchor", "create", "a"]).await;
    let mut relay = world.start_relay([]).await;
    insert(&world, 4, 5).await;
    world.pubsub.wait_stored(DEADLINE, 7).await;
    world.consume_all().await;
    world.wait_audited(7).await;

    for (name, options, count) in [
        ("of-wal", &["--from-anchor", "a", "--to-topic", "of-wal"][..], 4),
        ("of-table", &["--source", "table", "--to-topic", "of-table"], 7),
    ] {
        world.pubsub.create_topic(name);
        let replay = ["replay", "start", "--yes"];
        world.succeed(replay.into_iter().chain(options.iter().copied())).await;
        assert_published(&world, name, count);
    }
    world.succeed(["replay", "start", "--yes", "--source", "table", "--in-place"]).await;
    assert_published(&world, "video.events", 14);

    // Rows that are left out keep no relay waiting, and age as all others do.
    let rows_read = |metrics: &str| {
        let value = metrics.lines().find_map(|line| line.strip_prefix("walrelay_rows_read_total "));
        value.map(str::to_owned)
    };
    let before = rows_read(&relay.wait_for_http(DEADLINE, "/metrics", 200).await);
    insert(&world, 0, 5).await;
    world.wait_confirmed(DEADLINE).await;
    wait_until(DEADLINE, "no lag in the status", async || {
        let status = world.succeed(["status", "--output", "json"]).await;
        let status: Value = serde_json::from_str(&status).unwrap_or_default();
        // The relay's own writes are WAL also.
        status["lag_bytes"].as_u64().is_some_and(|bytes| bytes < 65_536).then_some(())
    })
    .await;
    assert_eq!(rows_read(&relay.wait_for_http(DEADLINE, "/metrics", 200).await), before);
    assert!(before.is_some(), "the metric exists");
    assert_eq!(relay.terminate(DEADLINE).await, Some(0));
    world.succeed(["run", "--until-caught-up"]).await;
    world.succeed(["anchor", "drop", "a", "--yes"]).await;
    wait_until(DEADLINE, "every row to be pruned", async || {
        world.succeed(["prune", "--yes", "--older-than", "1s"]).await;
        world.execute("SELECT pg_logical_emit_message(true, 'foreign', 'x')").await;
        world.succeed(["run", "--until-caught-up"]).await;
        (world.number("SELECT count(*) FROM app_outbox").await == 0).then_some(())
    })
    .await;
    assert_published(&world, "video.events", 14);
}

#[tokio::test]
async fn a_recovery_restores_the_filter_of_a_publication_that_was_dropped() {
    let Some(world) = world().await else { return };
    world.succeed(["init"]).await;
    insert(&world, 2, 2).await;
    world.settle().await;
    for (statement, published) in [
        (format!("SELECT pg_drop_replication_slot('{}')", world.name()), 5),
        (format!("DROP PUBLICATION {}", world.name()), 9),
        (format!("ALTER PUBLICATION {} DROP TABLE app_outbox", world.name()), 13),
    ] {
        insert(&world, 3, 4).await;
        world.execute(&statement).await;
        let lost = world.run(["run", "--until-caught-up"]).await;
        assert_ne!(lost.code, Some(0), "{}", lost.text);
        let told = world.succeed(["slot", "recover", "--yes"]).await;
        assert!(told.contains("3 row(s)"), "{statement}: {told}");
        world.catch_up().await;
        assert_published(&world, "video.events", published);
        insert(&world, 1, 2).await;
        world.settle().await;
    }
    assert_published(&world, "video.events", 14);
}

#[tokio::test]
async fn a_filter_that_changes_while_nothing_is_unsettled_needs_no_recovery() {
    let Some(world) = InboxDatabase::create().await else { return };
    insert_versions(&world, 1).await;
    world.settle().await;
    assert_eq!(world.pubsub.stored_count(), 2);
    let filter = "SET TABLE ONLY app_outbox WHERE (event_type <> 'Internal')";
    world.execute(&format!("ALTER PUBLICATION {} {filter}", world.name())).await;
    let mut relay = world.start_relay([]).await;
    insert_versions(&world, 2).await;
    world.pubsub.wait_stored(DEADLINE, 3).await;
    world.wait_confirmed(DEADLINE).await;
    assert_eq!(world.pubsub.stored_count(), 3);

    let refused = world.run(["reshard", "--shards", "2", "--yes"]).await;
    assert_eq!(refused.code, Some(3), "{}", refused.text);
    let expected = "has the row filter (event_type <> 'Internal'::text) on public.app_outbox";
    assert!(refused.text.contains(expected), "{}", refused.text);
    assert_eq!(relay.terminate(DEADLINE).await, Some(0));
}

/// Adds a row that is published, and one that is left out.
async fn insert_versions(world: &InboxDatabase, first: u32) {
    world
        .execute(&format!(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             VALUES ('video', 'v-1', 'Made', {first}, '{{}}'), ('video', 'v-1', 'Internal', {first} + 1, '{{}}')"
        ))
        .await;
}
