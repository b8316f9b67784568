//! Upgrades with the real `pg_upgrade`. Skipped if no Postgres 17 or newer is installed.

use std::time::Duration;

use walrelay_private_postgres::{PrivatePostgres, StartError};
use walrelay_testkit::outbox::Workload;
use walrelay_testkit::postgres::upgrade_or_skip;
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase, Producer};

const LOGICAL: [(&str, &str); 1] = [("wal_level", "logical")];

const FAILOVER: &str = "SELECT count(*) FROM pg_replication_slots WHERE failover";

async fn rows_from(world: &InboxDatabase, first_number: u32, count: u32) {
    let rows = Workload { first_number, ..Workload::of_rows(count) };
    rows.insert(world.client()).await.expect("rows");
}

/// Creates a test environment on the old server, with a failover slot.
async fn with_failover_slot(server: &PrivatePostgres) -> Option<InboxDatabase> {
    let world = InboxDatabase::create_at(&server.url("postgres")).await?;
    world.succeed(["slot", "drop", "--yes"]).await;
    world.succeed(["init", "--failover"]).await;
    assert_eq!(world.number(FAILOVER).await, 1);
    Some(world)
}

/// Moves the slot past the relay's own last record, which is all that is left. Otherwise
/// `pg_upgrade` refuses the slot.
async fn move_to_the_end(world: &InboxDatabase) {
    let name = world.name();
    let to_the_end = format!(
        "SELECT pg_replication_slot_advance('{name}', pg_current_wal_flush_lsn()); CHECKPOINT"
    );
    world.execute(&to_the_end).await;
}

#[tokio::test]
async fn a_slot_that_pg_upgrade_carried_over_is_recovered_and_nothing_is_lost() {
    let Some((old, new)) = upgrade_or_skip() else { return };
    let mut server = PrivatePostgres::start(&old, &LOGICAL).expect("a server");
    let Some(mut world) = with_failover_slot(&server).await else { return };
    rows_from(&world, 0, 60).await;
    world.catch_up().await;
    // A graceful stop is not enough, because the slot has not confirmed the last write to the
    // relay's own record.
    match server.upgrade(&new, &LOGICAL) {
        Err(StartError::Failed { output, .. }) => {
            assert!(output.contains("logical replication slots"), "{output}");
        }
        other => panic!("{other:?}"),
    }
    server.restart().expect("the old server");
    world.reconnect().await;
    move_to_the_end(&world).await;
    server.upgrade(&new, &LOGICAL).expect("the new server");
    world.reconnect().await;
    assert_eq!(world.number(FAILOVER).await, 1);

    rows_from(&world, 60, 40).await;
    for command in ["run", "check"] {
        let command = world.command([command]).env("WALRELAY_ON_SLOT_LOST", "stop");
        let refused = command.finish(DEADLINE).await;
        assert_eq!(refused.code, Some(5), "{}", refused.text);
        assert!(refused.text.contains("walrelay slot recover"), "{}", refused.text);
    }
    world.succeed(["slot", "recover", "--yes"]).await;
    world.catch_up().await;
    let verdict = world.check(&world.committed().await);
    assert!(verdict.lost.is_empty() && verdict.reordered.is_empty(), "{verdict}");
    assert_eq!(world.number(FAILOVER).await, 1);
}

#[tokio::test]
async fn a_slot_that_pg_upgrade_carried_over_is_recovered_by_a_relay_and_nothing_is_lost() {
    let Some((old, new)) = upgrade_or_skip() else { return };
    let mut server = PrivatePostgres::start(&old, &LOGICAL).expect("a server");
    let Some(mut world) = with_failover_slot(&server).await else { return };
    rows_from(&world, 0, 60).await;
    world.catch_up().await;
    move_to_the_end(&world).await;
    server.upgrade(&new, &LOGICAL).expect("the new server");
    world.reconnect().await;
    rows_from(&world, 60, 40).await;
    let relay = world.start_relay(["--on-slot-lost", "recover"]).await;
    relay.wait_for_line(DEADLINE, "the slot is recovered").await;
    rows_from(&world, 100, 40).await;
    world.wait_confirmed(DEADLINE).await;
    let verdict = world.check(&world.committed().await);
    assert!(verdict.lost.is_empty() && verdict.reordered.is_empty(), "{verdict}");
    assert_eq!(world.number(FAILOVER).await, 1);
    drop(relay);
    drop(world);
}

#[tokio::test]
async fn an_upgrade_of_a_released_slot_loses_nothing_with_producers_writing_throughout() {
    let Some((old, new)) = upgrade_or_skip() else { return };
    let mut server = PrivatePostgres::start(&old, &LOGICAL).expect("a server");
    let Some(mut world) = with_failover_slot(&server).await else { return };
    world.succeed(["anchor", "create", "a"]).await;
    let producer = Producer::start(world.url(), Duration::from_millis(20));
    let relay = world.start_relay(["--on-slot-lost", "recover"]).await;
    world.pubsub.wait_stored(DEADLINE, 200).await;
    world.succeed(["slot", "release", "--yes"]).await;

    server.upgrade(&new, &LOGICAL).expect("the new server");
    relay.wait_for_line(DEADLINE, "the slot is recovered").await;
    let goal = producer.rows_count() + 100;
    wait_until(DEADLINE, "rows of the producer", async || {
        (producer.rows_count() > goal).then_some(())
    })
    .await;
    producer.stop().await;
    world.reconnect().await;
    world.wait_confirmed(DEADLINE).await;
    let verdict = world.check(&world.committed().await);
    assert!(verdict.lost.is_empty() && verdict.reordered.is_empty(), "{verdict}");
    assert_eq!(world.number(FAILOVER).await, 1);
    drop(relay);
    drop(world);
}
