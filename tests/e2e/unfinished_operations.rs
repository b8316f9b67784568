//! Unfinished operations: every command reports them, and the next command continues them.

use std::time::{Duration, Instant};

use walrelay_testkit::outbox::Workload;
use walrelay_testkit::postgres::TestClient;
use walrelay_testkit::process::Signal;
use walrelay_testkit::relay::Relay;
use walrelay_testkit::{http_get, wait_until};
use walrelay_tests::{DEADLINE, InboxDatabase, topic};

/// Drops the slot, inserts rows that no slot covers, and opens a transaction that delays the
/// creation of a new slot.
async fn lost_slot_with_open_transaction() -> Option<(InboxDatabase, TestClient)> {
    let world = InboxDatabase::create().await?;
    Workload::of_rows(30).insert(world.client()).await.expect("rows");
    world.catch_up().await;
    world.execute(&format!("SELECT pg_drop_replication_slot('{}')", world.name())).await;
    let more = Workload { first_number: 30, ..Workload::of_rows(40) };
    more.insert(world.client()).await.expect("rows");
    let open = world.connect().await;
    open.batch_execute("BEGIN; SELECT pg_current_xact_id()").await.expect("a transaction");
    Some((world, open))
}

const WAITS: &str = "the new slot waits for a transaction to end: process";

async fn recovering(world: &InboxDatabase) -> Relay {
    let recover = world.command(["slot", "recover", "--yes"]).start();
    recover.wait_for_line(DEADLINE, WAITS).await;
    recover
}

async fn assert_nothing_lost(world: &InboxDatabase) {
    let verdict = world.check(&world.committed().await);
    assert!(verdict.lost.is_empty() && verdict.reordered.is_empty(), "{verdict}");
    let unfinished = "SELECT count(*) FROM app_outbox_relay WHERE operation IS NOT NULL";
    assert_eq!(world.number(unfinished).await, 0);
}

#[tokio::test]
async fn status_and_probes_name_the_recovery_and_the_transaction_that_it_waits_for() {
    let Some((world, open)) = lost_slot_with_open_transaction().await else { return };
    let relay = world.relay(["--on-slot-lost", "recover"]).start();
    for path in ["/readyz", "/status"] {
        wait_until(DEADLINE, "the operation and what it waits for", async || {
            let (code, body) = http_get(relay.http_address(), path).await.ok()?;
            let is_told = body.contains("a recovery") && body.contains(WAITS);
            (is_told && (code == 503 || path == "/status")).then_some(())
        })
        .await;
    }
    let status = world.run(["status"]).await;
    assert!(status.text.contains("not finished: a recovery"), "{}", status.text);
    assert!(status.text.contains(WAITS), "{}", status.text);
    assert!(!status.text.contains("nothing parked"), "{}", status.text);

    // The second relay waits for the first, and reports the reason.
    let other = world.relay([]).start();
    wait_until(DEADLINE, "the other to name it", async || {
        let (_, body) = http_get(other.http_address(), "/readyz").await.ok()?;
        (body.contains("a recovery") && body.contains(WAITS)).then_some(())
    })
    .await;
    open.batch_execute("COMMIT").await.expect("it ends");
    // Either of them may finish it.
    let finished = "SELECT count(*) FROM app_outbox_relay WHERE operation IS NULL";
    wait_until(DEADLINE, "the recovery to be finished", async || {
        (world.number(finished).await == 1).then_some(())
    })
    .await;
    world.wait_confirmed(DEADLINE).await;
    drop((relay, other));
    world.wait_slot_free(DEADLINE).await;
    world.catch_up().await;
    assert_nothing_lost(&world).await;
}

#[tokio::test]
async fn a_new_slot_that_nobody_waits_for_any_more_is_ended_by_the_next_start() {
    let Some((world, open)) = lost_slot_with_open_transaction().await else { return };
    let mut killed = recovering(&world).await;
    killed.kill();

    let next = world.command(["slot", "recover", "--yes"]).start();
    next.wait_for_line(DEADLINE, "begun by a process that is gone").await;
    next.wait_for_line(DEADLINE, WAITS).await;
    open.batch_execute("COMMIT").await.expect("it ends");
    let done = next.finish(DEADLINE).await;
    assert_eq!(done.code, Some(0), "{}", done.text);
    assert!(!done.text.contains("is active for PID"), "{}", done.text);
    world.catch_up().await;
    assert_nothing_lost(&world).await;
}

#[tokio::test]
async fn a_recovery_that_another_process_works_on_is_not_reported_as_done() {
    let Some((world, open)) = lost_slot_with_open_transaction().await else { return };
    let first = recovering(&world).await;
    let second = world.run(["slot", "recover", "--yes"]).await;
    assert_eq!(second.code, Some(3), "{}", second.text);
    for word in ["operation-unfinished", WAITS] {
        assert!(second.text.contains(word), "{word:?} is not in:\n{}", second.text);
    }
    open.batch_execute("COMMIT").await.expect("it ends");
    assert_eq!(first.finish(DEADLINE).await.code, Some(0));
    let third = world.succeed(["slot", "recover", "--yes"]).await;
    assert!(third.contains("a recovery (the new slot begins at"), "{third}");
    world.catch_up().await;
    assert_nothing_lost(&world).await;
}

#[tokio::test]
async fn an_interrupted_recovery_ends_at_once_and_leaves_no_half_made_slot() {
    let Some((world, open)) = lost_slot_with_open_transaction().await else { return };
    let mut recover = recovering(&world).await;
    let asked = Instant::now();
    recover.signal(Signal::Interrupt);
    assert_eq!(recover.wait_ended(DEADLINE).await.code(), Some(1));
    assert!(asked.elapsed() < Duration::from_secs(4), "{:?}", asked.elapsed());
    let slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()";
    assert_eq!(world.number(slots).await, 0);
    open.batch_execute("COMMIT").await.expect("it ends");
    world.catch_up().await;
    assert_nothing_lost(&world).await;
}

/// Creates a reset that died at this step and whose anchor was dropped since.
async fn reset_without_anchor(step: &str) -> Option<InboxDatabase> {
    let world = InboxDatabase::create().await?;
    world.succeed(["anchor", "create", "a"]).await;
    Workload::of_rows(30).insert(world.client()).await.expect("rows");
    world.catch_up().await;
    let dying = world.command(["slot", "reset", "--yes", "--to-anchor", "a"]);
    let died = dying.env("WALRELAY_FAILPOINT", step).finish(DEADLINE).await;
    assert_eq!(died.code, None, "{}", died.text);
    let drop = format!("SELECT pg_drop_replication_slot('{}_anchor_a')", world.name());
    world.execute(&drop).await;
    let more = Workload { first_number: 30, ..Workload::of_rows(12) };
    more.insert(world.client()).await.expect("rows");
    Some(world)
}

#[tokio::test]
async fn a_reset_whose_anchor_is_gone_is_given_up_and_the_slot_goes_on() {
    let Some(world) = reset_without_anchor("reset-begun").await else { return };
    let told = world.succeed(["run", "--until-caught-up"]).await;
    assert!(told.contains("is abandoned, because the anchor is gone"), "{told}");
    assert_nothing_lost(&world).await;
    assert_eq!(world.pubsub.emulator().published(&topic("video.events")).len(), 42);
}

#[tokio::test]
async fn status_in_the_middle_of_a_reset_shows_what_there_is_and_what_finishes_it() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.succeed(["anchor", "create", "a"]).await;
    Workload::of_rows(30).insert(world.client()).await.expect("rows");
    world.catch_up().await;
    let dying = world.command(["slot", "reset", "--yes", "--to-anchor", "a"]);
    dying.env("WALRELAY_FAILPOINT", "reset-dropped").finish(DEADLINE).await;

    let told = world.succeed(["status"]).await;
    for part in [
        "not finished: a reset",
        "this finishes it: walrelay run",
        "dispatch state",
        "is not there",
    ] {
        assert!(told.contains(part), "{part:?} is not in\n{told}");
    }
    let json = world.succeed(["status", "--output", "json"]).await;
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&json["lost"], &json["active"]), (&false.into(), &false.into()));
    world.catch_up().await;
    assert_nothing_lost(&world).await;
}

#[tokio::test]
async fn a_first_backfill_that_is_begun_twice_says_that_the_first_is_not_finished() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    world.succeed(["init"]).await;
    world.succeed(["slot", "drop", "--yes"]).await;
    Workload::of_rows(30).insert(world.client()).await.expect("rows");
    let first = world.succeed(["init", "--backfill"]).await;
    assert!(first.contains("30 row(s)") && first.contains("start the relay"), "{first}");
    assert!(!first.contains("an earlier run started this backfill"), "{first}");
    let second = world.succeed(["init", "--backfill"]).await;
    assert!(second.contains("an earlier run started this backfill"), "{second}");
    assert!(second.contains("start the relay"), "{second}");
    world.catch_up().await;
    assert_nothing_lost(&world).await;
    let again = world.run(["init", "--backfill"]).await;
    assert_eq!(again.code, Some(2), "{}", again.text);
}

#[tokio::test]
async fn a_reset_whose_anchor_is_gone_after_the_slot_was_dropped_is_a_lost_slot() {
    let stops = &["run", "--on-slot-lost", "stop"][..];
    for command in [stops, &["slot", "reset", "--yes", "--to-anchor", "a"], &["init"]] {
        let Some(world) = reset_without_anchor("reset-dropped").await else { return };
        let refused = world.run(command.iter().copied()).await;
        assert_eq!(refused.code, Some(5), "{command:?}: {}", refused.text);
        assert!(refused.text.contains("walrelay slot recover"), "{}", refused.text);
        world.succeed(["slot", "recover", "--yes"]).await;
        world.catch_up().await;
        assert_nothing_lost(&world).await;
    }
}

#[tokio::test]
async fn a_recovery_whose_slot_is_lost_again_makes_another_and_keeps_its_bound() {
    for command in [&["init"][..], &["slot", "recover", "--yes"], &["run", "--until-caught-up"]] {
        let Some((world, open)) = lost_slot_with_open_transaction().await else { return };
        open.batch_execute("COMMIT").await.expect("it ends");
        world.succeed(["slot", "recover", "--yes"]).await;
        world.execute(&format!("SELECT pg_drop_replication_slot('{}')", world.name())).await;
        let more = Workload { first_number: 70, ..Workload::of_rows(20) };
        more.insert(world.client()).await.expect("rows");
        world.succeed(command.iter().copied()).await;
        world.catch_up().await;
        assert_nothing_lost(&world).await;
    }
}

#[tokio::test]
async fn a_slot_is_not_dropped_before_its_recovery_is_finished() {
    let Some((world, open)) = lost_slot_with_open_transaction().await else { return };
    open.batch_execute("COMMIT").await.expect("it ends");
    world.succeed(["slot", "recover", "--yes"]).await;
    let refused = world.run(["slot", "drop", "--yes", "--discard-rows", "1000"]).await;
    assert_eq!(refused.code, Some(3), "{}", refused.text);
    assert!(refused.text.contains("a recovery"), "{}", refused.text);
    world.catch_up().await;
    assert_nothing_lost(&world).await;
}

#[tokio::test]
async fn the_holder_of_a_slot_is_named_with_its_activity() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    let open = world.connect().await;
    open.batch_execute("BEGIN; CREATE TABLE held (n int)").await.expect("a transaction");
    let init = world.command(["init"]).start();
    init.wait_for_line(DEADLINE, "waits for a transaction to end").await;
    let refused = world.run(["slot", "drop", "--yes"]).await;
    assert_eq!(refused.code, Some(3), "{}", refused.text);
    assert!(refused.text.contains("waits for a transaction to end"), "{}", refused.text);
    open.batch_execute("COMMIT").await.expect("it ends");
    assert_eq!(init.finish(DEADLINE).await.code, Some(0));

    let relay = world.start_relay([]).await;
    let streamed = world.run(["slot", "drop", "--yes"]).await;
    assert_eq!(streamed.code, Some(6), "{}", streamed.text);
    assert!(streamed.text.contains("held by a relay that streams it"), "{}", streamed.text);
    drop(relay);
}

#[tokio::test]
async fn a_running_replay_is_not_resumed_by_a_second_process() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.succeed(["anchor", "create", "a"]).await;
    world.pubsub.create_topic("again");
    Workload::of_rows(200).insert(world.client()).await.expect("rows");
    let begin =
        ["replay", "start", "--yes", "--from-anchor", "a", "--to-topic", "again", "--rate", "100"];
    let first = world.command(begin).start();
    let line = first.wait_for_line(DEADLINE, "replay begins").await;
    let line: serde_json::Value = serde_json::from_str(&line).expect("a line of log");
    let id = line["id"].as_str().expect("an id");
    let second = world.run(["replay", "resume", "--yes", id]).await;
    assert_eq!(second.code, Some(6), "{}", second.text);
    assert!(second.text.contains("another process"), "{}", second.text);
    let done = first.finish(DEADLINE).await;
    assert_eq!(done.code, Some(0), "{}", done.text);
    assert_eq!(world.pubsub.emulator().published(&topic("again")).len(), 200);
}

#[tokio::test]
async fn an_operation_started_during_the_preflight_check_is_noticed() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.catch_up().await;
    let beginning = world.connect().await;
    let lock = "BEGIN; LOCK TABLE pg_catalog.pg_publication IN ACCESS EXCLUSIVE MODE";
    beginning.batch_execute(lock).await.expect("a lock");
    // Holds the lock of a running upgrade preparation.
    let at_it = "SELECT pg_advisory_lock(hashtextextended('walrelay operation ' || slot, 0))
                   FROM app_outbox_relay";
    beginning.batch_execute(at_it).await.expect("another lock");
    // The relay has found no unfinished operation, and checks the publication next.
    let relay = world.relay([]).start();
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'pg_publication'::regclass
                      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    wait_until(DEADLINE, "the relay to look at the publication", async || {
        (world.number(waiting).await > 0).then_some(())
    })
    .await;
    let begin =
        "UPDATE app_outbox_relay SET generation = generation + 1, operation = jsonb_build_object(
                   'kind', 'upgrade', 'system_identifier', system_identifier,
                   'version', current_setting('server_version_num')::int); COMMIT";
    beginning.batch_execute(begin).await.expect("it is begun");
    relay.wait_for_line(DEADLINE, "a release").await;
    assert!(
        !relay.lines().iter().any(|line| line.contains("\"streaming\"")),
        "{:?}",
        relay.lines()
    );
}
