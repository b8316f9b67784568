//! Rows that the slot left out because its publication was changed. No later start passes them, and
//! `slot recover` publishes them.

use walrelay_testkit::outbox::Workload;
use walrelay_tests::{DEADLINE, InboxDatabase};

/// Creates a test environment whose rows are published, and whose relay has stopped.
async fn published_world() -> Option<InboxDatabase> {
    let world = InboxDatabase::create().await?;
    insert(&world, 0).await;
    world.catch_up().await;
    Some(world)
}

async fn insert(world: &InboxDatabase, first_number: u32) {
    let rows = Workload { first_number, ..Workload::of_rows(5) };
    rows.insert(world.client()).await.expect("the rows are inserted");
}

async fn alter(world: &InboxDatabase, change: &str) {
    world.execute(&format!("ALTER PUBLICATION {} {change}", world.name())).await;
}

/// Checks that each command reports the lost slot, and names `slot recover` as the fix.
async fn assert_lost(world: &InboxDatabase) {
    for command in [&["run", "--until-caught-up"][..], &["status"], &["init"]] {
        let refused = world.run(command.iter().copied()).await;
        assert_eq!(refused.code, Some(5), "{command:?}: {}", refused.text);
        assert!(refused.text.contains("walrelay slot recover"), "{command:?}: {}", refused.text);
    }
    let checked = world.run(["check"]).await;
    assert!(checked.text.contains("[slot-lost]"), "{}", checked.text);
    assert!(checked.text.contains("walrelay slot recover"), "{}", checked.text);
}

/// Checks that every row is published. Copies of a recovery have positions of their own.
async fn assert_none_lost(world: &InboxDatabase) {
    let verdict = world.check(&world.committed().await);
    assert!(verdict.lost.is_empty(), "{verdict:?}");
}

/// Follows the fix, and checks that every row is published.
async fn assert_recovers(world: &InboxDatabase) {
    world.succeed(["slot", "recover", "--yes"]).await;
    insert(world, 1_000).await;
    world.catch_up().await;
    assert_none_lost(world).await;
    assert!(world.succeed(["check"]).await.contains("publishes the inserts of every outbox table"));
    world.catch_up().await;
}

#[tokio::test]
async fn rows_of_a_table_taken_out_under_a_relay_are_published_by_slot_recover() {
    let Some(world) = published_world().await else { return };
    let mut relay = world.start_relay([]).await;
    alter(&world, "DROP TABLE app_outbox").await;
    insert(&world, 100).await;
    alter(&world, "ADD TABLE app_outbox").await;
    insert(&world, 200).await;
    assert_eq!(relay.wait_ended(DEADLINE).await.code(), Some(3));
    assert!(relay.lines().join("\n").contains("walrelay slot recover"), "{:?}", relay.lines());
    assert_lost(&world).await;
    assert_recovers(&world).await;
}

#[tokio::test]
async fn rows_of_a_table_taken_out_while_no_relay_runs_are_published_by_slot_recover() {
    let Some(world) = published_world().await else { return };
    alter(&world, "DROP TABLE app_outbox").await;
    insert(&world, 100).await;
    alter(&world, "ADD TABLE app_outbox").await;
    assert_lost(&world).await;
    assert_recovers(&world).await;
}

#[tokio::test]
async fn slot_recover_puts_the_table_back_first() {
    let Some(world) = published_world().await else { return };
    alter(&world, "DROP TABLE app_outbox").await;
    insert(&world, 100).await;
    assert_lost(&world).await;
    assert_recovers(&world).await;
}

#[tokio::test]
async fn inserts_left_out_while_no_relay_runs_are_published_by_slot_recover() {
    let Some(world) = published_world().await else { return };
    alter(&world, "SET (publish = 'truncate')").await;
    insert(&world, 100).await;
    let refused = world.run(["slot", "recover", "--yes"]).await;
    assert!(refused.text.contains("SET (publish = 'insert')"), "{}", refused.text);
    alter(&world, "SET (publish = 'insert')").await;
    assert_lost(&world).await;
    assert_recovers(&world).await;
}

#[tokio::test]
async fn a_dropped_publication_is_restored_by_slot_recover() {
    let Some(world) = published_world().await else { return };
    world.execute(&format!("DROP PUBLICATION {}", world.name())).await;
    insert(&world, 100).await;
    assert_lost(&world).await;
    assert_recovers(&world).await;
}

#[tokio::test]
async fn a_publication_created_again_is_noticed_and_healed_by_slot_recover() {
    let Some(world) = published_world().await else { return };
    world.execute(&format!("DROP PUBLICATION {}", world.name())).await;
    insert(&world, 100).await;
    let create = format!("CREATE PUBLICATION {} FOR TABLE app_outbox", world.name());
    world.execute(&format!("{create} WITH (publish = 'insert')")).await;
    assert_lost(&world).await;
    assert_recovers(&world).await;
}

#[tokio::test]
async fn a_relay_that_waits_behind_the_gap_continues_after_slot_recover() {
    let Some(world) = published_world().await else { return };
    alter(&world, "DROP TABLE app_outbox").await;
    insert(&world, 100).await;
    alter(&world, "ADD TABLE app_outbox").await;
    let relay = world.relay([]).start();
    relay.wait_for_line(DEADLINE, "slot-lost").await;
    world.succeed(["slot", "recover", "--yes"]).await;
    world.pubsub.wait_stored(DEADLINE, 10).await;
    assert_none_lost(&world).await;
    drop(relay);
}

#[tokio::test]
async fn a_table_added_without_rows_is_no_gap() {
    let Some(world) = published_world().await else { return };
    world.execute("CREATE TABLE second_outbox (LIKE app_outbox INCLUDING ALL)").await;
    alter(&world, "ADD TABLE second_outbox").await;
    insert(&world, 100).await;
    let tables = ["--outbox-table", "public.app_outbox", "--outbox-table", "public.second_outbox"];
    let run = ["run", "--until-caught-up"].into_iter().chain(tables);
    world.succeed(run).await;
    world.check(&world.committed().await).assert_exactly_once();
}
