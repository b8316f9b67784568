//! A partitioned outbox that walrelay creates and keeps, and the conversion of a plain one.

use std::time::Duration;

use walrelay_testkit::checker;
use walrelay_testkit::outbox::Workload;
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase, Producer};

const PARTITIONS: &str =
    "SELECT count(*) FROM pg_inherits WHERE inhparent = 'app_outbox'::regclass";
const ROWS: &str = "SELECT count(*) FROM app_outbox";

/// Creates a partitioned outbox, and replaces its partitions by those of one second.
pub(super) async fn init_with_tiny_partitions(world: &InboxDatabase) {
    world.succeed(["init", "--partition-by", "day"]).await;
    world
        .execute(
            "DO $$ DECLARE p regclass; BEGIN
               FOR p IN SELECT partition FROM app_outbox_partition_bounds('app_outbox') WHERE NOT is_default LOOP
                 EXECUTE format('DROP TABLE %s', p);
               END LOOP;
             END $$;
             UPDATE app_outbox_partitioning SET span = '1 second', spans_ahead = 30;
             SELECT app_outbox_add_partitions('app_outbox')",
        )
        .await;
}

/// Returns the SQL that creates the partition of a year.
pub(super) fn make_partition(name: &str, year: u32) -> String {
    format!(
        "SELECT app_outbox_make_partition('app_outbox', '{name}',
           'FOR VALUES FROM (''{year}-01-01'') TO (''{}-01-01'')')",
        year + 1
    )
}

/// Creates a partitioned outbox with 20 rows in the partition outbox_2020.
async fn with_old_partition() -> Option<InboxDatabase> {
    let world = InboxDatabase::create_empty().await?;
    world.succeed(["init", "--partition-by", "day"]).await;
    world.execute(&make_partition("outbox_2020", 2020)).await;
    insert(&world, 20, "'2020-06-01'").await;
    Some(world)
}

pub(super) async fn insert(world: &InboxDatabase, rows: u32, occurred_at: &str) {
    world
        .execute(&format!(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload, occurred_at)
             SELECT 'video', 'by-hand', 'made', n, '{{}}', {occurred_at} FROM generate_series(1, {rows}) AS n"
        ))
        .await;
}

#[tokio::test]
async fn init_creates_a_partitioned_outbox_and_the_relay_its_next_partitions() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    world.succeed(["init", "--partition-by", "week"]).await;
    // The current week, the next three, and the DEFAULT partition.
    assert_eq!(world.number(PARTITIONS).await, 5);
    let again = world.succeed(["init", "-v"]).await;
    assert!(again.contains("already there: table public.app_outbox\n"), "{again}");
    let checked = world.run(["check", "-v"]).await;
    assert!(checked.text.contains("partitions of public.app_outbox"), "{}", checked.text);
    assert!(!checked.text.contains("partitions-missing"), "{}", checked.text);

    // Partitions are in UTC, secured, and append-only, like the table.
    let like = "SELECT count(*) FROM pg_class c JOIN pg_inherits i ON i.inhrelid = c.oid
                  JOIN pg_trigger t ON t.tgrelid = c.oid AND t.tgname = 'append_only'
                 WHERE i.inhparent = 'app_outbox'::regclass AND c.relrowsecurity";
    assert_eq!(world.number(like).await, 5);
    let mondays = "SELECT count(*) FROM app_outbox_partition_bounds('app_outbox')
                    WHERE extract(isodow FROM lower_bound AT TIME ZONE 'UTC') = 1
                      AND upper_bound - lower_bound = interval '7 days'";
    assert_eq!(world.number(mondays).await, 4);

    world.execute("UPDATE app_outbox_partitioning SET spans_ahead = 6").await;
    let relay = world.start_relay([]).await;
    relay.wait_for_line(DEADLINE, "partitions are created").await;
    assert_eq!(world.number(PARTITIONS).await, 8);
    let no_end = "walrelay_partitions_end_timestamp_seconds 0.0";
    relay.wait_for_metrics(DEADLINE, |metrics| !metrics.contains(no_end)).await;
    insert(&world, 3, "now()").await;
    world.pubsub.wait_stored(DEADLINE, 3).await;
    let outside = "SELECT count(*) FROM app_outbox_default";
    assert_eq!(world.number(outside).await, 0);
}

#[tokio::test]
async fn rows_in_the_default_partition_block_their_range_alone_and_are_reported() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    world.succeed(["init", "--partition-by", "month"]).await;
    insert(&world, 2, "now() + interval '5 months'").await;
    world.execute("UPDATE app_outbox_partitioning SET spans_ahead = 7").await;
    let relay = world.start_relay([]).await;
    relay.wait_for_line(DEADLINE, "the DEFAULT partition blocks a new partition").await;
    // All but the month of the two rows.
    assert_eq!(world.number(PARTITIONS).await, 8);
    let rows = "walrelay_default_partition_rows 2";
    relay.wait_for_metrics(DEADLINE, |metrics| metrics.contains(rows)).await;
    let checked = world.run(["check"]).await;
    assert!(checked.text.contains("default-partition-used"), "{}", checked.text);
}

#[tokio::test]
async fn a_plain_outbox_is_not_partitioned_in_passing() {
    let Some(world) = InboxDatabase::create().await else { return };
    let refused = world.run(["init", "--partition-by", "day"]).await;
    assert_eq!(refused.code, Some(3), "{}", refused.text);
    assert!(refused.text.contains("exists and is not partitioned"), "{}", refused.text);
    assert_eq!(world.number(PARTITIONS).await, 0);
}

#[tokio::test]
async fn a_partition_whose_lock_is_not_granted_keeps_its_rows_and_is_dropped_later() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    world.succeed(["init", "--partition-by", "day"]).await;
    world.execute(&make_partition("outbox_2019", 2019)).await;
    world.execute(&make_partition("outbox_2020", 2020)).await;
    insert(&world, 20, "'2020-06-01'").await;
    insert(&world, 5, "now()").await;
    world.settle().await;
    let reader = world.connect().await;
    reader.run("BEGIN; SELECT FROM app_outbox LIMIT 1").await;
    let prune = ["prune", "--yes", "--older-than", "30d"];
    let told = world.succeed(prune).await;
    assert!(!told.contains("dropped: partition"), "{told}");
    assert_eq!(world.number(ROWS).await, 25, "rows of the partition were deleted singly");
    reader.run("COMMIT").await;
    // The partition that is empty goes too: its range has ended.
    let freed = world.succeed(prune).await;
    assert!(
        freed.contains("partition outbox_2019") && freed.contains("partition outbox_2020"),
        "{freed}"
    );
    assert_eq!(world.number(ROWS).await, 5);
}

#[tokio::test]
async fn a_partition_with_a_dead_row_loses_its_other_rows_only() {
    let Some(world) = with_old_partition().await else { return };
    world
        .execute(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload, occurred_at)
             VALUES ('no topic!', 'a-1', 'made', 1, '{}', '2020-06-01')",
        )
        .await;
    world.settle().await;
    assert_eq!(world.dispatch_count("dead").await, 1);
    world.succeed(["prune", "--yes", "--older-than", "30d"]).await;
    assert_eq!(world.number("SELECT count(*) FROM outbox_2020").await, 1);
}

#[tokio::test]
async fn a_role_that_owns_nothing_creates_and_drops_partitions() {
    let Some(world) = with_old_partition().await else { return };
    world.settle().await;
    let role = format!("{}_relay", world.name());
    let tables = [
        "app_outbox",
        "app_outbox_dispatch",
        "app_outbox_relay",
        "app_outbox_hold",
        "app_outbox_replay",
        "app_outbox_definition",
    ];
    let policy = |table: &str| {
        format!("CREATE POLICY relay ON {table} TO {role} USING (true) WITH CHECK (true);")
    };
    let page = include_str!("../../docs/how-to/operate/partitions.md");
    let grant = page.split("GRANT EXECUTE").nth(1).and_then(|text| text.split(';').next());
    let grant = grant.expect("the grant on the page").replace("TO walrelay", &format!("TO {role}"));
    world
        .execute(&format!(
            "CREATE ROLE {role} LOGIN REPLICATION; GRANT USAGE ON SCHEMA public TO {role};
             GRANT SELECT, INSERT, UPDATE, DELETE ON {} TO {role}; {}",
            tables.join(", "),
            tables.map(policy).join("\n")
        ))
        .await;
    let url = world.url().replacen("postgres@", &format!("{role}@"), 1);
    let checked = world.run(["check", "--database-url", &url]).await;
    assert!(checked.text.contains("GRANT EXECUTE ON FUNCTION"), "{}", checked.text);
    world.execute(&format!("GRANT EXECUTE{grant}")).await;
    let prune = ["prune", "--yes", "--older-than", "30d", "--database-url", &url];
    let told = world.succeed(prune).await;
    assert!(told.contains("partition outbox_2020"), "{told}");
    assert_eq!(world.number(ROWS).await, 0);
    let others = "SELECT app_outbox_drop_partition('app_outbox_key', 'id', 'occurred_at', '0')";
    let refused = world.client().batch_execute(others).await.expect_err("no partition");
    assert!(refused.as_db_error().is_some_and(|it| it.code().code() == "42501"), "{refused:?}");
    world.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

/// The SQL of the page about the conversion, as a reader runs it.
fn page_sql() -> Vec<String> {
    let page = include_str!("../../docs/how-to/operate/convert-to-partitions.md");
    let blocks = page.split("```sql\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap_or_default().to_owned()).collect()
}

async fn convert(world: &InboxDatabase) {
    let blocks = page_sql();
    let [prepare, index, swap, _undo] = blocks.as_slice() else { panic!("four blocks of SQL") };
    let mut relay = world.start_relay([]).await;
    let producer = Producer::start(world.url(), Duration::from_millis(10));
    wait_until(DEADLINE, "rows", async || (producer.rows_count() > 200).then_some(())).await;
    let in_three_days = "SELECT (now() + interval '3 days')::date::text";
    let row = world.client().query_one(in_three_days, &[]).await.expect("a date");
    let bound: String = row.get(0);
    assert!(prepare.contains("2027-01-01"), "{prepare}");
    world.execute(&prepare.replace("2027-01-01", &bound)).await;
    world.execute(index).await;
    let early = world.client().batch_execute(swap).await.expect_err("the relay is running");
    let early = early.as_db_error().map(|error| error.message().to_owned()).unwrap_or_default();
    assert!(early.contains("a relay is running"), "{early}");
    assert_eq!(relay.terminate(DEADLINE).await, Some(0));
    world.wait_slot_free(DEADLINE).await;
    world.execute(swap).await;
    let before = producer.rows_count();
    let mut restarted = world.start_relay([]).await;
    wait_until(DEADLINE, "more rows", async || {
        (producer.rows_count() > before + 200).then_some(())
    })
    .await;
    let inserted = u64::from(producer.stop().await);
    insert(world, 2, "now() + interval '3 days'").await;
    world.pubsub.wait_stored(DEADLINE, inserted + 2).await;
    world.wait_confirmed(DEADLINE).await;
    checker::check(&world.committed().await, &world.pubsub.stored()).assert_exactly_once();
    let kind = "SELECT count(*) FROM pg_class WHERE oid = 'app_outbox'::regclass AND relkind = 'p'";
    assert_eq!(world.number(kind).await, 1);
    assert_eq!(world.number("SELECT count(*) FROM app_outbox_default").await, 0);
    assert_eq!(restarted.terminate(DEADLINE).await, Some(0));
    Workload::of_rows(1).insert(world.client()).await.expect("a row");
    let checked = world.run(["check"]).await;
    assert!(!checked.text.contains("partitions-missing"), "{}", checked.text);
}

#[tokio::test]
async fn a_plain_outbox_is_converted_under_traffic_without_loss_or_duplicate() {
    let Some(world) = InboxDatabase::create().await else { return };
    world
        .execute(
            "CREATE VIEW own AS SELECT id FROM app_outbox;
             GRANT SELECT ON app_outbox TO pg_monitor",
        )
        .await;
    convert(&world).await;
    let through_view = world.number("SELECT count(*) FROM own").await;
    assert_eq!(through_view, world.number(ROWS).await);
    let granted = "SELECT has_table_privilege('pg_monitor', 'app_outbox', 'SELECT')::int::bigint";
    assert_eq!(world.number(granted).await, 1);
    let again = "SELECT app_outbox_to_partitions('app_outbox', '1 day')";
    let refused = world.client().batch_execute(again).await.expect_err("a second conversion");
    let error = refused.as_db_error().expect("an answer");
    assert!(error.message().contains("it is partitioned already"), "{error}");
    assert!(error.hint().is_some_and(|hint| !hint.contains("Drop")), "{error}");
}

#[tokio::test]
async fn a_conversion_keeps_the_record_of_the_publication_and_is_refused_if_it_differs() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.catch_up().await;
    let prepare = "
        ALTER TABLE app_outbox ADD CONSTRAINT app_outbox_bound CHECK (occurred_at < '2999-01-01');
        CREATE UNIQUE INDEX app_outbox_id_time ON app_outbox (id, occurred_at)";
    world.execute(prepare).await;
    let alter = async |change: &str| {
        world.execute(&format!("ALTER PUBLICATION {} {change}", world.name())).await;
    };
    alter("DROP TABLE app_outbox").await;
    insert(&world, 3, "now()").await;
    alter("ADD TABLE app_outbox").await;
    let convert = "SELECT app_outbox_to_partitions('app_outbox', '1 day')";
    let refused = world.client().batch_execute(convert).await.expect_err("a refusal");
    let error = refused.as_db_error().expect("an answer");
    assert!(error.message().contains("its publication was changed"), "{error}");
    world.succeed(["slot", "recover", "--yes"]).await;
    world.catch_up().await;
    world.execute(convert).await;
    alter("DROP TABLE app_outbox").await;
    insert(&world, 3, "now()").await;
    alter("ADD TABLE app_outbox").await;
    let lost = world.run(["status"]).await;
    assert_eq!(lost.code, Some(5), "{}", lost.text);
    world.succeed(["slot", "recover", "--yes"]).await;
    world.catch_up().await;
    let verdict = world.check(&world.committed().await);
    assert!(verdict.lost.is_empty(), "{verdict}");
}

#[tokio::test]
async fn a_dry_run_does_not_count_rows_of_partitions_that_a_later_run_drops() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    world.succeed(["init", "--partition-by", "day"]).await;
    insert(&world, 20, "now()").await;
    world.settle().await;
    wait_until(DEADLINE, "rows old enough", async || {
        let young = "SELECT count(*) FROM app_outbox WHERE occurred_at > now() - interval '1 s'";
        (world.number(young).await == 0).then_some(())
    })
    .await;
    let prune = ["prune", "--older-than", "1s"];
    let shown = world.succeed(prune.into_iter().chain(["--dry-run"])).await;
    assert!(shown.contains("0 row(s)"), "{shown}");
    world.succeed(prune.into_iter().chain(["--yes"])).await;
    assert_eq!(world.number(ROWS).await, 20, "today's partition is dropped when it has ended");
}

#[tokio::test]
async fn a_conversion_is_refused_while_an_object_would_stay_bound_to_the_first_partition() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    world.succeed(["init"]).await;
    let prepare = "
        ALTER TABLE app_outbox ADD CONSTRAINT app_outbox_bound CHECK (occurred_at < '2999-01-01');
        CREATE UNIQUE INDEX app_outbox_id_time ON app_outbox (id, occurred_at);
        CREATE STATISTICS of_types ON aggregatetype, event_type FROM app_outbox;
        CREATE VIEW everything AS SELECT * FROM app_outbox;
        CREATE FUNCTION named() RETURNS bigint LANGUAGE sql AS 'SELECT count(*) FROM app_outbox'";
    world.execute(prepare).await;
    let convert = "SELECT app_outbox_to_partitions('app_outbox', '1 day')";
    for (create, object, drop) in [
        (
            "CREATE FUNCTION bound() RETURNS bigint LANGUAGE sql BEGIN ATOMIC SELECT count(*) FROM app_outbox; END",
            "function public.bound()",
            "DROP FUNCTION bound()",
        ),
        (
            "CREATE MATERIALIZED VIEW counted AS SELECT count(*) FROM app_outbox",
            "materialized view public.counted",
            "DROP MATERIALIZED VIEW counted",
        ),
        (
            "CREATE TABLE other (id uuid); CREATE POLICY known ON other USING (id IN (SELECT id FROM app_outbox))",
            "policy known on table public.other",
            "DROP TABLE other",
        ),
        (
            "CREATE FUNCTION of_row(app_outbox) RETURNS int LANGUAGE sql AS 'SELECT 1'",
            "function public.of_row(public.app_outbox)",
            "DROP FUNCTION of_row(app_outbox)",
        ),
        (
            "CREATE RULE kept AS ON DELETE TO app_outbox DO INSTEAD NOTHING",
            "rule kept on table public.app_outbox",
            "DROP RULE kept ON app_outbox",
        ),
    ] {
        world.execute(create).await;
        let refused = world.client().batch_execute(convert).await.expect_err("a refusal");
        let message = refused.as_db_error().expect("an answer").message().to_owned();
        assert!(message.contains("would use only its first partition"), "{message}");
        assert!(message.contains(object), "{object}: {message}");
        world.execute(drop).await;
    }
    world.execute(convert).await;
    assert!(world.number(PARTITIONS).await > 1);
    world.number("SELECT named()").await;
}
