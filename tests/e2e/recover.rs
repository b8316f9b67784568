//! Recovery of a lost slot from the table: no row is lost, each key keeps its order, and few rows
//! are duplicated.

use std::time::Duration;

use tokio::task::JoinSet;
use walrelay_private_postgres::PrivatePostgres;
use walrelay_testkit::outbox::Workload;
use walrelay_testkit::postgres::{TestClient, installation_or_skip, resetwal_or_skip};
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase, Producer, topic};

/// Publishes rows, drops the slot, and inserts rows that no slot covers.
async fn drop_slot_and_insert(world: &InboxDatabase, missed: u32) {
    Workload::of_rows(100).insert(world.client()).await.expect("rows");
    world.catch_up().await;
    world.execute(&format!("SELECT pg_drop_replication_slot('{}')", world.name())).await;
    let more = Workload { first_number: 100, ..Workload::of_rows(missed) };
    more.insert(world.client()).await.expect("rows");
}

/// A server whose next transaction id can be moved.
fn server_with_resetwal() -> Option<PrivatePostgres> {
    let found = resetwal_or_skip()?;
    Some(PrivatePostgres::start(&found, &[("wal_level", "logical")]).expect("a server"))
}

/// Makes the last settled transaction on record this many transactions old.
async fn set_settled_age(world: &InboxDatabase, age: u64) {
    world
        .execute(&format!(
            "UPDATE app_outbox_relay SET written_xid = pg_current_xact_id(), settled_xid =
               (pg_snapshot_xmax(pg_current_snapshot())::text::numeric - {age})::text::xid8"
        ))
        .await;
}

#[tokio::test]
async fn a_horizon_that_is_too_old_to_compare_is_warned_of_and_recovered_by_a_time() {
    let Some(mut server) = server_with_resetwal() else { return };
    let Some(mut world) = InboxDatabase::create_at(&server.url("postgres")).await else { return };
    drop_slot_and_insert(&world, 40).await;
    server.skip_an_epoch().expect("pg_resetwal");
    world.reconnect().await;
    set_settled_age(&world, 1_500_000_000).await;
    let warned = world.run(["status"]).await;
    assert!(warned.text.contains("transactions have run since"), "{}", warned.text);
    world.succeed(["slot", "recover", "--dry-run"]).await;

    set_settled_age(&world, 2_200_000_000).await;
    world.run(["prune", "--older-than", "1s", "--yes"]).await;
    assert_eq!(world.committed().await.len(), 140, "nothing is pruned");
    for command in [vec!["status"], vec!["slot", "recover", "--yes"]] {
        let refused = world.run(command).await;
        assert_eq!(refused.code, Some(5), "{}", refused.text);
        assert!(refused.text.contains("slot recover --from-time"), "{}", refused.text);
    }
    world.succeed(["slot", "recover", "--from-time", "1h", "--yes"]).await;
    world.catch_up().await;
    let verdict = world.check(&world.committed().await);
    assert!(verdict.lost.is_empty() && verdict.reordered.is_empty(), "{verdict}");
    let healthy = world.run(["status"]).await;
    assert!(!healthy.text.contains("transactions have run since"), "{}", healthy.text);
}

fn stored(world: &InboxDatabase) -> usize {
    world.pubsub.emulator().published(&topic("video.events")).len()
}

#[tokio::test]
async fn four_hundred_rows_that_no_slot_has_are_published_in_order_with_little_overlap() {
    let Some(world) = InboxDatabase::create().await else { return };
    drop_slot_and_insert(&world, 400).await;
    let told = world.succeed(["slot", "recover", "--yes"]).await;
    assert!(told.contains("row(s) of public.app_outbox"), "{told}");
    // Rows committed after the recovery are streamed.
    let last = Workload { first_number: 500, ..Workload::of_rows(50) };
    last.insert(world.client()).await.expect("rows");
    world.catch_up().await;

    let committed = world.committed().await;
    assert_eq!(committed.len(), 550);
    let verdict = world.check(&committed);
    assert!(verdict.lost.is_empty() && verdict.reordered.is_empty(), "{verdict}");
    assert!(verdict.duplicates_count <= 100, "{verdict}");
    let unfinished = "SELECT count(*) FROM app_outbox_relay WHERE operation IS NOT NULL";
    assert_eq!(world.number(unfinished).await, 0);
    // A further run publishes nothing.
    let before = stored(&world);
    world.catch_up().await;
    assert_eq!(stored(&world), before);
}

#[tokio::test]
async fn a_recovery_that_loses_its_database_publishes_nothing_more_until_it_is_back() {
    let Some(world) = InboxDatabase::create().await else { return };
    drop_slot_and_insert(&world, 2_000).await;
    world.succeed(["slot", "recover", "--yes"]).await;
    let relay = world.relay(["--rate", "100"]).start();
    world.pubsub.wait_stored(DEADLINE, 200).await;
    let other = TestClient::connect(&world.url().replace(world.name(), "postgres")).await;
    let name = world.name();
    let cut = format!(
        "ALTER DATABASE \"{name}\" WITH ALLOW_CONNECTIONS false;
         SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
    );
    other.batch_execute(&cut).await.expect("the database is closed");
    relay.wait_for_line(DEADLINE, "connecting again").await;
    other
        .batch_execute(&format!("ALTER DATABASE \"{name}\" WITH ALLOW_CONNECTIONS true"))
        .await
        .expect("the database is open");
    drop(relay);
    let mut world = world;
    world.reconnect().await;
    world.catch_up().await;
    let verdict = world.check(&world.committed().await);
    assert!(verdict.lost.is_empty() && verdict.reordered.is_empty(), "{verdict}");
    assert!(verdict.duplicates_count <= 500, "what was not recorded any more: {verdict}");
}

/// Runs transactions that write and roll back, one after the other.
async fn roll_back(client: TestClient, rounds: u32) {
    for _ in 0..rounds {
        let write = "BEGIN; CREATE TEMP TABLE IF NOT EXISTS scratch (n int); INSERT INTO scratch VALUES (1)";
        client.batch_execute(write).await.expect("it is written");
        client.batch_execute("SELECT pg_sleep(0.02); ROLLBACK").await.expect("it is taken back");
    }
}

#[tokio::test]
async fn transactions_that_roll_back_while_the_new_slot_is_made_are_no_obstacle() {
    let Some(world) = InboxDatabase::create().await else { return };
    drop_slot_and_insert(&world, 50).await;
    let mut rolling = JoinSet::new();
    for _ in 0..3 {
        rolling.spawn(roll_back(world.connect().await, 150));
    }
    world.succeed(["slot", "recover", "--yes"]).await;
    rolling.join_all().await;
    world.catch_up().await;
    let verdict = world.check(&world.committed().await);
    assert!(verdict.lost.is_empty() && verdict.reordered.is_empty(), "{verdict}");
}

#[tokio::test]
async fn the_transaction_that_delays_the_new_slot_is_reported() {
    let Some(world) = InboxDatabase::create().await else { return };
    drop_slot_and_insert(&world, 10).await;
    let open = world.connect().await;
    open.batch_execute("BEGIN; SELECT pg_current_xact_id()").await.expect("a transaction");
    let recover = world.command(["slot", "recover", "--yes"]).start();
    recover.wait_for_line(DEADLINE, "the new slot waits for a transaction to end: process").await;
    open.batch_execute("COMMIT").await.expect("it ends");
    let done = recover.finish(DEADLINE).await;
    assert_eq!(done.code, Some(0), "{}", done.text);
}

#[tokio::test]
async fn a_relay_that_may_recovers_by_itself_while_producers_write() {
    let Some(world) = InboxDatabase::create().await else { return };
    let producer = Producer::start(world.url(), Duration::from_millis(5));
    world.catch_up().await;
    world.execute(&format!("SELECT pg_drop_replication_slot('{}')", world.name())).await;
    let rows = "SELECT count(*) FROM app_outbox";
    let lost_at = world.number(rows).await;
    wait_until(DEADLINE, "rows that no slot has", async || {
        (world.number(rows).await > lost_at + 100).then_some(())
    })
    .await;
    let relay = world.start_relay(["--on-slot-lost", "recover"]).await;
    let goal = usize::try_from(lost_at + 300).expect("few rows");
    wait_until(DEADLINE, "rows of the producer", async || (stored(&world) > goal).then_some(()))
        .await;
    producer.stop().await;
    world.wait_confirmed(DEADLINE).await;
    drop(relay);
    world.wait_slot_free(DEADLINE).await;
    world.catch_up().await;
    let verdict = world.check(&world.committed().await);
    assert!(verdict.lost.is_empty() && verdict.reordered.is_empty(), "{verdict}");
}

#[tokio::test]
async fn rows_that_are_parked_or_dead_are_not_published_again_by_a_recovery() {
    let Some(world) = InboxDatabase::create().await else { return };
    let bad = "00000000-0000-4000-8000-00000000dead";
    world.pubsub.fault(&format!("event_id={bad},reject=INVALID_ARGUMENT"));
    world.pubsub.fault("key=v-1,reject=PERMISSION_DENIED");
    let mut relay = world.start_relay(["--park-after", "200ms"]).await;
    world
        .execute(&format!(
            "INSERT INTO app_outbox (id, aggregatetype, aggregateid, event_type, version, payload)
             VALUES ('{bad}', 'video', 'v-9', 'test.poison', 0, '{{\"n\": 0}}')"
        ))
        .await;
    Workload::of_rows(60).insert(world.client()).await.expect("rows");
    wait_until(DEADLINE, "parked and dead rows", async || {
        let retrying = world.dispatch_count("retrying").await;
        (retrying == 20 && world.dispatch_count("dead").await == 1).then_some(())
    })
    .await;
    assert_eq!(relay.terminate(DEADLINE).await, Some(0));
    world.execute(&format!("SELECT pg_drop_replication_slot('{}')", world.name())).await;
    let more = Workload { first_number: 60, ..Workload::of_rows(60) };
    more.insert(world.client()).await.expect("rows");
    world.pubsub.heal();

    world.succeed(["slot", "recover", "--yes"]).await;
    let _relay = world.start_relay([]).await;
    world.wait_confirmed(DEADLINE).await;
    world.wait_dispatch(DEADLINE, "retrying", 0).await;

    assert_eq!(world.dispatch_count("dead").await, 1, "the dead row stays dead");
    let mut committed = world.committed().await;
    committed.retain(|row| row.event_id != bad);
    let verdict = world.check(&committed);
    assert!(verdict.lost.is_empty() && verdict.reordered.is_empty(), "{verdict}");
}

#[tokio::test]
async fn a_slot_that_the_server_invalidated_is_recovered() {
    let Some(installation) = installation_or_skip() else { return };
    let settings = [
        ("wal_level", "logical"),
        ("max_wal_size", "48MB"),
        ("min_wal_size", "32MB"),
        ("max_slot_wal_keep_size", "32MB"),
    ];
    let server = PrivatePostgres::start(&installation, &settings).expect("a server");
    let Some(world) = InboxDatabase::create_at(&server.url("postgres")).await else { return };
    Workload::of_rows(30).insert(world.client()).await.expect("rows");
    world.catch_up().await;
    let more = Workload { first_number: 30, ..Workload::of_rows(70) };
    more.insert(world.client()).await.expect("rows");
    for _ in 0..100 {
        world
            .execute("SELECT pg_logical_emit_message(false, 'foreign', repeat('x', 1 << 20))")
            .await;
    }
    world.execute("CHECKPOINT; SELECT pg_switch_wal(); CHECKPOINT").await;
    assert_eq!(world.run(["run", "--on-slot-lost", "stop"]).await.code, Some(5));

    world.succeed(["slot", "recover", "--yes"]).await;
    world.catch_up().await;
    let verdict = world.check(&world.committed().await);
    assert!(verdict.lost.is_empty() && verdict.reordered.is_empty(), "{verdict}");
}

#[tokio::test]
async fn a_recovery_that_is_killed_continues_with_the_first_row_that_is_not_on_record_as_settled() {
    let Some(world) = InboxDatabase::create().await else { return };
    drop_slot_and_insert(&world, 12_000).await;
    world.succeed(["slot", "recover", "--yes"]).await;
    let before = stored(&world);
    // Slow enough that the progress is recorded before the kill.
    world.pubsub.fault("delay=400ms");
    let dying = world.command(["run", "--until-caught-up"]);
    let died = dying.env("WALRELAY_FAILPOINT", "after-reply=10").finish(DEADLINE).await;
    assert_eq!(died.code, None, "{}", died.text);
    world.pubsub.heal();
    let first = stored(&world) - before;
    let place = "SELECT coalesce((operation #>> '{place,number}')::int8, 0) FROM app_outbox_relay";
    let noted = usize::try_from(world.number(place).await).expect("a count");
    assert!(noted > 0, "{first} rows were stored, and no place is noted");
    world.catch_up().await;
    let verdict = world.check(&world.committed().await);
    assert!(verdict.lost.is_empty() && verdict.reordered.is_empty(), "{verdict}");
    let repeated = stored(&world) - before - 12_000;
    assert!(repeated <= first - noted, "{first} stored, {noted} noted, {repeated} repeated");
}

#[tokio::test]
async fn a_row_that_no_message_can_hold_is_dead_after_a_recovery_and_no_other_row_comes_twice() {
    let Some(world) = InboxDatabase::create().await else { return };
    drop_slot_and_insert(&world, 100).await;
    world
        .execute(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             VALUES ('video', 'v-1', 'test.large', 1000000, to_jsonb(repeat('x', 11000000)))",
        )
        .await;
    let id = "SELECT event_id FROM app_outbox_dispatch WHERE error_code = 'TOO_LARGE'
                 AND status = 'dead' AND length(message) < 1000";
    world.succeed(["slot", "recover", "--yes"]).await;
    world.catch_up().await;
    let rows = world.client().query(id, &[]).await.expect("dead rows");
    assert_eq!(rows.len(), 1);
    let retried = world.run(["dispatch", "retry", rows[0].get(0)]).await;
    assert_eq!(retried.code, Some(2), "{}", retried.text);
    let mut committed = world.committed().await;
    committed.retain(|row| row.event_id != rows[0].get::<_, String>(0));
    let verdict = world.check(&committed);
    assert!(verdict.lost.is_empty() && verdict.reordered.is_empty(), "{verdict}");
}

#[tokio::test]
async fn a_slot_that_is_not_lost_is_left_alone() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.catch_up().await;
    let done = world.run(["slot", "recover", "--yes"]).await;
    assert_eq!(done.code, Some(2), "{}", done.text);
    assert!(done.text.contains("is not lost"), "{}", done.text);
    world.catch_up().await;
}

#[tokio::test]
async fn recorded_rows_do_not_overtake_an_earlier_row_of_their_key_that_was_not_recorded() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.insert_events(3, 9).await;
    world.catch_up().await;
    let settled = "SELECT settled_xid::text || ' ' || settled_lsn::text FROM app_outbox_relay";
    let settled: String = world.client().query_one(settled, &[]).await.expect("a row").get(0);
    let (xid, lsn) = settled.split_once(' ').expect("two values");
    // The topic is missing, so the rows are recorded.
    world.insert_events_of(("audio", "made"), 1, 5).await;
    world.succeed(["run", "--until-caught-up", "--park-after", "500ms"]).await;
    assert_eq!(world.dispatch_count("retrying").await, 5);
    // As if the relay had ended before it recorded the row that was in flight.
    let first = "DELETE FROM app_outbox_dispatch WHERE (commit_lsn, tx_index) =
        (SELECT commit_lsn, tx_index FROM app_outbox_dispatch ORDER BY 1, 2 LIMIT 1)";
    world.execute(first).await;
    let back = format!("UPDATE app_outbox_relay SET settled_xid = '{xid}', settled_lsn = '{lsn}'");
    world.execute(&back).await;
    world.execute(&format!("SELECT pg_drop_replication_slot('{}')", world.name())).await;
    world.pubsub.create_topic("audio.events");

    world.succeed(["slot", "recover", "--yes"]).await;
    world.catch_up().await;
    let messages = world.pubsub.emulator().published(&topic("audio.events"));
    let versions: Vec<_> = messages.iter().filter_map(|one| one.attribute("version")).collect();
    assert!(versions.is_sorted_by_key(|version| version.parse::<u32>().ok()), "{versions:?}");
    assert_eq!(versions.len(), 5, "{versions:?}");
}

#[tokio::test]
async fn a_recovery_by_time_begins_earlier_when_it_is_run_again_with_an_earlier_time() {
    let Some(world) = InboxDatabase::create().await else { return };
    drop_slot_and_insert(&world, 30).await;
    let needless = world.run(["slot", "recover", "--from-time", "1s", "--yes"]).await;
    assert_eq!(needless.code, Some(2), "{}", needless.text);
    assert!(needless.text.contains("recovery-time-needless"), "{}", needless.text);
    // As after a restore on another server.
    world.execute("UPDATE app_outbox_relay SET system_identifier = '1', origin = '{}'").await;
    world.succeed(["slot", "recover", "--from-time", "2999-01-01T00:00:00Z", "--yes"]).await;
    let dry_run = ["slot", "recover", "--from-time", "1d", "--dry-run"];
    world.succeed(dry_run).await;
    let since = "SELECT count(*) FROM app_outbox_relay WHERE operation ->> 'since' LIKE '2999%'";
    assert_eq!(world.number(since).await, 1, "a dry run changes nothing");
    world.succeed(["slot", "recover", "--from-time", "1d", "--yes"]).await;
    // A later time leaves nothing out.
    world.succeed(["slot", "recover", "--from-time", "1s", "--yes"]).await;
    world.catch_up().await;
    let verdict = world.check(&world.committed().await);
    assert!(verdict.lost.is_empty(), "{verdict}");
}
