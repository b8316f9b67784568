//! `consumer rebuild`: rebuilds the same read model from the messages that the topic retains.

use std::time::Duration;

use walrelay_emulator::SubscriptionOptions;
use walrelay_testkit::process::Signal;
use walrelay_testkit::wait_until;
use walrelay_tests::{CONSUMER, DEADLINE, InboxDatabase, topic};

/// The content of these tests' read model.
const READ_MODEL: &str =
    "SELECT coalesce(string_agg(key || '=' || events, ',' ORDER BY key), '') FROM effect.balance";

async fn read_model(world: &InboxDatabase) -> String {
    world.client().query_one(READ_MODEL, &[]).await.expect("the read model").get(0)
}

/// Creates a topic that retains messages, and a consumer of it.
async fn world() -> Option<InboxDatabase> {
    let world = InboxDatabase::create().await?;
    keep_messages(&world, Duration::from_hours(1));
    world.set_up_consumer().await;
    Some(world)
}

fn keep_messages(world: &InboxDatabase, period: Duration) {
    world.pubsub.emulator().retain(&topic("video.events"), period).expect("it keeps them");
}

fn reset_file(world: &InboxDatabase, sql: &str) -> String {
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
        .succeed([
            "consumer",
            "rebuild",
            CONSUMER,
            "--from-time",
            "1h",
            "--reset-sql",
            &reset,
            "--yes",
        ])
        .await;
    assert!(told.contains("begun: generation 2") && told.contains("-g2"), "{told}");
    world.wait_applied(500).await;
    assert_eq!(read_model(&world).await, before);
    // Later events arrive through the new subscription.
    world.insert_events(20, 100).await;
    world.catch_up().await;
    world.wait_applied(600).await;
    consumer.wait_for_line(DEADLINE, "going on with the other subscription").await;
    assert!(consumer.lines().iter().all(|line| !line.contains("stopped")), "it goes on");
    drop(consumer);
    world.assert_applied_exactly_once().await;
    // `consumer init` with the original options finds the same consumer and creates nothing.
    let init = [
        "consumer",
        "init",
        CONSUMER,
        "--subscription",
        CONSUMER,
        "--create",
        "--topic",
        "video.events",
        "-v",
    ];
    let same = world.succeed(init).await;
    assert!(same.contains("/ledger-g2 since it was rebuilt"), "{same}");

    // A second rebuild without a running instance, for a consumer that an operator has paused.
    world.succeed(["consumer", "pause", CONSUMER]).await;
    let discard = "UPDATE app_inbox SET status = 'discarded' WHERE generation = 2 AND version = 7";
    world.execute(discard).await;
    let rebuild =
        ["consumer", "rebuild", CONSUMER, "--from-time", "1h", "--reset-sql", &reset, "--yes"];
    let again = world.succeed(rebuild).await;
    assert!(again.contains("in generation 2: 0 edited and 1 discarded event(s)"), "{again}");
    std::fs::remove_file(&reset).expect("it is there");
    // Subscription names do not grow with each rebuild.
    assert!(again.contains("/ledger-g3\n") && again.contains("still paused, as before"), "{again}");
    assert_eq!(world.applied_count().await, 0);
    world.succeed(["consumer", "resume", CONSUMER]).await;
    world.consume_all().await;
    world.assert_applied_exactly_once().await;
}

#[tokio::test]
async fn a_rebuild_that_cannot_be_whole_changes_nothing() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.set_up_consumer().await;
    world.insert_events(5, 50).await;
    world.catch_up().await;
    world.consume_all().await;

    let rebuild = ["consumer", "rebuild", CONSUMER, "--from-time"];
    let forgetful = world.run(rebuild.into_iter().chain(["10m"])).await;
    assert_eq!(forgetful.code, Some(2), "{}", forgetful.text);
    assert!(
        forgetful.text.contains("retains no messages for new subscriptions"),
        "{}",
        forgetful.text
    );

    keep_messages(&world, Duration::from_mins(10));
    let beyond = world.run(rebuild.into_iter().chain(["2h"])).await;
    assert_eq!(beyond.code, Some(2), "{}", beyond.text);
    assert!(beyond.text.contains("retains messages for 10m"), "{}", beyond.text);

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

    // A rebuild undoes operators' edits and discards only with their consent.
    let decide = "UPDATE app_inbox SET edited_at = now() WHERE version = 7;
                  UPDATE app_inbox SET status = 'discarded' WHERE version = 8";
    world.execute(decide).await;
    let unasked = world.run(rebuild.into_iter().chain(["5m"])).await;
    assert_eq!(unasked.code, Some(2), "{}", unasked.text);
    assert!(unasked.text.contains("1 edited and 1 discarded event(s)"), "{}", unasked.text);
    assert!(unasked.text.contains("--yes"), "{}", unasked.text);

    assert_unchanged(&world).await;
}

#[tokio::test]
async fn an_edit_is_counted_however_often_the_handler_has_failed_since() {
    let Some(world) = world().await else { return };
    world
        .execute(
            "CREATE FUNCTION effect.talks(event app_inbox_event) RETURNS void LANGUAGE plpgsql AS $$
             BEGIN
               RAISE EXCEPTION '%', repeat('x', 2000) USING ERRCODE = '22000';
             END $$",
        )
        .await;
    world.insert_events(1, 1).await;
    world.catch_up().await;
    let talks = ["consumer", "run", CONSUMER, "--handler", "effect.talks", "--max-attempts", "1"];
    let _consumer = world.command(talks).start();
    let id = wait_until(DEADLINE, "the event to be dead", async || dead(&world).await).await;
    let payload = reset_file(&world, "{}");
    world.succeed(["inbox", "edit", &id, "--payload-file", &payload]).await;
    std::fs::remove_file(&payload).expect("it is there");
    let said = "SELECT count(*) FROM app_inbox WHERE last_error LIKE '%edited at%'";
    for _ in 0..4 {
        wait_until(DEADLINE, "the event to be dead again", async || dead(&world).await).await;
        world.succeed(["inbox", "retry", &id]).await;
    }
    wait_until(DEADLINE, "its history to be full", async || {
        (world.number(said).await == 0).then_some(())
    })
    .await;
    let unasked = world.run(["consumer", "rebuild", CONSUMER, "--from-time", "5m"]).await;
    assert_eq!(unasked.code, Some(2), "{}", unasked.text);
    assert!(unasked.text.contains("1 edited and 0 discarded event(s)"), "{}", unasked.text);
}

/// Returns the id of the only dead event.
async fn dead(world: &InboxDatabase) -> Option<String> {
    let sql = "SELECT event_id FROM app_inbox WHERE status = 'dead'";
    world.client().query_opt(sql, &[]).await.expect("a row or none").map(|row| row.get(0))
}

/// Checks that the state is as before any rebuild, and that the rebuild's subscription is deleted.
async fn assert_unchanged(world: &InboxDatabase) {
    assert_eq!(world.number("SELECT sum(events)::bigint FROM effect.balance").await, 50);
    let status = world.succeed(["consumer", "status", CONSUMER, "--output", "json"]).await;
    assert!(status.contains("\"paused\": false"), "{status}");
    assert!(status.contains("\"generation\": 1"), "{status}");
    assert!(!has_successor(world), "a subscription is left behind");
}

fn has_successor(world: &InboxDatabase) -> bool {
    world.pubsub.emulator().subscriptions().iter().any(|name| name.ends_with("/ledger-g2"))
}

#[tokio::test]
async fn a_reset_that_fails_or_would_commit_has_no_effect_and_the_hint_is_about_it() {
    let Some(world) = world().await else { return };
    world.insert_events(5, 50).await;
    world.catch_up().await;
    world.consume_all().await;
    world
        .execute(
            "CREATE PROCEDURE effect.commits() LANGUAGE plpgsql AS
             'BEGIN DELETE FROM effect.balance; COMMIT; END'",
        )
        .await;
    for sql in [
        "DELETE FROM effect.balance; DELETE FROM no_such_table",
        "DELETE FROM effect.balance; COMMIT; BEGIN",
        "DELETE FROM effect.balance; ROLLBACK",
        "COMMIT; DELETE FROM effect.balance",
        "CALL effect.commits()",
        "DELETE FROM effect.balance; SELECT 'it''s \\' || 1 / 0",
        "DELETE FROM effect.balance; this is no SQL",
    ] {
        let file = reset_file(&world, sql);
        let rebuild =
            ["consumer", "rebuild", CONSUMER, "--from-time", "5m", "--reset-sql", &file, "--yes"];
        let refused = world.run(rebuild).await;
        assert_eq!(refused.code, Some(2), "{sql}: {}", refused.text);
        assert!(refused.text.contains("nothing has changed"), "{sql}: {}", refused.text);
        assert!(
            refused.text.contains("Correct the SQL of `--reset-sql`"),
            "{sql}: {}",
            refused.text
        );
        assert_unchanged(&world).await;
        std::fs::remove_file(&file).expect("it is there");
    }
}

#[tokio::test]
async fn a_rebuild_waits_for_batches_of_its_consumer_alone_and_says_for_whom() {
    let Some(world) = world().await else { return };
    world.insert_events(5, 50).await;
    world.catch_up().await;
    world.consume_all().await;
    world
        .execute("INSERT INTO app_inbox_consumer (consumer, subscription) VALUES ('other', 's')")
        .await;
    // A batch whose transaction stays open.
    let stuck = world.connect().await;
    let batch = "SET application_name = 'stuck'; BEGIN; SELECT app_inbox_accept('ledger', 'e', 'k', 1, NULL, NULL)";
    stuck.batch_execute(batch).await.expect("it is accepted");
    let rebuild = ["consumer", "rebuild", CONSUMER, "--from-time", "5m"];
    for ends_by_itself in [false, true] {
        let mut rebuild = world.command(rebuild).start();
        rebuild.wait_for_line(DEADLINE, "application stuck").await;
        // Another consumer of this database does not wait for the rebuild.
        let accept =
            "SET lock_timeout = '1s'; SELECT app_inbox_accept('other', 'e', 'k', 1, NULL, NULL)";
        world.execute(accept).await;
        if ends_by_itself {
            stuck.batch_execute("ROLLBACK").await.expect("it ends");
            assert!(rebuild.wait_ended(DEADLINE).await.success(), "{:?}", rebuild.lines());
        } else {
            rebuild.signal(Signal::Interrupt);
            assert!(!rebuild.wait_ended(DEADLINE).await.success());
            assert_unchanged(&world).await;
        }
    }
    assert_eq!(
        world
            .number("SELECT generation::bigint FROM app_inbox_consumer WHERE consumer = 'ledger'")
            .await,
        2
    );
}

#[tokio::test]
async fn a_rebuild_that_is_killed_anywhere_leaves_the_consumer_at_work_and_is_run_again() {
    // The last failpoint is after the start of a new generation. The next run starts another
    // generation, with the same result.
    for (place, generation) in
        [("rebuild-subscribed", 2), ("rebuild-sought", 2), ("rebuild-begun", 3)]
    {
        let Some(world) = world().await else { return };
        world.insert_events(5, 50).await;
        world.catch_up().await;
        let consumer = world.start_consumer([]).await;
        world.wait_applied(50).await;
        let before = read_model(&world).await;
        let reset = reset_file(&world, "TRUNCATE effect.balance, effect.applied");
        let rebuild =
            ["consumer", "rebuild", CONSUMER, "--from-time", "1h", "--reset-sql", &reset, "--yes"];
        let killed = world.command(rebuild).env("WALRELAY_FAILPOINT", place).finish(DEADLINE).await;
        assert_eq!(killed.code, None, "{place}: {}", killed.text);
        // Later events need no manual step.
        world.insert_events(5, 50).await;
        world.catch_up().await;
        world.wait_applied(100).await;
        world.assert_applied_exactly_once().await;

        world.succeed(rebuild).await;
        std::fs::remove_file(&reset).expect("it is there");
        world.wait_applied(100).await;
        drop(consumer);
        world.assert_applied_exactly_once().await;
        assert_ne!(read_model(&world).await, before);
        let reached = "SELECT generation::bigint FROM app_inbox_consumer";
        assert_eq!(world.number(reached).await, generation, "{place}");
    }
}

#[tokio::test]
async fn events_out_of_reach_of_a_rebuild_are_reported_before_it_begins() {
    let Some(world) = world().await else { return };
    let _consumer = world.start_consumer([]).await;
    world.insert_events(5, 40).await;
    world.catch_up().await;
    world.wait_applied(40).await;
    let now = "SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')";
    let since: String = world.client().query_one(now, &[]).await.expect("a moment").get(0);
    world.insert_events(5, 20).await;
    world.catch_up().await;
    world.wait_applied(60).await;

    let neither = world.run(["consumer", "rebuild", CONSUMER]).await;
    assert_eq!(neither.code, Some(2), "{}", neither.text);
    for option in ["--from-time <TIME>", "--into <SCHEMA>"] {
        assert!(neither.text.contains(option), "{}", neither.text);
    }

    let reset = reset_file(&world, "TRUNCATE effect.balance; TRUNCATE effect.applied;");
    let rebuild =
        ["consumer", "rebuild", CONSUMER, "--from-time", &since, "--reset-sql", &reset, "--yes"];
    let unasked = world.run(rebuild.into_iter().filter(|argument| *argument != "--yes")).await;
    assert_eq!(unasked.code, Some(2), "{}", unasked.text);
    assert!(unasked.text.contains("Add `--yes` to agree"), "{}", unasked.text);
    assert_eq!(world.applied_count().await, 60, "nothing was emptied");
    let told = world.succeed(rebuild).await;
    std::fs::remove_file(&reset).expect("it is there");
    for part in [
        "messages published from ",
        "Earlier messages are not",
        "`walrelay audit`",
        "--into SCHEMA",
        "generation 1 has 40 event(s) that occurred before that",
    ] {
        assert!(told.contains(part), "{part:?} is missing in {told}");
    }
    let said = told.find("Earlier messages are not").expect("it is said");
    assert!(told.find("created: subscription").is_some_and(|begun| said < begun), "{told}");
    world.wait_applied(20).await;
    assert_eq!(world.applied_count().await, 20);
    // The settled horizon is a transaction id, so it waits for other open transactions on this
    // server.
    let _relay = world.start_relay([]).await;
    wait_until(DEADLINE, "what is missing to be told", async || {
        let audit = world.run(["audit", "--grace", "0s"]).await;
        (audit.code == Some(1)).then_some(())
    })
    .await;
    // This command has no `--reset-sql`, so the read model keeps its events.
    let again =
        world.succeed(["consumer", "rebuild", CONSUMER, "--from-time", &since, "--yes"]).await;
    assert!(!again.contains("event(s) that occurred before that"), "{again}");
}
