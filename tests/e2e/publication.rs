//! A publication that is changed while the relay runs. The relay stops before the change and
//! reports the reason.

use std::time::Duration;

use walrelay_testkit::outbox::Workload;
use walrelay_testkit::relay::Relay;
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase, Producer};

/// Creates a test environment whose relay has published and confirmed rows.
async fn streaming_world(options: &[&str]) -> Option<(InboxDatabase, Relay)> {
    let world = InboxDatabase::create().await?;
    let relay = world.start_relay(options.iter().copied()).await;
    Workload::of_rows(10).insert(world.client()).await.expect("the rows are inserted");
    world.pubsub.wait_stored(DEADLINE, 10).await;
    world.wait_confirmed(DEADLINE).await;
    Some((world, relay))
}

async fn alter(world: &InboxDatabase, change: &str) {
    world.execute(&format!("ALTER PUBLICATION {} {change}", world.name())).await;
}

/// Checks that the relay ended because of the change, and confirmed nothing from `lost_from` on.
async fn assert_stopped_before(
    world: &InboxDatabase,
    mut relay: Relay,
    lost_from: u64,
    word: &str,
) {
    assert_eq!(relay.wait_ended(DEADLINE).await.code(), Some(3));
    let told = relay.lines().join("\n");
    assert!(told.contains(word) && told.contains("publication-changed"), "{told}");
    let confirmed = world.confirmed_flush().await;
    assert!(confirmed <= lost_from, "{confirmed} is beyond {lost_from}");
}

/// Inserts a row that reaches only the table, followed by enough other WAL for keepalives.
async fn insert_lost(world: &InboxDatabase, number: u32) {
    let one = Workload { first_number: number, ..Workload::of_rows(1) };
    one.insert(world.client()).await.expect("the row is inserted");
    world
        .execute("CREATE TABLE other (n int); INSERT INTO other VALUES (1); DROP TABLE other")
        .await;
}

#[tokio::test]
async fn a_table_dropped_from_the_publication_stops_the_relay_before_the_change() {
    let Some((world, relay)) = streaming_world(&[]).await else { return };
    alter(&world, "DROP TABLE app_outbox").await;
    let lost_from = world.wal_end().await;
    for number in 100..120 {
        insert_lost(&world, number).await;
    }
    assert_stopped_before(&world, relay, lost_from, "no longer publishes table").await;

    // No relay passes the rows that were left out.
    assert_eq!(world.run(["run", "--until-caught-up"]).await.code, Some(5));
    alter(&world, "ADD TABLE app_outbox").await;
    assert_eq!(world.run(["run", "--until-caught-up"]).await.code, Some(5));
}

#[tokio::test]
async fn a_table_taken_out_and_put_back_under_traffic_stops_the_relay_before_the_change() {
    let Some((world, relay)) = streaming_world(&[]).await else { return };
    let producer = Producer::start(world.url(), Duration::from_millis(1));
    world.pubsub.wait_stored(DEADLINE, 100).await;
    alter(&world, "DROP TABLE app_outbox").await;
    let lost_from = world.wal_end().await;
    insert_lost(&world, 1_000_000).await;
    alter(&world, "ADD TABLE app_outbox").await;
    let first_number = 2_000_000;
    Workload { first_number, ..Workload::of_rows(3) }.insert(world.client()).await.unwrap();
    assert_stopped_before(&world, relay, lost_from, "inserted since may be missing").await;
    producer.stop().await;
}

#[tokio::test]
async fn one_of_two_tables_taken_out_stops_the_relay_before_the_change() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.execute("CREATE TABLE second_outbox (LIKE app_outbox INCLUDING ALL)").await;
    world.succeed(["init", "--outbox-table", "public.app_outbox,public.second_outbox"]).await;
    let relay = world.start_relay([]).await;
    let producer = Producer::start(world.url(), Duration::from_millis(1));
    world.pubsub.wait_stored(DEADLINE, 100).await;
    let confirmed = world.wal_end().await;
    world.wait_confirmed(DEADLINE).await;
    assert!(world.confirmed_flush().await >= confirmed, "two tables are confirmed like one");
    alter(&world, "DROP TABLE second_outbox").await;
    let lost_from = world.wal_end().await;
    let second = Workload { table: "second_outbox".into(), ..Workload::of_rows(5) };
    second.insert(world.client()).await.unwrap();
    assert_stopped_before(&world, relay, lost_from, "no longer publishes table").await;
    producer.stop().await;
}

#[tokio::test]
async fn inserts_left_out_for_a_moment_stop_the_relay_before_that() {
    let Some((world, relay)) = streaming_world(&[]).await else { return };
    alter(&world, "SET (publish = 'truncate')").await;
    let lost_from = world.wal_end().await;
    insert_lost(&world, 100).await;
    alter(&world, "SET (publish = 'insert')").await;
    assert_stopped_before(&world, relay, lost_from, "inserted since may be missing").await;
}

#[tokio::test]
async fn a_change_while_the_relay_reconnects_is_noticed_too() {
    let Some((world, relay)) = streaming_world(&[]).await else { return };
    let end_sessions = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                         WHERE datname = current_database() AND pid <> pg_backend_pid()";
    world.number(end_sessions).await;
    alter(&world, "DROP TABLE app_outbox").await;
    insert_lost(&world, 100).await;
    alter(&world, "ADD TABLE app_outbox").await;
    // The relay compares the publication with its record, and waits for `slot recover`.
    relay.wait_for_line(DEADLINE, "slot-lost").await;
}

#[tokio::test]
async fn a_running_relay_follows_a_renamed_table() {
    let Some((world, relay)) = streaming_world(&[]).await else { return };
    world.execute("ALTER TABLE app_outbox RENAME TO orders_outbox").await;
    let renamed =
        Workload { table: "orders_outbox".into(), first_number: 10, ..Workload::of_rows(10) };
    renamed.insert(world.client()).await.expect("rows");
    world.pubsub.wait_stored(DEADLINE, 20).await;
    relay.wait_for_line(DEADLINE, "the outbox on record has changed").await;
    relay.wait_for_http(DEADLINE, "/readyz", 200).await;
}

#[tokio::test]
async fn a_running_relay_stops_if_another_table_takes_the_name_of_a_renamed_one() {
    let Some((world, relay)) = streaming_world(&[]).await else { return };
    let replaced = "BEGIN; ALTER TABLE app_outbox RENAME TO app_outbox_old;
                    CREATE TABLE app_outbox (LIKE app_outbox_old INCLUDING ALL); COMMIT";
    world.execute(replaced).await;
    let lost_from = world.wal_end().await;
    insert_lost(&world, 100).await;
    assert_stopped_before(&world, relay, lost_from, "no longer publishes table").await;
}

#[tokio::test]
async fn a_running_relay_publishes_a_table_that_init_adds() {
    let Some((world, relay)) = streaming_world(&["--outbox-table", "app_outbox"]).await else {
        return;
    };
    world.execute("CREATE TABLE second_outbox (LIKE app_outbox INCLUDING ALL)").await;
    world.succeed(["init", "--outbox-table", "public.app_outbox,public.second_outbox"]).await;
    for (table, first_number) in [("second_outbox", 10), ("app_outbox", 20)] {
        let added = Workload { table: table.into(), first_number, ..Workload::of_rows(10) };
        added.insert(world.client()).await.expect("rows");
    }
    world.pubsub.wait_stored(DEADLINE, 30).await;
    relay.wait_for_line(DEADLINE, "the outbox on record has changed").await;
    relay.wait_for_http(DEADLINE, "/readyz", 200).await;
    world.wait_confirmed(DEADLINE).await;
}

#[tokio::test]
async fn a_change_that_is_not_committed_holds_keepalives_back_and_then_stops_nothing() {
    let Some((world, relay)) = streaming_world(&[]).await else { return };
    let changing = world.connect().await;
    let publication = world.name();
    let change = format!("BEGIN; ALTER PUBLICATION {publication} DROP TABLE app_outbox");
    changing.batch_execute(&change).await.unwrap();
    let from = world.wal_end().await;
    world.execute("CREATE TABLE other (n int); INSERT INTO other VALUES (1)").await;
    // Longer than any usual confirmation delay.
    let until = tokio::time::Instant::now() + Duration::from_secs(3);
    while tokio::time::Instant::now() < until {
        assert!(world.confirmed_flush().await <= from, "the change may be in the log by then");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    changing.batch_execute("ROLLBACK").await.unwrap();
    world.wait_confirmed(DEADLINE).await;
    let committed = Workload { first_number: 100, ..Workload::of_rows(5) };
    committed.insert(world.client()).await.unwrap();
    world.pubsub.wait_stored(DEADLINE, 15).await;
    drop(relay);
}

#[tokio::test]
async fn a_row_that_comes_where_another_one_is_recorded_is_published() {
    let Some(world) = InboxDatabase::create().await else { return };
    let one_table = format!("{}_one", world.name());
    world.execute("CREATE TABLE second_outbox (LIKE app_outbox INCLUDING ALL)").await;
    world.succeed(["init", "--outbox-table", "public.app_outbox,public.second_outbox"]).await;
    let create = format!("CREATE PUBLICATION {one_table} FOR TABLE app_outbox");
    world.execute(&format!("{create} WITH (publish = 'insert')")).await;
    // The first row of the transaction is dead and recorded. The second row is in flight.
    world.pubsub.fault("black-hole");
    let mut relay = world.start_relay([]).await;
    // Postgres looks a publication up as it was at the slot's position. That must be past its
    // creation before the rows come.
    world.wait_confirmed(DEADLINE).await;
    let insert = |table: &str, kind: &str| {
        format!(
            "INSERT INTO {table} (aggregatetype, aggregateid, event_type, version, payload)
             VALUES ('{kind}', 'k', 'e', 1, '{{}}');"
        )
    };
    let both = [insert("second_outbox", "no such/topic"), insert("app_outbox", "video")];
    world.execute(&both.concat()).await;
    world.wait_dispatch(DEADLINE, "dead", 1).await;
    let received = || world.pubsub.emulator().stats().publish_requests > 0;
    wait_until(DEADLINE, "the second row to be out", async || received().then_some(())).await;
    relay.kill();
    world.pubsub.heal();

    // With the other publication, the second row gets the index of the first row.
    let other =
        "UPDATE app_outbox_definition SET tables = jsonb_build_array(tables -> 0), publication";
    world.execute(&format!("{other} = '{one_table}'")).await;
    let catch_up = world.command(["run", "--until-caught-up"]);
    let done = catch_up.env("WALRELAY_PUBLICATION", &one_table).finish(DEADLINE).await;
    assert_eq!(done.code, Some(0), "{}", done.text);
    assert!(done.text.contains("rows stand where dispatch state holds others"), "{}", done.text);
    world.check(&world.committed().await).assert_exactly_once();
}

#[tokio::test]
async fn inserts_beside_deletes_updates_and_truncates_are_published_and_the_rest_is_ignored() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.execute("ALTER TABLE app_outbox DISABLE TRIGGER USER").await;
    alter(&world, "SET (publish = 'insert, update, delete, truncate')").await;
    // A relay records the change while no row can be missing.
    world.catch_up().await;
    let rows = |first_number| Workload { first_number, ..Workload::of_rows(4) };
    let mut committed = rows(0).insert(world.client()).await.expect("rows");
    for (first_number, other) in [
        (10, "DELETE FROM app_outbox WHERE version < 2"),
        (20, "UPDATE app_outbox SET event_type = 'other'"),
        (30, "TRUNCATE app_outbox"),
    ] {
        world.execute(&format!("BEGIN; {other}")).await;
        committed.extend(rows(first_number).insert(world.client()).await.expect("rows"));
        world.execute("COMMIT").await;
    }
    let relay = world.start_relay([]).await;
    world.pubsub.wait_stored(DEADLINE, 16).await;
    world.wait_confirmed(DEADLINE).await;
    let metrics = relay.wait_for_http(DEADLINE, "/metrics", 200).await;
    for operation in ["update", "delete", "truncate"] {
        let counter = format!("walrelay_ignored_changes_total{{operation=\"{operation}\"}} ");
        let counted = metrics.lines().find_map(|line| line.strip_prefix(&counter));
        assert!(counted.is_some_and(|count| count != "0"), "{operation}: {metrics}");
    }
    let told = relay.lines().join("\n");
    let warnings = told.matches("changes that are no inserts").count();
    assert_eq!(warnings, 3, "one for each operation: {told}");
    assert!(told.contains("SET (publish = 'insert')"), "{told}");
    let checked = world.succeed(["check"]).await;
    assert!(
        checked.contains("publishes update, delete, truncate in addition to inserts"),
        "{checked}"
    );
    world.check(&committed).assert_exactly_once();
    drop(relay);
}

/// Returns the statements that create a table, and insert a row into it and into the outbox.
fn added_tables() -> [(&'static str, &'static str); 2] {
    [
        ("CREATE TABLE added (id int, note text)", "INSERT INTO added VALUES (1, 'a')"),
        (
            "CREATE TABLE added (LIKE app_outbox INCLUDING ALL)",
            "INSERT INTO added (aggregatetype, aggregateid, event_type, version, payload)
             VALUES ('video', 'k', 'e', 1, '{}')",
        ),
    ]
}

/// Inserts an outbox row and a row of the other table in one transaction.
async fn insert_both(world: &InboxDatabase, other: &str, first_number: u32) {
    world.execute(&format!("BEGIN; {other}")).await;
    let rows = Workload { first_number, ..Workload::of_rows(3) };
    rows.insert(world.client()).await.expect("the rows are inserted");
    world.execute("COMMIT").await;
}

#[tokio::test]
async fn a_table_added_to_the_publication_stops_the_relay_until_it_is_removed_as_told() {
    for (create, insert) in added_tables() {
        let Some((world, mut relay)) = streaming_world(&[]).await else { return };
        world.execute(create).await;
        alter(&world, "ADD TABLE added").await;
        insert_both(&world, insert, 100).await;
        assert_eq!(relay.wait_ended(DEADLINE).await.code(), Some(3));
        let stopped = relay.lines().join("\n");
        let statement = format!("ALTER PUBLICATION {} DROP TABLE public.added", world.name());
        assert!(stopped.contains(&statement), "{stopped}");
        let again = world.run(["run"]).await;
        assert_eq!(again.code, Some(3), "{}", again.text);
        for command in ["status", "check"] {
            let told = world.run([command]).await.text;
            assert!(told.contains(&statement), "{command}: {told}");
        }

        world.execute(&statement).await;
        insert_both(&world, insert, 200).await;
        let restarted = world.start_relay([]).await;
        world.pubsub.wait_stored(DEADLINE, 16).await;
        world.wait_confirmed(DEADLINE).await;
        world.check(&world.committed().await).assert_exactly_once();
        let warned = restarted.lines().join("\n");
        assert!(warned.contains("the relay ignores rows of a table"), "{warned}");
        assert!(warned.contains("public.added"), "{warned}");
    }
}

#[tokio::test]
async fn rows_of_a_table_that_has_left_the_publication_are_ignored_and_counted() {
    for added in added_tables() {
        ignored_after_the_table_has_left(added).await;
    }
}

async fn ignored_after_the_table_has_left((create, insert): (&str, &str)) {
    let Some(world) = InboxDatabase::create().await else { return };
    world.succeed(["init"]).await;
    world.execute(create).await;
    alter(&world, "ADD TABLE added").await;
    insert_both(&world, insert, 100).await;
    alter(&world, "DROP TABLE added").await;
    insert_both(&world, insert, 200).await;
    let relay = world.start_relay([]).await;
    world.pubsub.wait_stored(DEADLINE, 6).await;
    world.wait_confirmed(DEADLINE).await;
    world.check(&world.committed().await).assert_exactly_once();
    let metrics = relay.wait_for_http(DEADLINE, "/metrics", 200).await;
    let counted = "walrelay_ignored_changes_total{operation=\"insert\"} 1";
    assert!(metrics.contains(counted), "{metrics}");
}

#[tokio::test]
async fn rows_that_were_inserted_before_an_outbox_table_was_renamed_are_published() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.execute("CREATE TABLE old_name (LIKE app_outbox INCLUDING ALL)").await;
    world.succeed(["init", "--outbox-table", "public.app_outbox,public.old_name"]).await;
    let old = Workload { table: "old_name".into(), ..Workload::of_rows(3) };
    old.insert(world.client()).await.expect("rows");
    world.execute("ALTER TABLE old_name RENAME TO second_outbox").await;
    let relay = world.start_relay([]).await;
    world.pubsub.wait_stored(DEADLINE, 3).await;
    drop(relay);
}
