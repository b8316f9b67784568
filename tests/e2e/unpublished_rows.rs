//! Rows below the outbox that no slot streams: inheritance children, such as chunks of an extension.

use std::time::Duration;

use walrelay_testkit::outbox::Workload;
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase};

use super::archive::Directory;

/// A table with the rows of a producer that uses the wrong table.
const CHILD: &str = "CREATE TABLE child (LIKE app_outbox INCLUDING ALL);
    INSERT INTO child (aggregatetype, aggregateid, event_type, version, payload, occurred_at)
    SELECT 'video', 'v-' || n, 'test.made', n, '{}', now() - interval '1 year' FROM generate_series(1, 7) AS n";

const INHERIT: &str = "ALTER TABLE child INHERIT app_outbox";

async fn assert_refused(world: &InboxDatabase, command: &[&str]) {
    let done = world.run(command.iter().copied()).await;
    assert_eq!(done.code, Some(3), "{command:?}: {}", done.text);
    let named = ["inheritance children", "child", "outbox-table-unsuitable", "NO INHERIT"];
    for expected in named {
        assert!(done.text.contains(expected), "{command:?}: no {expected}: {}", done.text);
    }
    let fix = "DROP TABLE child";
    assert!(!done.text.contains(fix), "the rows of a child would stay unpublished: {}", done.text);
}

#[tokio::test]
async fn prune_never_deletes_a_row_of_an_inheritance_child() {
    let Some(world) = InboxDatabase::create().await else { return };
    let archive = Directory::create(&world);
    Workload::of_rows(5).insert(world.client()).await.expect("rows");
    world.execute(CHILD).await;
    world.settle().await;
    world.execute(INHERIT).await;
    let prune = ["prune", "--yes", "--older-than", "1s"];
    let told = world.succeed(prune.into_iter().chain(["--dry-run"])).await;
    assert!(!told.contains("12 row(s)"), "{told}");
    wait_until(DEADLINE, "the rows of the outbox itself to go", async || {
        world.succeed(prune).await;
        (world.number("SELECT count(*) FROM ONLY app_outbox").await == 0).then_some(())
    })
    .await;
    let archived = world.succeed(prune.into_iter().chain(["--archive", archive.path()])).await;
    assert!(archived.contains("0 row(s)"), "{archived}");
    assert_eq!(world.number("SELECT count(*) FROM child").await, 7);
}

#[tokio::test]
async fn an_outbox_with_an_inheritance_child_is_refused_by_init_check_and_run() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    world.succeed(["init"]).await;
    world.execute(CHILD).await;
    world.execute(INHERIT).await;
    for command in [&["check"][..], &["run", "--until-caught-up"], &["init"]] {
        assert_refused(&world, command).await;
    }
    // A publication that somebody made without ONLY has an entry for the child.
    world.execute(&format!("ALTER PUBLICATION {} ADD TABLE child", world.name())).await;
    for command in [&["check"][..], &["run", "--until-caught-up"]] {
        assert_refused(&world, command).await;
    }
    // The printed fix publishes the rows.
    world
        .execute(
            "BEGIN; INSERT INTO app_outbox SELECT * FROM child; ALTER TABLE child NO INHERIT app_outbox; COMMIT",
        )
        .await;
    world.execute(&format!("ALTER PUBLICATION {} DROP TABLE child", world.name())).await;
    world.catch_up().await;
    world.pubsub.wait_stored(DEADLINE, 7).await;
}

#[tokio::test]
async fn init_adds_no_inheritance_child_to_the_publication() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    world
        .execute(
            "CREATE TABLE app_outbox (
               id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype text NOT NULL, aggregateid text NOT NULL,
               event_type text NOT NULL, version bigint NOT NULL, schema_version int NOT NULL DEFAULT 1,
               payload jsonb NOT NULL, headers jsonb, occurred_at timestamptz NOT NULL DEFAULT now());
             CREATE TABLE child () INHERITS (app_outbox)",
        )
        .await;
    assert_refused(&world, &["init"]).await;
    assert_eq!(
        world
            .number("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()")
            .await,
        0
    );
    assert_eq!(world.number("SELECT count(*) FROM pg_publication_tables").await, 0);
}

#[tokio::test]
async fn a_running_relay_reports_an_inheritance_child_and_is_not_ready() {
    let Some(world) = InboxDatabase::create().await else { return };
    let mut relay = world.start_relay([]).await;
    relay.wait_for_http(DEADLINE, "/readyz", 200).await;
    world.execute("CREATE TABLE child () INHERITS (app_outbox)").await;
    Workload::of_rows(5).insert(world.client()).await.expect("rows");
    let line = relay.wait_for_line(DEADLINE, "inheritance children").await;
    assert!(line.contains("outbox-table-unsuitable") && line.contains("NO INHERIT"), "{line}");
    let reasons = relay.wait_for_http(DEADLINE, "/readyz", 503).await;
    assert!(reasons.contains("public.child"), "{reasons}");
    // The rows of the outbox itself are still published.
    world.pubsub.wait_stored(DEADLINE, 5).await;
    wait_until(DEADLINE, "status to name the child", async || {
        let told = world.run(["status"]).await.text;
        (told.contains("public.child") && told.contains("NO INHERIT")).then_some(())
    })
    .await;
    world.execute("ALTER TABLE child NO INHERIT app_outbox").await;
    Workload { first_number: 100, ..Workload::of_rows(5) }
        .insert(world.client())
        .await
        .expect("rows");
    relay.wait_for_http(DEADLINE, "/readyz", 200).await;
    assert_eq!(relay.terminate(DEADLINE).await, Some(0));
}

/// An unlogged partition with the columns of the outbox in another order.
const UNLOGGED_PARTITION: &str = "DO $$
BEGIN
  EXECUTE (SELECT 'CREATE UNLOGGED TABLE odd (' || string_agg(
             concat_ws(' ', quote_ident(attname), format_type(atttypid, atttypmod), CASE WHEN attnotnull THEN 'NOT NULL' END),
             ', ' ORDER BY attnum DESC) || ')'
             FROM pg_attribute WHERE attrelid = 'app_outbox'::regclass AND attnum > 0);
  ALTER TABLE app_outbox ATTACH PARTITION odd FOR VALUES FROM ('2000-01-01') TO ('2000-02-01');
END $$";

/// Returns the statements for an unlogged partition in a printed fix.
fn statements(told: &str) -> String {
    let from = told.find("ALTER TABLE public.odd SET LOGGED").expect("the first statement");
    let (first, second) = told[from..].split_once(", and ").expect("two statements");
    let second = second.split(';').next().expect("its end");
    format!("BEGIN; {first}; {second}; COMMIT")
}

#[tokio::test]
async fn rows_of_an_unlogged_partition_are_reported_never_pruned_and_published_as_told() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    world.succeed(["init", "--partition-by", "month"]).await;
    let relay = world.start_relay([]).await;
    relay.wait_for_http(DEADLINE, "/readyz", 200).await;
    world.execute(UNLOGGED_PARTITION).await;
    world
        .execute(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload, occurred_at)
             SELECT 'video', 'odd-' || n, 'test.made', n, '{}', '2000-01-02' FROM generate_series(1, 7) AS n",
        )
        .await;
    let reasons = relay.wait_for_http(DEADLINE, "/readyz", 503).await;
    assert!(reasons.contains("public.odd") && reasons.contains("SET LOGGED"), "{reasons}");
    Workload::of_rows(5).insert(world.client()).await.expect("rows");
    world.pubsub.wait_stored(DEADLINE, 5).await;
    for command in [&["prune", "--older-than", "30d", "--yes"][..], &["check"], &["init"]] {
        let refused = world.run(command.iter().copied()).await;
        assert_eq!(refused.code, Some(3), "{command:?}: {}", refused.text);
        assert!(refused.text.contains("public.odd"), "{command:?}: {}", refused.text);
    }
    let told = world.run(["check"]).await.text;
    assert_eq!(world.number("SELECT count(*) FROM odd").await, 7);
    world.execute(&statements(&told)).await;
    world.pubsub.wait_stored(DEADLINE, 12).await;
    relay.wait_for_http(DEADLINE, "/readyz", 200).await;
    // The server refuses this for a table of the publication, but not for a partition.
    world.execute("ALTER TABLE odd SET UNLOGGED").await;
    let unlogged_again = relay.wait_for_http(DEADLINE, "/readyz", 503).await;
    assert!(unlogged_again.contains("also not once it is logged"), "{unlogged_again}");
    world.execute("ALTER TABLE odd SET LOGGED").await;
    relay.wait_for_http(DEADLINE, "/readyz", 200).await;
    relay.wait_for_line(DEADLINE, "published only if they are inserted or replayed").await;
    world.check(&world.committed().await).assert_exactly_once();
}

#[tokio::test]
async fn a_partitioned_outbox_is_pruned_and_recovered_through_its_partitions() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    world.succeed(["init", "--partition-by", "month"]).await;
    Workload::of_rows(20).insert(world.client()).await.expect("rows");
    world.execute(&format!("SELECT pg_drop_replication_slot('{}')", world.name())).await;
    world.succeed(["slot", "recover", "--yes"]).await;
    world.catch_up().await;
    world.pubsub.wait_stored(Duration::from_secs(30), 20).await;
    world.settle().await;
    // Without a span, the rows of the current partition are deleted one by one.
    world.execute("UPDATE app_outbox_partitioning SET span = NULL").await;
    wait_until(DEADLINE, "the rows to go", async || {
        world.succeed(["prune", "--yes", "--older-than", "1s"]).await;
        (world.number("SELECT count(*) FROM app_outbox").await == 0).then_some(())
    })
    .await;
}
