//! A released slot, and a simulated server upgrade: the slot is dropped, and no row is lost while
//! producers write.

use std::time::Duration;

use walrelay_private_postgres::PrivatePostgres;
use walrelay_testkit::outbox::Workload;
use walrelay_testkit::postgres::installation_or_skip;
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase, Producer};

async fn assert_nothing_lost(world: &InboxDatabase) {
    let verdict = world.check(&world.committed().await);
    assert!(verdict.lost.is_empty() && verdict.reordered.is_empty(), "{verdict}");
    let unfinished = "SELECT count(*) FROM app_outbox_relay WHERE operation IS NOT NULL";
    assert_eq!(world.number(unfinished).await, 0);
}

const SLOTS: &str = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()";

/// Simulates `pg_upgrade`: the same database with the same transaction ids, and another system
/// identifier.
async fn as_if_upgraded(world: &InboxDatabase) {
    world
        .execute(
            "UPDATE app_outbox_relay SET system_identifier = '1',
               operation = CASE WHEN operation IS NOT NULL
                                THEN jsonb_set(operation, '{system_identifier}', '\"1\"') END",
        )
        .await;
}

async fn more_rows(producer: &Producer) {
    let goal = producer.rows_count() + 100;
    wait_until(DEADLINE, "rows of the producer", async || {
        (producer.rows_count() > goal).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_slot_is_released_under_a_running_relay_and_nothing_is_lost_with_producers_writing() {
    let Some(installation) = installation_or_skip() else { return };
    let settings = [("wal_level", "logical")];
    let mut server = PrivatePostgres::start(&installation, &settings).expect("a server");
    let Some(mut world) = InboxDatabase::create_at(&server.url("postgres")).await else { return };
    world.succeed(["anchor", "create", "a"]).await;
    let producer = Producer::start(world.url(), Duration::from_millis(20));
    let relay = world.start_relay(["--on-slot-lost", "recover"]).await;
    world.pubsub.wait_stored(DEADLINE, 200).await;

    let told = world.succeed(["slot", "release", "--yes"]).await;
    assert!(told.contains("and 1 anchor(s)") && told.contains("walrelay slot recover"), "{told}");
    more_rows(&producer).await;
    // No slot is created before the upgrade, because a slot would block the upgrade.
    let body = relay.wait_for_http(DEADLINE, "/readyz", 503).await;
    assert!(body.contains("release"), "{body}");
    assert_eq!(world.number(SLOTS).await, 0);
    // A second run reports the same.
    world.succeed(["slot", "release", "--yes"]).await;

    server.restart().expect("the server comes back");
    world.reconnect().await;
    as_if_upgraded(&world).await;
    relay.wait_for_line(DEADLINE, "the slot is recovered").await;
    more_rows(&producer).await;
    producer.stop().await;
    world.wait_confirmed(DEADLINE).await;
    assert_nothing_lost(&world).await;
    drop(relay);
    drop(world);
}

/// Checks that the command recommends a recovery of the dropped slot, and never an accepted loss.
async fn assert_leads_to_recovery(world: &InboxDatabase, command: &[&str], code: i32) {
    let refused = world.run(command.iter().copied()).await;
    assert_eq!(refused.code, Some(code), "{command:?}: {}", refused.text);
    assert!(refused.text.contains("walrelay slot recover"), "{}", refused.text);
    assert!(!refused.text.contains("discard-rows"), "{}", refused.text);
}

#[tokio::test]
async fn a_released_slot_is_recovered_after_an_upgrade_and_without_one() {
    for is_upgraded in [true, false] {
        let Some(world) = InboxDatabase::create().await else { return };
        Workload::of_rows(60).insert(world.client()).await.expect("rows");
        world.succeed(["run", "--until-caught-up"]).await;
        let told = world.succeed(["slot", "release", "--yes"]).await;
        assert!(told.contains("dropped: slot"), "{told}");
        for command in [&["status"][..], &["init"], &["run", "--until-caught-up"]] {
            let refused = world.run(command.iter().copied()).await;
            assert_eq!(refused.code, Some(3), "{}", refused.text);
            assert!(refused.text.contains("Run `walrelay slot recover`"), "{}", refused.text);
            assert!(!refused.text.contains("finishes it"), "{}", refused.text);
        }
        assert_leads_to_recovery(&world, &["init"], 3).await;
        assert_leads_to_recovery(&world, &["check"], 3).await;
        let script = world.succeed(["init", "--sql"]).await;
        let guard = script.split("-- slot ").nth(1).expect("a guard before the slot");
        let (_, guard) = guard.split_once('\n').expect("a title");
        let error = world.client().batch_execute(guard).await.unwrap_err();
        let hint = error.as_db_error().and_then(|it| it.hint()).unwrap_or_default().to_owned();
        assert!(hint.contains("Recover the released slot"), "{hint}");
        let more = Workload { first_number: 60, ..Workload::of_rows(40) };
        more.insert(world.client()).await.expect("rows");
        if is_upgraded {
            as_if_upgraded(&world).await;
            let again = world.succeed(["slot", "release", "--yes"]).await;
            assert!(again.contains("this one is upgraded\nnext: walrelay slot recover"), "{again}");
            assert!(!again.contains("next: upgrade"), "{again}");
            assert_leads_to_recovery(&world, &["run", "--on-slot-lost", "stop"], 5).await;
            assert_leads_to_recovery(&world, &["check"], 5).await;
            assert_leads_to_recovery(&world, &["init"], 3).await;
        }
        world.succeed(["slot", "recover", "--yes"]).await;
        world.catch_up().await;
        assert_nothing_lost(&world).await;
        let stored = world.pubsub.stored_count();
        assert!((100..=160).contains(&stored), "{stored}: what was settled is not repeated");
        let done = world.run(["slot", "recover", "--yes"]).await;
        assert_eq!(done.code, Some(2), "{}", done.text);
        assert!(done.text.contains("there is nothing to recover"), "{}", done.text);
        assert!(!done.text.contains("set-up"), "{}", done.text);
    }
}

#[tokio::test]
async fn a_release_that_cannot_drain_leaves_everything_as_it_was() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.catch_up().await;
    let held = world.connect().await;
    Workload::of_rows(30).insert(&held).await.expect("rows");
    world.pubsub.fault("reject=UNAVAILABLE");
    let mut prepare = world.command(["slot", "release", "--yes"]).start();
    prepare.wait_for_line(DEADLINE, "draining").await;
    // No other command releases the slot or cancels that meanwhile, and a relay waits.
    let relay = world.relay([]).start();
    relay.wait_for_line(DEADLINE, "another process works on it").await;
    drop(relay);
    for command in [&["slot", "release", "--yes"][..], &["slot", "recover", "--yes"], &["init"]] {
        let refused = world.run(command.iter().copied()).await;
        assert_eq!(refused.code, Some(3), "{}", refused.text);
        assert!(refused.text.contains("a release"), "{}", refused.text);
        assert!(refused.text.contains("Wait for `walrelay slot release`"), "{}", refused.text);
    }
    prepare.signal(walrelay_testkit::process::Signal::Interrupt);
    assert_eq!(prepare.wait_ended(DEADLINE).await.code(), Some(1));
    assert_eq!(world.number(SLOTS).await, 1);
    world.pubsub.heal();
    world.catch_up().await;
    assert_nothing_lost(&world).await;
}

#[tokio::test]
async fn a_killed_release_is_reported_and_cancelled_by_the_next_command() {
    for next in [&["run", "--until-caught-up"][..], &["init"], &["slot", "recover", "--yes"]] {
        let Some(world) = InboxDatabase::create().await else { return };
        world.succeed(["anchor", "create", "a"]).await;
        Workload::of_rows(30).insert(world.client()).await.expect("rows");
        world.catch_up().await;
        let dying = world
            .command(["slot", "release", "--yes"])
            .env("WALRELAY_FAILPOINT", "release-drained");
        let died = dying.finish(DEADLINE).await;
        assert_eq!(died.code, None, "{}", died.text);

        let reset = &["slot", "reset", "--yes", "--to-anchor", "a"];
        for (command, code) in
            [(&["status"][..], 0), (&["check"], 3), (&["anchor", "create", "b"], 3), (reset, 3)]
        {
            let told = world.run(command.iter().copied()).await;
            assert_eq!(told.code, Some(code), "{command:?}: {}", told.text);
            assert!(told.text.contains("the slot still exists"), "{}", told.text);
            assert!(told.text.contains("no process works on it"), "{}", told.text);
            assert!(told.text.contains("walrelay slot release"), "{}", told.text);
            assert!(!told.text.contains("dropped"), "{}", told.text);
        }
        let told = world.succeed(next.iter().copied()).await;
        assert!(told.contains("cancelled"), "{told}");
        world.catch_up().await;
        assert_nothing_lost(&world).await;
        assert_eq!(world.number(SLOTS).await, 2);
        world.succeed(["slot", "release", "--yes"]).await;
        assert_eq!(world.number(SLOTS).await, 0);
    }
}

#[tokio::test]
async fn a_database_that_is_not_the_one_on_record_is_refused_and_a_moment_takes_the_place_of_the_horizon()
 {
    let Some(world) = InboxDatabase::create().await else { return };
    Workload::of_rows(30).insert(world.client()).await.expect("rows");
    world.catch_up().await;
    let at =
        "SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')";
    let moment: String = world.client().query_one(at, &[]).await.expect("a time").get(0);
    let more = Workload { first_number: 30, ..Workload::of_rows(12) };
    more.insert(world.client()).await.expect("rows");
    world.execute(&format!("SELECT pg_drop_replication_slot('{}')", world.name())).await;
    as_if_upgraded(&world).await;
    world
        .execute("UPDATE app_outbox_relay SET origin = jsonb_set(origin, '{database}', '\"1\"')")
        .await;

    let refused = world.run(["slot", "recover", "--yes"]).await;
    assert_eq!(refused.code, Some(5), "{}", refused.text);
    assert!(refused.text.contains("--from-time"), "{}", refused.text);
    let relay = world.relay(["--on-slot-lost", "recover"]).start();
    relay.wait_for_line(DEADLINE, "--from-time").await;
    drop(relay);
    let told = world.succeed(["slot", "recover", "--yes", "--from-time", &moment]).await;
    assert!(told.contains("12 row(s)"), "{told}");
    world.catch_up().await;
    assert_nothing_lost(&world).await;
    assert_eq!(world.pubsub.stored_count(), 42);
}

/// Counts the failover slots of the database.
const FAILOVER: &str =
    "SELECT count(*) FROM pg_replication_slots WHERE failover AND database = current_database()";

#[tokio::test]
async fn a_failover_slot_that_is_gone_is_one_again_after_its_recovery() {
    let Some(world) = InboxDatabase::create_empty_since(17).await else { return };
    world.succeed(["init", "--failover"]).await;
    for has_streamed in [false, true] {
        if has_streamed {
            world.catch_up().await;
        }
        // As after a promotion before the slot was synchronised.
        world.execute(&format!("SELECT pg_drop_replication_slot('{}')", world.name())).await;
        assert_eq!(world.number(SLOTS).await, 0);
        world.succeed(["slot", "recover", "--yes"]).await;
        world.catch_up().await;
        assert_eq!(world.number(FAILOVER).await, 1);
    }
}

#[tokio::test]
async fn a_failover_slot_that_was_released_is_one_again_afterwards() {
    for is_upgraded in [true, false] {
        let Some(world) = InboxDatabase::create_empty_since(17).await else { return };
        world.succeed(["init", "--failover"]).await;
        world.catch_up().await;
        world.succeed(["slot", "release", "--yes"]).await;
        assert_eq!(world.number(SLOTS).await, 0);
        if is_upgraded {
            as_if_upgraded(&world).await;
        }
        world.succeed(["slot", "recover", "--yes"]).await;
        assert_eq!(world.number(FAILOVER).await, 1);
    }
}

#[tokio::test]
async fn a_recovery_that_was_begun_before_an_upgrade_is_finished_after_it() {
    let Some(world) = InboxDatabase::create().await else { return };
    Workload::of_rows(30).insert(world.client()).await.expect("rows");
    world.catch_up().await;
    world.execute(&format!("SELECT pg_drop_replication_slot('{}')", world.name())).await;
    let more = Workload { first_number: 30, ..Workload::of_rows(10) };
    more.insert(world.client()).await.expect("rows");
    world.succeed(["slot", "recover", "--yes"]).await;
    as_if_upgraded(&world).await;
    world.succeed(["slot", "recover", "--yes"]).await;
    world.catch_up().await;
    assert_nothing_lost(&world).await;
}

#[tokio::test]
async fn after_a_dump_and_restore_status_names_the_recovery_by_time_which_works() {
    let Some(world) = InboxDatabase::create().await else { return };
    Workload::of_rows(10).insert(world.client()).await.expect("the rows are inserted");
    world.catch_up().await;
    world.succeed(["slot", "release", "--yes"]).await;
    as_if_upgraded(&world).await;
    // The tables of a restored dump have other object ids.
    world.execute("UPDATE app_outbox_relay SET origin = '{}'").await;
    let more = Workload { first_number: 100, ..Workload::of_rows(5) };
    more.insert(world.client()).await.expect("the rows are inserted");
    let status = world.run(["status"]).await.text;
    assert!(status.contains("walrelay slot recover --from-time TIME"), "{status}");
    let refused = world.run(["slot", "recover", "--yes"]).await;
    assert_eq!(refused.code, Some(5), "{}", refused.text);
    assert!(refused.text.contains("positions-of-another-database"), "{}", refused.text);
    world.succeed(["slot", "recover", "--from-time", "1h", "--yes"]).await;
    world.catch_up().await;
    assert_nothing_lost(&world).await;
}
