//! `consumer rebuild --from-outbox`: rebuilds the same read model from the rows of the outbox.

use walrelay_tests::{CONSUMER, DEADLINE, InboxDatabase};

/// The content of these tests' read model.
const READ_MODEL: &str =
    "SELECT coalesce(string_agg(key || '=' || events, ',' ORDER BY key), '') FROM effect.balance";

const READS: &str = "SELECT subscription FROM app_inbox_consumer WHERE consumer = 'ledger'";

async fn text(world: &InboxDatabase, sql: &str) -> String {
    world.client().query_one(sql, &[]).await.expect("one row").get(0)
}

/// Creates a consumer of a topic without message retention, and a topic for the rows.
async fn world() -> Option<InboxDatabase> {
    let world = InboxDatabase::create().await?;
    world.set_up_consumer().await;
    world.pubsub.create_topic("refill");
    Some(world)
}

fn reset_file(world: &InboxDatabase) -> String {
    let file = std::env::temp_dir().join(format!("{}-refill.sql", world.name()));
    std::fs::write(&file, "TRUNCATE effect.balance, effect.applied").expect("a file");
    file.to_str().expect("a plain name").to_owned()
}

/// Returns the command with the file that empties the read model.
fn from_outbox(reset: &str) -> [&str; 8] {
    ["consumer", "rebuild", CONSUMER, "--from-outbox", "refill", "--reset-sql", reset, "--yes"]
}

/// Checks that every event of the outbox was applied once, in the order of its key's versions.
async fn assert_each_once(world: &InboxDatabase) {
    let wrong = "SELECT count(*) FROM app_outbox AS o
          FULL JOIN (SELECT event_id, count(*) AS times FROM effect.applied GROUP BY 1) AS a
            ON a.event_id = o.id::text
         WHERE a.times IS DISTINCT FROM 1 OR o.id IS NULL";
    assert_eq!(world.number(wrong).await, 0, "applied twice, or not at all");
    let inversions = "SELECT count(*) FROM (
          SELECT o.version, lag(o.version) OVER (PARTITION BY a.key ORDER BY a.n) AS before
            FROM effect.applied AS a JOIN app_outbox AS o ON o.id::text = a.event_id) AS x
        WHERE before > version";
    assert_eq!(world.number(inversions).await, 0);
}

#[tokio::test]
async fn a_rebuild_from_the_outbox_gives_the_same_read_model_while_an_instance_runs() {
    let Some(world) = world().await else { return };
    let consumer = world.start_consumer([]).await;
    world.insert_events(20, 500).await;
    world.catch_up().await;
    world.wait_applied(500).await;
    let before = text(&world, READ_MODEL).await;
    // Published events that are not applied yet arrive with the republished rows, and a second time
    // after them.
    world.pubsub.fault(&format!("on=delivery,subscription={CONSUMER},hold-before"));
    world.insert_events(20, 50).await;
    world.catch_up().await;

    let reset = reset_file(&world);
    let told = world.succeed(from_outbox(&reset)).await;
    std::fs::remove_file(&reset).expect("it is there");
    assert!(told.contains("begun: generation 2") && told.contains("550 row(s)"), "{told}");
    assert_ne!(text(&world, READ_MODEL).await, before);
    assert_eq!(text(&world, READS).await, format!("projects/test/subscriptions/{CONSUMER}"));
    assert_eq!(world.applied_count().await, 550);
    assert_each_once(&world).await;

    let rebuilt = text(&world, READ_MODEL).await;
    world.pubsub.heal();
    world.insert_events(20, 100).await;
    world.catch_up().await;
    world.wait_applied(650).await;
    drop(consumer);
    world.consume_all().await;
    assert_each_once(&world).await;
    assert_ne!(text(&world, READ_MODEL).await, rebuilt);
}

#[tokio::test]
async fn events_of_a_backlog_whose_rows_are_pruned_from_the_outbox_are_late_after_a_refill() {
    let Some(world) = world().await else { return };
    // The consumer has yet to receive the first events, and the outbox forgets their rows.
    world.pubsub.fault(&format!("on=delivery,subscription={CONSUMER},hold-before"));
    world.insert_events(4, 40).await;
    world.settle().await;
    world.execute("ALTER TABLE app_outbox DISABLE TRIGGER USER").await;
    world.execute("DELETE FROM app_outbox WHERE version <= 20").await;
    world.execute("ALTER TABLE app_outbox ENABLE TRIGGER USER").await;
    let consumer = world.start_consumer([]).await;
    let reset = reset_file(&world);
    world.succeed(from_outbox(&reset)).await;
    std::fs::remove_file(&reset).expect("it is there");
    world.pubsub.heal();
    world.insert_events(4, 8).await;
    world.catch_up().await;
    world.wait_applied(48).await;
    drop(consumer);
    let states = "SELECT count(*) FROM app_inbox WHERE generation = 2 AND status = ";
    assert_eq!(world.number(&format!("{states}'late'")).await, 20);
    assert_eq!(world.number(&format!("{states}'done'")).await, 28);
}

#[tokio::test]
async fn rows_that_can_never_be_published_are_left_out_and_not_waited_for() {
    let Some(world) = world().await else { return };
    let consumer = world.start_consumer([]).await;
    world.insert_events(5, 100).await;
    world
        .execute(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             VALUES ('video', repeat('k', 1100), 'made', 1, '{}')",
        )
        .await;
    world.catch_up().await;
    world.wait_applied(100).await;
    let before = text(&world, READ_MODEL).await;
    let reset = reset_file(&world);
    let rebuild = from_outbox(&reset);
    // The refusal comes before anything is emptied.
    let refused = world.run(rebuild).await;
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    for part in ["1 row(s) of the outbox cannot be applied again", "nothing has changed", "dead in"]
    {
        assert!(refused.text.contains(part), "{part}: {}", refused.text);
    }
    assert_eq!(text(&world, READ_MODEL).await, before);
    assert_eq!(text(&world, READS).await, format!("projects/test/subscriptions/{CONSUMER}"));
    assert_eq!(world.number("SELECT generation::bigint FROM app_inbox_consumer").await, 1);
    let open = "SELECT count(*) FROM app_outbox_replay";
    assert_eq!(world.number(open).await, 0);
    let told = world.succeed([&rebuild[..], &["--skip-dead"]].concat()).await;
    std::fs::remove_file(&reset).expect("it is there");
    assert!(told.contains("every row is in the inbox"), "{told}");
    assert!(told.contains("published: 100 row(s) to"), "{told}");
    assert_eq!(text(&world, READ_MODEL).await, before);
    drop(consumer);
}

#[tokio::test]
async fn a_row_that_was_dead_and_is_cured_is_rebuilt_as_it_was_published() {
    let Some(world) = world().await else { return };
    let consumer = world.start_consumer([]).await;
    world.insert_events(5, 20).await;
    world
        .execute(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             SELECT 'video', repeat('k', 1100) || n, 'made', 1, '{}' FROM generate_series(1, 2) AS n",
        )
        .await;
    world.catch_up().await;
    let dead = "SELECT string_agg(event_id, ' ' ORDER BY event_id) FROM app_outbox_dispatch WHERE status = 'dead'";
    let dead = text(&world, dead).await;
    let (cured, other) = dead.split_once(' ').expect("two rows are dead");
    world.succeed(["dispatch", "edit", cured, "--set-key", "A-17"]).await;
    world.catch_up().await;
    world.wait_applied(21).await;
    let before = text(&world, READ_MODEL).await;
    assert!(before.contains("A-17=1"), "{before}");

    let reset = reset_file(&world);
    let refused = world.run(from_outbox(&reset)).await;
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    assert!(refused.text.contains(other) && !refused.text.contains(cured), "{}", refused.text);
    assert_eq!(text(&world, READ_MODEL).await, before);

    world.succeed(["dispatch", "discard", "--yes", other, "--reason", "never sent"]).await;
    let told = world.succeed(from_outbox(&reset)).await;
    std::fs::remove_file(&reset).expect("it is there");
    assert!(told.contains("published: 21 row(s) to"), "{told}");
    assert_eq!(text(&world, READ_MODEL).await, before);
    drop(consumer);
}

#[tokio::test]
async fn a_rebuild_in_place_says_what_is_at_risk_and_asks() {
    let Some(world) = world().await else { return };
    world.insert_events(5, 20).await;
    let reset = reset_file(&world);
    let unasked = &from_outbox(&reset)[..7];
    let refused = world.run(unasked.iter().copied()).await;
    std::fs::remove_file(&reset).expect("it is there");
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    for part in ["empties the tables first", "all 20 row(s)", "--yes", "--into SCHEMA"] {
        assert!(refused.text.contains(part), "{part}: {}", refused.text);
    }
    assert_eq!(world.number("SELECT generation::bigint FROM app_inbox_consumer").await, 1);
}

#[tokio::test]
async fn a_rebuild_from_the_outbox_that_is_killed_is_done_by_running_it_again() {
    for place in ["refill-begun", "refill-published"] {
        let Some(world) = world().await else { return };
        let consumer = world.start_consumer([]).await;
        world.insert_events(5, 100).await;
        world.catch_up().await;
        world.wait_applied(100).await;
        let before = text(&world, READ_MODEL).await;
        let reset = reset_file(&world);
        let rebuild = from_outbox(&reset);
        let killed = world.command(rebuild).env("WALRELAY_FAILPOINT", place).finish(DEADLINE).await;
        assert_eq!(killed.code, None, "{place}: {}", killed.text);
        // `consumer status`, `/readyz`, `check` and `status` report the unfinished rebuild.
        let status = ["consumer", "status", CONSUMER];
        let unfinished = world.succeed(status).await;
        assert!(unfinished.contains("is not finished"), "{place}: {unfinished}");
        consumer.wait_for_http(DEADLINE, "/readyz", 503).await;
        for command in ["check", "status"] {
            let told = world.run([command]).await.text;
            assert!(told.contains("a part of generation 2"), "{place}: {command}: {told}");
        }

        world.succeed(rebuild).await;
        let finished = world.succeed(status).await;
        assert!(!finished.contains("is not finished"), "{place}: {finished}");
        consumer.wait_for_http(DEADLINE, "/readyz", 200).await;
        std::fs::remove_file(&reset).expect("it is there");
        assert_eq!(text(&world, READ_MODEL).await, before, "{place}");
        assert_eq!(text(&world, READS).await, format!("projects/test/subscriptions/{CONSUMER}"));
        drop(consumer);
        world.consume_all().await;
        assert_each_once(&world).await;
    }
}

#[tokio::test]
async fn a_rebuild_from_the_outbox_that_could_not_be_whole_is_refused() {
    let Some(world) = world().await else { return };
    let rebuild = ["consumer", "rebuild", CONSUMER, "--from-outbox"];
    let refuse = async |topic: &str, code: i32, says: &str| {
        let refused = world.run(rebuild.into_iter().chain([topic])).await;
        assert_eq!(refused.code, Some(code), "{}", refused.text);
        assert!(refused.text.contains(says), "{}", refused.text);
    };
    // The refusal comes before anything is emptied.
    refuse("refill", 2, "--outbox-url").await;
    world.insert_events(1, 1).await;
    refuse("nowhere", 4, "gcloud pubsub topics create").await;
    refuse("nowhere", 4, "topic-not-found").await;
    refuse("video.events", 2, "does not lead to").await;
    world.succeed(["consumer", "pause", CONSUMER]).await;
    refuse("refill", 2, "is paused").await;
    world.succeed(["consumer", "resume", CONSUMER]).await;
    let filtered = ["--create", "--topic", "video.events", "--filter", "attributes:event_type"];
    let init = ["consumer", "init", "filtered", "--subscription", "filtered"];
    world.succeed(init.into_iter().chain(filtered)).await;
    let with_filter = ["consumer", "rebuild", "filtered", "--from-outbox", "refill"];
    let refused = world.run(with_filter).await;
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    assert!(refused.text.contains("has a filter"), "{}", refused.text);
    let generation = "SELECT max(generation)::bigint FROM app_inbox_consumer";
    assert_eq!(world.number(generation).await, 1);
}

#[tokio::test]
async fn rows_of_topics_that_the_consumer_does_not_read_are_not_published_for_it() {
    let Some(world) = world().await else { return };
    world.pubsub.create_topic("audio.events");
    let consumer = world.start_consumer([]).await;
    world.insert_events(5, 60).await;
    world.insert_events_of(("audio", "made"), 5, 60).await;
    world.catch_up().await;
    world.wait_applied(60).await;
    let before = text(&world, READ_MODEL).await;

    let reset = reset_file(&world);
    let told = world.succeed(from_outbox(&reset)).await;
    std::fs::remove_file(&reset).expect("it is there");
    assert!(told.contains("published: 60 row(s)"), "{told}");
    assert_eq!(text(&world, READ_MODEL).await, before);
    drop(consumer);
}

#[tokio::test]
async fn a_consumer_with_a_filter_is_refused_before_anything_is_emptied() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.set_up_consumer_with(["--filter", "attributes.event_type = \"made\""]).await;
    world.pubsub.create_topic("refill");
    world.insert_events(5, 10).await;
    world.catch_up().await;
    world.consume_all().await;
    let before = text(&world, READ_MODEL).await;

    let reset = reset_file(&world);
    let refused = world.run(from_outbox(&reset)).await;
    std::fs::remove_file(&reset).expect("it is there");
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    assert!(refused.text.contains("rebuild-subscription-filtered"), "{}", refused.text);
    assert_eq!(text(&world, READ_MODEL).await, before);
}
