//! The first start on a table with existing rows. The relay publishes these rows first, in order,
//! and then streams.

use std::time::Duration;

use pgoutput_parser::Lsn;
use walrelay_testkit::outbox::Workload;
use walrelay_testkit::postgres::TestClient;
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase, Producer, topic};

/// Creates a database with the tables and without a slot.
async fn without_slot() -> Option<InboxDatabase> {
    let world = InboxDatabase::create().await?;
    world.succeed(["slot", "drop", "--yes"]).await;
    Some(world)
}

async fn assert_complete(world: &InboxDatabase) {
    let committed = world.committed().await;
    let verdict = world.check(&committed);
    assert!(verdict.lost.is_empty() && verdict.reordered.is_empty(), "{verdict}");
    let unfinished = "SELECT count(*) FROM app_outbox_relay WHERE operation IS NOT NULL";
    assert_eq!(world.number(unfinished).await, 0);
}

#[tokio::test]
async fn rows_that_were_there_before_the_slot_are_published_once_and_before_what_it_streams() {
    let Some(world) = without_slot().await else { return };
    Workload::of_rows(300).insert(world.client()).await.expect("rows");
    // Frozen rows have no transaction id to compare, so they count as old and are included.
    world.execute("VACUUM FREEZE app_outbox").await;
    let more = Workload { first_number: 300, ..Workload::of_rows(60) };
    more.insert(world.client()).await.expect("rows");

    let told = world.succeed(["init", "--backfill"]).await;
    assert!(told.contains("360 row(s) of public.app_outbox"), "{told}");
    let last = Workload { first_number: 360, ..Workload::of_rows(30) };
    last.insert(world.client()).await.expect("rows");
    // A second run changes nothing. Until the backfill is done, `prune` is refused.
    world.succeed(["init", "--backfill"]).await;
    assert_eq!(world.run(["prune", "--yes", "--older-than", "1s"]).await.code, Some(3));
    let status = world.run(["status"]).await.text;
    assert!(status.contains("not finished: a backfill"), "{status}");
    world.catch_up().await;

    assert_complete(&world).await;
    let messages = world.pubsub.emulator().published(&topic("video.events"));
    assert_eq!(messages.len(), 390, "no overlap");
    let marked = messages.iter().filter(|m| m.attribute("replay_id").is_some()).count();
    assert_eq!(marked, 360, "what came from the table is marked");
    let refused = world.run(["init", "--backfill"]).await;
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    world.catch_up().await;
    assert_eq!(world.pubsub.emulator().published(&topic("video.events")).len(), 390);
}

#[tokio::test]
async fn init_leaves_earlier_rows_unpublished_only_if_told_to() {
    let Some(world) = without_slot().await else { return };
    Workload::of_rows(7).insert(world.client()).await.expect("rows");
    let refused = world.run(["init"]).await;
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    for word in [
        "existing-rows-undecided",
        "7 row(s) of public.app_outbox",
        "init --backfill",
        "--skip-existing-rows",
    ] {
        assert!(refused.text.contains(word), "{word:?} is not in:\n{}", refused.text);
    }
    assert_eq!(world.number(SLOTS).await, 0, "nothing was created");

    let printed = world.succeed(["init", "--sql"]).await;
    let guard = slot_steps_of(&printed).into_iter().find(|step| step.contains("has rows"));
    let failed = world.client().batch_execute(&guard.expect("a guard")).await.unwrap_err();
    assert!(failed.as_db_error().expect("an answer").message().contains("has rows"), "{failed:?}");
    let script = world.succeed(["init", "--sql", "--skip-existing-rows"]).await;
    assert!(!script.contains("has rows"), "{script}");

    let told = world.succeed(["init", "--skip-existing-rows"]).await;
    assert!(told.contains("not published") && told.contains("7 row(s)"), "{told}");
    // The slot is on record now, so another run needs no choice.
    world.succeed(["init"]).await;
    let later = Workload { first_number: 7, ..Workload::of_rows(2) };
    later.insert(world.client()).await.expect("rows");
    world.catch_up().await;
    assert_eq!(world.pubsub.emulator().published(&topic("video.events")).len(), 2);
}

/// Returns the steps of the script that create the slot and refuse earlier rows.
fn slot_steps_of(script: &str) -> Vec<String> {
    let titled = script.split("-- slot ").skip(1);
    let sql = titled.map(|step| step.split_once('\n').expect("a title").1.to_owned());
    let steps: Vec<String> = sql.collect();
    let last = steps.iter().rposition(|step| step.contains("has rows")).expect("a guard");
    steps[..=last].to_vec()
}

/// The number of slots of the database.
const SLOTS: &str = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()";

/// Waits until a slot is being created.
async fn wait_for_slot(world: &InboxDatabase) {
    wait_until(DEADLINE, "the creation of the slot", async || {
        (world.number(SLOTS).await > 0).then_some(())
    })
    .await;
}

/// Begins a transaction with these rows.
async fn begin_with_rows(writer: &TestClient, first_number: u32, rows: u32) {
    let last = first_number + rows - 1;
    let insert = format!(
        "BEGIN; INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
         SELECT 'video', 'open-' || n, 'test.made', 1, '{{}}' FROM generate_series({first_number}, {last}) AS n"
    );
    writer.run(&insert).await;
}

#[tokio::test]
async fn rows_that_commit_while_init_creates_the_slot_are_published() {
    let Some(world) = without_slot().await else { return };
    let writer = world.connect().await;
    begin_with_rows(&writer, 0, 3).await;
    let init = world.command(["init"]).start();
    wait_for_slot(&world).await;
    writer.run("COMMIT").await;
    let done = init.finish(DEADLINE).await;
    assert_eq!(done.code, Some(0), "{}", done.text);
    for word in ["created: slot ", "3 row(s) of public.app_outbox"] {
        assert!(done.text.contains(word), "{word:?} is not in:\n{}", done.text);
    }
    let later = Workload { first_number: 3, ..Workload::of_rows(2) };
    later.insert(world.client()).await.expect("rows");
    world.catch_up().await;
    assert_complete(&world).await;
    assert_eq!(world.pubsub.emulator().published(&topic("video.events")).len(), 5);
}

#[tokio::test]
async fn a_backfill_that_races_with_another_waits_and_reports_the_same_rows() {
    let Some(world) = without_slot().await else { return };
    Workload::of_rows(7).insert(world.client()).await.expect("rows");
    let writer = world.connect().await;
    begin_with_rows(&writer, 7, 3).await;
    let first = world.command(["init", "--backfill"]).start();
    wait_for_slot(&world).await;
    let second = world.command(["init", "--backfill"]).start();
    second.wait_for_line(DEADLINE, "waiting for it").await;
    writer.run("COMMIT").await;
    for init in [first, second] {
        let done = init.finish(DEADLINE).await;
        assert_eq!(done.code, Some(0), "{}", done.text);
        assert!(done.text.contains("10 row(s) of public.app_outbox"), "{}", done.text);
    }
    world.catch_up().await;
    assert_complete(&world).await;
    assert_eq!(world.pubsub.emulator().published(&topic("video.events")).len(), 10);
}

#[tokio::test]
async fn skipped_rows_that_commit_while_init_creates_the_slot_are_counted() {
    let Some(world) = without_slot().await else { return };
    Workload::of_rows(7).insert(world.client()).await.expect("rows");
    let writer = world.connect().await;
    begin_with_rows(&writer, 7, 3).await;
    let init = world.command(["init", "--skip-existing-rows"]).start();
    wait_for_slot(&world).await;
    writer.run("COMMIT").await;
    let done = init.finish(DEADLINE).await;
    assert_eq!(done.code, Some(0), "{}", done.text);
    assert!(done.text.contains("10 row(s) of public.app_outbox"), "{}", done.text);
    let later = Workload { first_number: 10, ..Workload::of_rows(2) };
    later.insert(world.client()).await.expect("rows");
    world.catch_up().await;
    assert_eq!(world.pubsub.emulator().published(&topic("video.events")).len(), 2);
}

#[tokio::test]
async fn the_script_drops_its_slot_if_rows_commit_while_it_creates_the_slot() {
    let Some(world) = without_slot().await else { return };
    let steps = slot_steps_of(&world.succeed(["init", "--sql"]).await);
    let (writer, other) = (world.connect().await, world.connect().await);
    begin_with_rows(&writer, 0, 3).await;
    let script = async {
        for step in &steps {
            other.batch_execute(step).await?;
        }
        Ok::<_, tokio_postgres::Error>(())
    };
    let (done, ()) = tokio::join!(script, async {
        wait_for_slot(&world).await;
        writer.run("COMMIT").await;
    });
    let failed = done.expect_err("rows that the slot does not stream");
    assert!(failed.as_db_error().expect("an answer").message().contains("has rows"), "{failed:?}");
    assert_eq!(world.number(SLOTS).await, 0);
}

#[tokio::test]
async fn a_set_up_that_is_killed_before_its_slot_exists_is_completed_by_the_same_command() {
    for init in [&["init", "--backfill"][..], &["init", "--skip-existing-rows"]] {
        let Some(world) = without_slot().await else { return };
        Workload::of_rows(20).insert(world.client()).await.expect("rows");
        let dying = world.command(init.iter().copied()).env("WALRELAY_FAILPOINT", "recovery-begun");
        let died = dying.finish(DEADLINE).await;
        assert_eq!(died.code, None, "{}", died.text);
        assert_eq!(world.number(SLOTS).await, 0);
        world.succeed(init.iter().copied()).await;
        assert_eq!(world.number(SLOTS).await, 1);
        world.catch_up().await;
    }
}

#[tokio::test]
async fn many_rows_before_the_first_start_survive_concurrent_writers_and_two_kills() {
    let Some(world) = without_slot().await else { return };
    const ROWS: i64 = 100_000;
    world
        .execute(&format!(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             SELECT 'video', 'old-' || n % 500, 'test.made', n, jsonb_build_object('number', n)
               FROM generate_series(1, {ROWS}) AS n"
        ))
        .await;
    let producer = Producer::start(world.url(), Duration::from_millis(10));
    wait_until(DEADLINE, "rows of the producer", async || {
        (producer.rows_count() > 50).then_some(())
    })
    .await;
    world.succeed(["init", "--backfill"]).await;
    for kill in 1..=2 {
        let goal = world.pubsub.stored_count() + 15_000;
        let mut relay = world.relay([]).start();
        world.pubsub.wait_stored(DEADLINE, goal).await;
        relay.kill();
        let unfinished = "SELECT count(*) FROM app_outbox_relay WHERE operation IS NOT NULL";
        assert_eq!(world.number(unfinished).await, 1, "kill {kill} came in the middle");
    }
    let relay = world.relay([]).start();
    relay.wait_for_line(DEADLINE, "the slot is recovered").await;
    producer.stop().await;
    world.wait_confirmed(DEADLINE).await;
    assert_complete(&world).await;
}

#[tokio::test]
async fn an_emitted_event_is_printed_by_tail_which_leaves_no_subscription_behind() {
    let Some(world) = InboxDatabase::create().await else { return };
    let before = world.pubsub.emulator().subscriptions();
    let tail = world.command(["tail", "video.events", "-n", "1", "--key", "v-1", "-o", "json"]);
    let printing = tail.start();
    wait_until(DEADLINE, "the subscription of tail", async || {
        (world.pubsub.emulator().subscriptions().len() > before.len()).then_some(())
    })
    .await;
    let told = world.succeed(["emit", "video", "v-2", "VideoPublished", "{}"]).await;
    assert!(told.contains("version 1"), "{told}");
    // Everything that jsonb takes: many digits, large exponents and deep nesting.
    let deep = format!("{}{}", "[".repeat(500), "]".repeat(500));
    let payload = format!(
        r#"{{"title": "first", "total": 123456789012345678901234567890.5, "huge": 1e400, "deep": {deep}}}"#
    );
    let event = ["emit", "video", "v-1", "VideoPublished", &payload, "-o", "json"];
    let emitted: serde_json::Value =
        serde_json::from_str(&world.succeed(event).await).expect("an event");
    world.catch_up().await;
    let printed = printing.finish(DEADLINE).await;
    assert_eq!(printed.code, Some(0), "{}", printed.text);
    let line = printed.text.lines().find(|line| line.contains("ordering_key")).expect("a message");
    for exact in ["\"total\":123456789012345678901234567890.5}", "\"huge\":1000000000", &deep] {
        assert!(line.contains(exact), "{exact}: {line}");
    }
    // Serde refuses large numbers and deep nesting.
    let (head, _) = line.split_once("\"deep\"").expect("a deep array");
    let (_, rest) = line.split_once("\"title\"").expect("a title");
    let plain = format!("{head}\"title\"{rest}");
    let message: serde_json::Value = serde_json::from_str(&plain).expect("JSON");
    assert_eq!(message["data"]["title"], "first");
    assert_eq!(message["attributes"]["event_id"], emitted["event_id"]);
    assert_eq!(message["ordering_key"], "v-1");
    assert_eq!(world.pubsub.emulator().subscriptions(), before);

    let missing = world.run(["tail", "no.such.topic"]).await;
    assert!(missing.text.contains("topic-not-found"), "{}", missing.text);
    assert_eq!(world.run(["emit", "video", "", "VideoPublished", "{}"]).await.code, Some(2));
    let wrong = world.run(["emit", "video", "v-1", "VideoPublished", "{"]).await;
    assert_eq!(wrong.code, Some(2), "{}", wrong.text);
}

#[tokio::test]
async fn an_event_that_cannot_be_emitted_is_a_usage_error_with_a_code() {
    let Some(world) = InboxDatabase::create().await else { return };
    let long = "k".repeat(1_025);
    let event = ["emit", "video", "v-1", "VideoPublished", "{}", "--idempotency-key"];
    world.succeed(event.into_iter().chain(["request-1"])).await;
    for (command, code) in [
        (
            ["emit", "video", "v-2", "VideoPublished", "{}", "--idempotency-key", "request-1"],
            "idempotency-key-taken",
        ),
        (
            ["emit", "video", "v-1", "VideoPublished", "{}", "--idempotency-key", &long],
            "event-refused",
        ),
        (
            ["emit", "video", "v-1", "VideoPublished", "{}", "--idempotency-key", ""],
            "event-refused",
        ),
        (
            ["emit", "video", "v-1", "VideoPublished", "1e1000000", "--idempotency-key", "huge"],
            "event-refused",
        ),
        (
            ["emit", "video", "v-1", "VideoPublished", r#""\u0000""#, "--idempotency-key", "zero"],
            "event-refused",
        ),
    ] {
        let refused = world.run(command).await;
        assert_eq!(refused.code, Some(2), "{}", refused.text);
        assert!(refused.text.contains(code), "{code}: {}", refused.text);
    }
    assert_eq!(world.number("SELECT count(*) FROM app_outbox").await, 1);
}

#[tokio::test]
async fn a_command_that_destroys_something_needs_consent_and_shows_what_it_would_do() {
    let Some(world) = InboxDatabase::create().await else { return };
    Workload::of_rows(5).insert(world.client()).await.expect("rows");
    world.catch_up().await;
    world.succeed(["anchor", "create", "a"]).await;
    let confirmed = Lsn::new(world.confirmed_flush().await).to_string();
    for command in [
        &["anchor", "drop", "a"][..],
        &["anchor", "advance", "a"],
        &["slot", "advance", "--to-lsn", &confirmed],
        &["slot", "reset", "--to-anchor", "a"],
        &["slot", "drop"],
        &["prune", "--older-than", "1s"],
        &["slot", "release"],
    ] {
        let refused = world.run(command.iter().copied()).await;
        assert_eq!(refused.code, Some(2), "{command:?}: {}", refused.text);
        assert!(refused.text.contains("--yes"), "{command:?}: {}", refused.text);
        let shown = world.succeed(command.iter().copied().chain(["--dry-run"])).await;
        assert!(shown.contains("would "), "{command:?}: {shown}");
    }
    assert_eq!(world.number("SELECT count(*) FROM app_outbox").await, 5);
    assert!(world.succeed(["anchor", "list"]).await.contains("reaches back"), "the anchor stays");
    let shown = world.succeed(["slot", "drop", "--dry-run", "-o", "json"]).await;
    assert!(shown.contains("\"would\": \"drop slot "), "{shown}");
    let moved = world.succeed(["anchor", "advance", "-y", "a", "-o", "json"]).await;
    assert!(moved.contains("\"anchor\": \"a\"") && !moved.contains("is now at"), "{moved}");
    world.succeed(["anchor", "drop", "-y", "a"]).await;
    let refused = world.run(["reshard", "--shards", "2"]).await;
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    assert!(refused.text.contains("--yes"), "{}", refused.text);
}
