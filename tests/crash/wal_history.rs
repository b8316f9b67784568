//! A database that returns with another history or another slot. Rows settled in one history never
//! count as settled in the next (I11). Rows known to be settled are not published again.

use std::collections::HashSet;
use std::time::Duration;

use tokio::time::sleep;
use walrelay_private_postgres::PrivatePostgres;
use walrelay_testkit::checker::Committed;
use walrelay_testkit::outbox::Workload;
use walrelay_testkit::postgres::{TestClient, installation_or_skip};
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase};

const SETTLED: &str = "SELECT (settled_lsn - '0/0')::int8 FROM app_outbox_relay";

async fn own_server() -> Option<(InboxDatabase, PrivatePostgres)> {
    own_server_with(&[]).await
}

async fn own_server_with(settings: &[(&str, &str)]) -> Option<(InboxDatabase, PrivatePostgres)> {
    let installation = installation_or_skip()?;
    let server = PrivatePostgres::start(&installation, settings).expect("a server starts");
    let world = InboxDatabase::create_at(&server.url("postgres")).await?;
    Some((world, server))
}

fn rows_from(first_number: u32, rows_count: u32) -> Workload {
    Workload { first_number, ..Workload::of_rows(rows_count) }
}

/// Publishes these rows with a relay, and then stops the relay gracefully.
async fn publish_and_stop(world: &InboxDatabase, rows: Workload) {
    let mut relay = world.start_relay([]).await;
    let inserted = rows.insert(world.client()).await.expect("rows are inserted");
    wait_published(world, &inserted).await;
    assert_eq!(relay.terminate(DEADLINE).await, Some(0));
}

/// Waits for these specific rows. A count could be reached by duplicates of earlier rows, which a
/// relay may publish again after a crash.
async fn wait_published(world: &InboxDatabase, rows: &[Committed]) {
    wait_until(DEADLINE, "these rows to be published", async || {
        let stored = world.pubsub.stored();
        let published: HashSet<&str> = stored.iter().map(|it| it.event_id.as_str()).collect();
        rows.iter().all(|row| published.contains(row.event_id.as_str())).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_graceful_stop_of_both_repeats_nothing() {
    let Some((mut world, mut server)) = own_server().await else { return };
    publish_and_stop(&world, rows_from(0, 1_000)).await;

    // Before version 17, a server does not save the slot's confirmed position at a shutdown.
    server.restart().unwrap();
    world.reconnect().await;
    publish_and_stop(&world, rows_from(1_000, 10)).await;

    world.check(&world.committed().await).assert_exactly_once();
    drop(world);
    drop(server);
}

#[tokio::test]
async fn a_crash_of_both_loses_nothing_and_is_not_taken_for_another_slot() {
    let Some((mut world, mut server)) = own_server().await else { return };
    for turn in 0..3 {
        let mut relay = world.start_relay([]).await;
        let inserted = rows_from(turn * 100, 100).insert(world.client()).await.unwrap();
        // After each checkpoint, the next confirmation moves the slot's `restart_lsn` to the
        // checkpoint.
        world.execute("CHECKPOINT").await;
        wait_published(&world, &inserted).await;
        if turn == 1 {
            world.wait_confirmed(DEADLINE).await;
        }
        relay.kill();
        server.crash().unwrap();
        server.restart().unwrap();
        world.reconnect().await;
    }
    publish_and_stop(&world, rows_from(300, 10)).await;
    world.check(&world.committed().await).assert_clean();
    drop(world);
    drop(server);
}

#[tokio::test]
async fn a_promoted_standby_keeps_its_own_record() {
    let Some((mut world, mut primary)) = own_server().await else { return };
    publish_and_stop(&world, rows_from(0, 10)).await;
    primary.stop_fast().unwrap();
    let backup = primary.backup().unwrap();
    primary.restart().unwrap();
    world.reconnect().await;
    let standby = primary.start_standby(&backup).unwrap();
    let on_standby = TestClient::connect(&standby.url(world.name())).await;

    // The standby receives no more WAL, so the following rows are only in the old history.
    on_standby.batch_execute("ALTER SYSTEM SET primary_conninfo = ''").await.unwrap();
    on_standby.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    wait_until(DEADLINE, "the standby to stand alone", async || {
        let sql = "SELECT count(*) FROM pg_stat_wal_receiver";
        let row = on_standby.query_one(sql, &[]).await.unwrap();
        (row.get::<_, i64>(0) == 0).then_some(())
    })
    .await;
    let settled_there: i64 = on_standby.query_one(SETTLED, &[]).await.unwrap().get(0);
    let both = format!(
        "postgresql://postgres@127.0.0.1:{},127.0.0.1:{}/{}",
        primary.port(),
        standby.port(),
        world.name()
    );
    let relay = world.relay(["--on-slot-lost", "stop"]).env("DATABASE_URL", &both).start();
    relay.wait_for_line(DEADLINE, "streaming").await;
    let goal = world.pubsub.stored_count() + 5;
    rows_from(10, 5).insert(world.client()).await.unwrap();
    world.pubsub.wait_stored(DEADLINE, goal).await;
    wait_until(DEADLINE, "the rows to be on record", async || {
        (world.number(SETTLED).await > settled_there).then_some(())
    })
    .await;

    on_standby.batch_execute("SELECT pg_promote(true)").await.unwrap();
    rows_from(15, 5).insert(world.client()).await.unwrap();
    world.pubsub.wait_stored(DEADLINE, goal + 5).await;
    primary.crash().unwrap();

    // The new primary has no slot, so the relay exits instead of continuing.
    let mut relay = relay;
    assert_eq!(relay.wait_ended(DEADLINE).await.code(), Some(5));
    let settled: i64 = on_standby.query_one(SETTLED, &[]).await.unwrap().get(0);
    assert_eq!(settled, settled_there, "the old primary's position is in the new one's record");
    drop(on_standby);
    drop(world);
}

#[tokio::test]
async fn an_older_backup_goes_on_from_its_own_record() {
    let Some((mut world, mut server)) = own_server().await else { return };
    publish_and_stop(&world, rows_from(0, 10)).await;
    server.stop_fast().unwrap();
    let backup = server.backup().unwrap();
    server.restart().unwrap();
    world.reconnect().await;
    publish_and_stop(&world, rows_from(10, 500)).await;

    server.stop_fast().unwrap();
    server.restore(&backup).unwrap();
    server.restart().unwrap();
    world.reconnect().await;
    let goal = world.pubsub.stored_count() + 20;
    publish_and_stop(&world, rows_from(1_000, 20)).await;

    assert_eq!(world.pubsub.stored_count(), goal, "every row of the restored history, once");
    drop(world);
    drop(server);
}

/// A relay that waits makes a first few attempts in this time.
const SEVERAL_ATTEMPTS: Duration = Duration::from_secs(4);
const PAUSE: Duration = Duration::from_millis(100);

/// A disk snapshot keeps system identifier and timeline, so new rows get positions that were
/// published before. Only a relay that ran before the restore can know that.
#[tokio::test]
async fn a_running_relay_waits_after_a_restored_disk_snapshot_until_it_is_restarted() {
    let Some((mut world, mut server)) = own_server().await else { return };
    publish_and_stop(&world, rows_from(0, 10)).await;
    server.stop_fast().unwrap();
    let snapshot = server.backup().unwrap();
    server.restart().unwrap();
    world.reconnect().await;
    let mut relay = world.relay([]).start();
    relay.wait_for_line(DEADLINE, "streaming").await;
    let inserted = rows_from(10, 500).insert(world.client()).await.unwrap();
    wait_published(&world, &inserted).await;
    world.wait_confirmed(DEADLINE).await;

    server.stop_fast().unwrap();
    server.restore(&snapshot).unwrap();
    server.restart().unwrap();
    world.reconnect().await;
    let stored = world.pubsub.stored_count();
    let restored = rows_from(1_000, 20).insert(world.client()).await.unwrap();
    let reason = wait_until(DEADLINE, "the relay to wait", async || {
        let body = relay.wait_for_http(DEADLINE, "/readyz", 503).await;
        body.contains("waiting: ").then_some(body)
    })
    .await;
    for words in ["restored from a disk snapshot", "without `--dedupe position`"] {
        assert!(reason.contains(words), "{words:?} is not in {reason}");
    }
    wait_until(DEADLINE, "status and check to report the wait", async || {
        let status = world.succeed(["status"]).await;
        let check = world.run(["check"]).await.text;
        let is_told = |told: &str| told.contains("without `--dedupe position`");
        (is_told(&status) && is_told(&check) && check.contains("server-restored")).then_some(())
    })
    .await;
    // Once the end of WAL has passed the position, it alone proves nothing.
    rows_from(2_000, 2_000).insert(world.client()).await.unwrap();
    for _ in 0..SEVERAL_ATTEMPTS.as_millis() / PAUSE.as_millis() {
        relay.wait_for_http(DEADLINE, "/readyz", 503).await;
        sleep(PAUSE).await;
    }
    relay.wait_for_http(DEADLINE, "/livez", 200).await;
    assert_eq!(world.pubsub.stored_count(), stored, "nothing is published meanwhile");
    assert_eq!(relay.terminate(DEADLINE).await, Some(0));

    publish_and_stop(&world, rows_from(5_000, 1)).await;
    wait_published(&world, &restored).await;
    drop(world);
    drop(server);
}

#[tokio::test]
async fn a_slot_made_by_hand_in_place_of_the_old_one_is_a_gap() {
    let Some((world, server)) = own_server().await else { return };
    publish_and_stop(&world, rows_from(0, 10)).await;
    let slot = world.name();
    world.execute(&format!("SELECT pg_drop_replication_slot('{slot}')")).await;
    rows_from(10, 7).insert(world.client()).await.unwrap();
    let create = format!("SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')");
    world.execute(&create).await;

    let refused = world.relay(["--on-slot-lost", "stop"]).finish(DEADLINE).await;
    assert_eq!(refused.code, Some(5), "{}", refused.text);
    assert!(refused.text.contains("another slot of the same name"), "{}", refused.text);
    let checked = world.run(["check"]).await;
    assert_eq!(checked.code, Some(5), "{}", checked.text);
    drop(world);
    drop(server);
}

#[tokio::test]
async fn a_record_beyond_the_end_of_wal_belongs_to_another_history() {
    let Some((world, server)) = own_server().await else { return };
    publish_and_stop(&world, rows_from(0, 10)).await;
    world.execute("UPDATE app_outbox_relay SET settled_lsn = settled_lsn + 1000000000").await;

    let refused = world.relay(["--on-slot-lost", "stop"]).finish(DEADLINE).await;

    assert_eq!(refused.code, Some(5), "{}", refused.text);
    assert!(refused.text.contains("it lost what was published"), "{}", refused.text);
    drop(world);
    drop(server);
}

#[tokio::test]
async fn rows_skipped_by_advancing_the_slot_are_no_gap() {
    let Some((world, server)) = own_server().await else { return };
    publish_and_stop(&world, rows_from(0, 10)).await;
    rows_from(10, 10).insert(world.client()).await.unwrap();
    world.execute("CHECKPOINT").await;
    let end = world.wal_end().await;
    let to = format!("{:X}/{:X}", end >> 32, end & 0xFFFF_FFFF);
    let advance = ["slot", "advance", "--yes", "--to-lsn", &to, "--discard-rows", "10"];
    world.succeed(advance).await;

    let goal = world.pubsub.stored_count() + 5;
    publish_and_stop(&world, rows_from(20, 5)).await;

    assert_eq!(world.pubsub.stored_count(), goal);
    drop(world);
    drop(server);
}

/// With `synchronous_commit` off, a commit reaches the disk with the next synchronous commit or
/// with the next cycle of the WAL writer. This test has neither. The server writes the slot itself
/// to disk when it is confirmed, because its `restart_lsn` moves to the checkpoint.
#[tokio::test]
async fn a_recorded_row_survives_a_crash_with_synchronous_commit_off() {
    let lazy = [("wal_writer_delay", "10s"), ("checkpoint_timeout", "1d"), ("autovacuum", "off")];
    let Some((mut world, mut server)) = own_server_with(&lazy).await else { return };
    let name = world.name().to_owned();
    world.execute(&format!("ALTER DATABASE {name} SET synchronous_commit = off")).await;
    world.pubsub.fault("key=v-0,reject=INVALID_ARGUMENT");
    let mut relay = world.start_relay(["--park-after", "300ms"]).await;
    for number in [1, 2, 4] {
        rows_from(number, 1).insert(world.client()).await.unwrap();
        world.execute("CHECKPOINT").await;
        world.wait_confirmed(DEADLINE).await;
    }
    let blocker = world.connect().await;
    blocker.batch_execute("BEGIN; LOCK TABLE app_outbox_dispatch IN SHARE MODE").await.unwrap();
    rows_from(6, 1).insert(world.client()).await.unwrap();
    world.execute("CHECKPOINT").await;
    let committed = world.wal_end().await;
    wait_until(DEADLINE, "the row's record to wait for the lock", async || {
        let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted";
        (world.number(waiting).await > 0).then_some(())
    })
    .await;

    blocker.batch_execute("ROLLBACK").await.unwrap();
    wait_until(DEADLINE, "the row to be confirmed", async || {
        (world.confirmed_flush().await >= committed).then_some(())
    })
    .await;
    server.crash().unwrap();
    relay.kill();
    server.restart().unwrap();
    world.reconnect().await;

    assert_eq!(world.dispatch_count("dead").await, 1, "confirmed, and not on record");
    drop(blocker);
    drop(world);
    drop(server);
}
