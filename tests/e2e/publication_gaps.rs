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

/// Inserts rows while the publication does not have the table.
async fn insert_left_out(world: &InboxDatabase) {
    alter(world, "DROP TABLE app_outbox").await;
    insert(world, 100).await;
    alter(world, "ADD TABLE app_outbox").await;
}

/// Gives the name and the publication of the outbox table to a new table.
async fn replace_table(world: &InboxDatabase) {
    world.execute("ALTER TABLE app_outbox RENAME TO old_outbox").await;
    world.execute("CREATE TABLE app_outbox (LIKE old_outbox INCLUDING ALL)").await;
    alter(world, "SET TABLE app_outbox").await;
}

async fn insert_into(world: &InboxDatabase, table: &str) {
    world
        .execute(&format!(
            "INSERT INTO {table} (aggregatetype, aggregateid, event_type, version, payload)
             VALUES ('video', 'v', 'made', 1, '{{}}')"
        ))
        .await;
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
    let checked = world.succeed(["check", "-v"]).await;
    assert!(checked.contains("publishes the inserts of every outbox table"), "{checked}");
    world.catch_up().await;
}

#[tokio::test]
async fn rows_of_a_table_taken_out_under_a_relay_are_published_by_slot_recover() {
    let Some(world) = published_world().await else { return };
    let mut relay = world.start_relay([]).await;
    insert_left_out(&world).await;
    insert(&world, 200).await;
    assert_eq!(relay.wait_ended(DEADLINE).await.code(), Some(3));
    assert!(relay.lines().join("\n").contains("walrelay slot recover"), "{:?}", relay.lines());
    assert_lost(&world).await;
    assert_recovers(&world).await;
}

#[tokio::test]
async fn rows_of_a_table_taken_out_while_no_relay_runs_are_published_by_slot_recover() {
    let Some(world) = published_world().await else { return };
    insert_left_out(&world).await;
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
    insert_left_out(&world).await;
    let relay = world.relay([]).start();
    relay.wait_for_line(DEADLINE, "slot-lost").await;
    world.succeed(["slot", "recover", "--yes"]).await;
    world.pubsub.wait_stored(DEADLINE, 10).await;
    assert_none_lost(&world).await;
    drop(relay);
}

#[tokio::test]
async fn a_table_added_without_rows_is_no_gap_and_one_with_rows_is_refused() {
    let Some(world) = published_world().await else { return };
    world.execute("CREATE TABLE second_outbox (LIKE app_outbox INCLUDING ALL)").await;
    insert_into(&world, "second_outbox").await;
    let add = ["init", "--outbox-table", "public.app_outbox,public.second_outbox"];
    let refused = world.run(add).await;
    assert!(refused.text.contains("has rows that slot"), "{}", refused.text);
    // The record is as before, so relays and `init` continue.
    world.catch_up().await;
    world.succeed(["init"]).await;
    world.execute("DELETE FROM second_outbox").await;
    world.succeed(add).await;
    insert(&world, 100).await;
    insert_into(&world, "second_outbox").await;
    world.catch_up().await;
    world.pubsub.wait_stored(DEADLINE, 11).await;
    assert_none_lost(&world).await;
}

#[tokio::test]
async fn an_added_table_that_leaves_the_publication_before_a_relay_starts_is_recovered() {
    let Some(world) = published_world().await else { return };
    world.execute("CREATE TABLE second_outbox (LIKE app_outbox INCLUDING ALL)").await;
    let add = ["init", "--outbox-table", "public.app_outbox,public.second_outbox"];
    world.succeed(add).await;
    insert_into(&world, "second_outbox").await;
    let before = world.pubsub.stored_count();
    let publication = world.name();
    world.execute(&format!("ALTER PUBLICATION {publication} DROP TABLE second_outbox")).await;
    insert_into(&world, "second_outbox").await;
    for _ in 0..2 {
        let refused = world.run(["run", "--until-caught-up"]).await;
        assert_eq!(refused.code, Some(5), "{}", refused.text);
        assert!(refused.text.contains("walrelay slot recover"), "{}", refused.text);
        let put_back = format!("ALTER PUBLICATION {publication} ADD TABLE ONLY second_outbox");
        drop(world.client().batch_execute(&put_back).await);
    }
    world.succeed(["slot", "recover", "--yes"]).await;
    world.catch_up().await;
    let rows = "SELECT count(*) FROM second_outbox";
    let published = world.pubsub.stored_count() - before;
    assert!(i64::try_from(published).unwrap() >= world.number(rows).await, "{published}");
}

/// The options that name the renamed table and the one that has its name.
const BOTH: [&str; 4] =
    ["--outbox-table", "public.old_outbox", "--outbox-table", "public.app_outbox"];

/// Checks that no command continues while two tables may be the one on record, and puts both on record.
async fn assert_needs_both(world: &InboxDatabase) {
    let commands: [&[&str]; 5] = [
        &["run", "--until-caught-up"],
        &["init"],
        &["slot", "recover", "--yes"],
        &["slot", "recover", "--from-time", "1h", "--dry-run"],
        &["slot", "drop", "--yes"],
    ];
    for command in commands {
        let refused = world.run(command.iter().copied()).await;
        assert_eq!(refused.code, Some(3), "{command:?}: {}", refused.text);
        assert!(refused.text.contains("outbox-differs"), "{command:?}: {}", refused.text);
    }
    // The tables are on record, although the slot is lost.
    let lost = world.run([&["init"][..], &BOTH].concat()).await;
    assert_eq!(lost.code, Some(5), "{}", lost.text);
}

#[tokio::test]
async fn a_table_that_is_replaced_during_a_recovery_by_time_is_not_left_out() {
    let Some(world) = published_world().await else { return };
    world.execute(&format!("SELECT pg_drop_replication_slot('{}')", world.name())).await;
    insert(&world, 100).await;
    // As in a copy of the database on another server.
    let copied = "UPDATE app_outbox_relay SET system_identifier = '1', origin = '{}',
        publication = jsonb_set(publication, '{system}', '\"1\"'), settled_xid = '9000000'";
    world.execute(copied).await;
    world.succeed(["slot", "recover", "--from-time", "1h", "--yes"]).await;
    replace_table(&world).await;
    let refused = world.run(["run", "--until-caught-up"]).await;
    assert_eq!(refused.code, Some(3), "{}", refused.text);
    let begun = "SELECT count(*) FROM app_outbox_relay WHERE operation ->> 'kind' = 'recovery'";
    assert_eq!(world.number(begun).await, 1);
}

#[tokio::test]
async fn a_copy_of_the_database_and_a_record_without_a_slot_lose_no_table() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.execute("CREATE TABLE second_outbox (LIKE app_outbox INCLUDING ALL)").await;
    world.succeed(["init", "--outbox-table", "public.app_outbox,public.second_outbox"]).await;
    world.catch_up().await;
    world.execute(&format!("SELECT pg_drop_replication_slot('{}')", world.name())).await;
    insert_into(&world, "second_outbox").await;
    let dropped = world.run(["slot", "drop", "--yes"]).await;
    assert!(dropped.text.contains("1 row"), "{}", dropped.text);
    let copied = "UPDATE app_outbox_relay SET system_identifier = '1', origin = '{}',
        publication = jsonb_set(publication, '{system}', '\"1\"');
        UPDATE app_outbox_definition SET system_identifier = '1'";
    world.execute(copied).await;
    world.succeed(["slot", "recover", "--from-time", "1h", "--yes"]).await;
    world.catch_up().await;
    world.pubsub.wait_stored(DEADLINE, 1).await;
}

#[tokio::test]
async fn rows_of_a_renamed_table_are_not_left_out_by_slot_recover() {
    let Some(world) = published_world().await else { return };
    insert(&world, 100).await;
    replace_table(&world).await;
    insert(&world, 200).await;
    assert_needs_both(&world).await;
    world.succeed(["slot", "recover", "--yes"]).await;
    let fewer = world.run(["run", "--outbox-table", "public.app_outbox"]).await;
    assert_eq!(fewer.code, Some(3), "{}", fewer.text);
    assert!(fewer.text.contains("outbox-differs"), "{}", fewer.text);
    world.catch_up().await;
    assert_none_lost(&world).await;
    let stored = world.pubsub.stored();
    let old = world.client().query("SELECT id::text FROM old_outbox", &[]).await.expect("rows");
    assert_eq!(old.len(), 10);
    for row in old {
        let id: String = row.get(0);
        assert!(stored.iter().any(|message| message.event_id == id), "{id} is not published");
    }
}

#[tokio::test]
async fn a_renamed_table_changes_nothing_for_the_next_start() {
    let Some(world) = published_world().await else { return };
    world.execute("ALTER TABLE app_outbox RENAME TO events").await;
    insert_into(&world, "events").await;
    world.catch_up().await;
    world.pubsub.wait_stored(DEADLINE, 6).await;
    assert!(world.succeed(["status"]).await.contains("events"));
}

#[tokio::test]
async fn a_recovery_of_several_tables_does_not_forget_one() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.execute("CREATE TABLE second_outbox (LIKE app_outbox INCLUDING ALL)").await;
    world.succeed(["init", "--outbox-table", "public.app_outbox,public.second_outbox"]).await;
    world.catch_up().await;
    world.execute(&format!("DROP PUBLICATION {}", world.name())).await;
    insert_into(&world, "second_outbox").await;
    world.succeed(["slot", "recover", "--yes"]).await;
    world.catch_up().await;
    world.pubsub.wait_stored(DEADLINE, 1).await;
}

#[tokio::test]
async fn a_recovery_publishes_a_row_whose_id_is_recorded_for_a_row_of_another_table() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.execute("CREATE TABLE second_outbox (LIKE app_outbox INCLUDING ALL)").await;
    world.succeed(["init", "--outbox-table", "public.app_outbox,public.second_outbox"]).await;
    let insert = async |table: &str, key: &str| {
        world
            .execute(&format!(
                "INSERT INTO {table} (id, aggregatetype, aggregateid, event_type, version, payload)
                 VALUES ('6f1c0000-0000-4000-8000-000000000001', 'video', '{key}', 'made', 1, '{{}}')"
            ))
            .await;
    };
    world.pubsub.fault("key=poison,reject=INVALID_ARGUMENT");
    insert("app_outbox", "poison").await;
    world.succeed(["run", "--until-caught-up", "--park-after", "300ms"]).await;
    assert_eq!(world.dispatch_count("dead").await, 1);
    world.pubsub.heal();
    world.execute(&format!("SELECT pg_drop_replication_slot('{}')", world.name())).await;
    insert("second_outbox", "healthy").await;
    world.succeed(["slot", "recover", "--yes"]).await;
    world.catch_up().await;
    assert!(world.pubsub.stored().iter().any(|it| it.key == "healthy"));
}

#[tokio::test]
async fn a_copy_of_the_database_does_not_take_the_slot_of_the_original() {
    let Some(original) = published_world().await else { return };
    let Some(copy) = published_world().await else { return };
    let dropped = format!("SELECT pg_drop_replication_slot('{}')", copy.name());
    copy.execute(&dropped).await;
    insert(&copy, 100).await;
    let slot = original.name();
    // As in a copy within the cluster, the record names the slot of the original.
    copy.execute(&format!("UPDATE app_outbox_relay SET slot = '{slot}'")).await;
    copy.execute(&format!("UPDATE app_outbox_definition SET slot = '{slot}'")).await;
    for command in [
        &["status"][..],
        &["check"],
        &["slot", "recover", "--yes"],
        &["run", "--on-slot-lost", "recover"],
    ] {
        let refused = copy.run([command, &["--slot", slot]].concat()).await;
        assert_eq!(refused.code, Some(3), "{command:?}: {}", refused.text);
        assert!(refused.text.contains("decodes the database"), "{command:?}: {}", refused.text);
    }
    insert(&original, 100).await;
    original.catch_up().await;
    original.check(&original.committed().await).assert_exactly_once();
}

#[tokio::test]
async fn commands_that_drop_the_slot_count_rows_that_the_slot_left_out() {
    let Some(world) = published_world().await else { return };
    insert_left_out(&world).await;
    let refused = world.run(["reshard", "--shards", "2", "--yes"]).await;
    assert_eq!(refused.code, Some(5), "{}", refused.text);
    assert!(refused.text.contains("walrelay slot recover"), "{}", refused.text);
    let counted = world.run(["slot", "drop", "--yes"]).await;
    assert_eq!(counted.code, Some(2), "{}", counted.text);
    assert!(counted.text.contains("--discard-rows 5"), "{}", counted.text);
    assert_recovers(&world).await;
}

#[tokio::test]
async fn a_change_between_init_and_the_first_start_of_a_relay_is_noticed() {
    let Some(world) = InboxDatabase::create().await else { return };
    insert_left_out(&world).await;
    assert_lost(&world).await;
    assert_recovers(&world).await;
}

#[tokio::test]
async fn after_a_change_that_left_out_no_row_every_command_names_the_start() {
    let Some(world) = published_world().await else { return };
    let mut relay = world.start_relay([]).await;
    world.execute("CREATE TABLE other (n int)").await;
    alter(&world, "ADD TABLE other").await;
    assert_eq!(relay.wait_ended(DEADLINE).await.code(), Some(3));
    alter(&world, "DROP TABLE other").await;
    for command in [&["status"][..], &["check"]] {
        let told = world.run(command.iter().copied()).await;
        assert!(told.text.contains("start the relay: walrelay run"), "{}", told.text);
        assert!(!told.text.contains("slot recover"), "{}", told.text);
    }
    let refused = world.run(["slot", "recover", "--yes"]).await;
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    assert!(refused.text.contains("Start the relay with `walrelay run`"), "{}", refused.text);
    insert(&world, 100).await;
    world.catch_up().await;
    world.check(&world.committed().await).assert_exactly_once();
}

#[tokio::test]
async fn a_recovery_on_record_takes_no_time_and_replaces_what_the_relay_noted() {
    let Some(world) = published_world().await else { return };
    let mut relay = world.start_relay([]).await;
    alter(&world, "DROP TABLE app_outbox").await;
    insert(&world, 100).await;
    assert_eq!(relay.wait_ended(DEADLINE).await.code(), Some(3));
    world.succeed(["slot", "recover", "--yes"]).await;
    let status = world.run(["status"]).await;
    assert!(!status.text.contains("the relay stopped"), "{}", status.text);
    assert!(status.text.contains("not finished: a recovery"), "{}", status.text);
    let since = world.run(["slot", "recover", "--from-time", "1d", "--yes"]).await;
    assert_ne!(since.code, Some(0), "{}", since.text);
    assert!(since.text.contains("begun without a time"), "{}", since.text);
    world.catch_up().await;
    assert_none_lost(&world).await;
}
