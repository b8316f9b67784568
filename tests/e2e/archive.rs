//! `--archive`: each deleted row is in the archive, as a program that is not ours reads it.

use std::collections::HashSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use walrelay_testkit::outbox::Workload;
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase, Producer};

use super::kept_partitions::{init_with_tiny_partitions, insert, make_partition};

const ROWS: &str = "SELECT count(*) FROM app_outbox";

/// A new directory, which is removed at the end of the test.
pub(super) struct Directory(PathBuf);

impl Directory {
    pub(super) fn create(world: &InboxDatabase) -> Self {
        let path = std::env::temp_dir().join(format!("{}-archive", world.name()));
        std::fs::create_dir(&path).expect("a new directory");
        Self(path)
    }

    pub(super) fn path(&self) -> &str {
        self.0.to_str().expect("a path in UTF-8")
    }

    /// Returns the lines of all objects.
    pub(super) fn lines(&self) -> Vec<Value> {
        let tables = std::fs::read_dir(&self.0).expect("a directory").flatten();
        let files =
            tables.filter_map(|table| std::fs::read_dir(table.path()).ok()).flatten().flatten();
        let files = files.map(|file| file.path());
        let read = Command::new("gzip").arg("-dc").args(files).output().expect("gzip starts");
        let text = String::from_utf8(read.stdout).expect("UTF-8");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Reads the archive with Python, and compares it with ids. `WALRELAY_TEST_PYTHON` selects the
/// Python.
#[expect(clippy::disallowed_methods, reason = "a test is configured by its environment")]
pub(super) fn read_archive(directory: &str, ids: &HashSet<String>) -> Value {
    let python = std::env::var("WALRELAY_TEST_PYTHON").unwrap_or("python3".to_owned());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e/read_archive.py");
    let mut reader = Command::new(python)
        .arg(script)
        .arg(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("Python starts");
    let lines: String = ids.iter().map(|id| format!("{id}\n")).collect();
    let mut input = reader.stdin.take().expect("a pipe");
    input.write_all(lines.as_bytes()).expect("Python reads");
    drop(input);
    let done = reader.wait_with_output().expect("Python ends");
    assert!(done.status.success(), "the archive cannot be read");
    serde_json::from_slice(&done.stdout).expect("a JSON object")
}

pub(super) async fn ids(world: &InboxDatabase, sql: &str) -> HashSet<String> {
    let rows = world.client().query(sql, &[]).await.expect("the ids can be read");
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn pruned_rows_are_in_the_archive_and_a_missing_directory_deletes_none() {
    let Some(world) = InboxDatabase::create().await else { return };
    let archive = Directory::create(&world);
    Workload::of_rows(30).insert(world.client()).await.expect("rows");
    // A line break inside a value, and text that is not ASCII.
    world
        .execute(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             VALUES ('video', 'a\nb', 'test.made', 1, '{\"a\": \"line\\nbreak ü\"}')",
        )
        .await;
    world.settle().await;
    let before = ids(&world, "SELECT id::text FROM app_outbox").await;
    let gone = format!("{}/gone", archive.path());
    let refused = ["prune", "--yes", "--older-than", "1s", "--archive", &gone];
    wait_old_enough(&world).await;
    let refused = world.run(refused).await;
    assert_eq!(refused.code, Some(1), "{}", refused.text);
    assert!(refused.text.contains("archive-missing"), "{}", refused.text);
    assert_eq!(world.number(ROWS).await, 31);

    let prune = ["prune", "--yes", "--older-than", "1s", "--archive", archive.path()];
    let told = world.succeed(prune.into_iter().chain(["-o", "json"])).await;
    assert!(told.contains("\"archived_rows\": 31"), "{told}");
    assert_eq!(world.number(ROWS).await, 0);
    let read = read_archive(archive.path(), &before);
    assert_eq!(read["missing"], serde_json::json!([]), "{read}");
    assert_eq!(read["lines"], 31, "{read}");
    // A second run has nothing to archive, and writes no file.
    world.succeed(prune).await;
    assert_eq!(read_archive(archive.path(), &before)["files"], read["files"]);
}

#[tokio::test]
async fn prunes_that_race_over_old_partitions_all_succeed() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    world.succeed(["init", "--partition-by", "day"]).await;
    for year in 2001..=2012 {
        world.execute(&make_partition(&format!("outbox_{year}"), year)).await;
        insert(&world, 20, &format!("'{year}-06-01'")).await;
    }
    world.settle().await;
    let archive = Directory::create(&world);
    let prune = ["prune", "--yes", "--older-than", "30d", "--archive", archive.path()];
    let racing: Vec<_> = (0..3).map(|_| world.command(prune).start()).collect();
    for racer in racing {
        let done = racer.finish(DEADLINE).await;
        assert_eq!(done.code, Some(0), "{}", done.text);
    }
    // A process leaves a partition that another one has locked to a later run.
    world.succeed(prune).await;
    assert_eq!(world.number(ROWS).await, 0);
}

/// Waits until every row may be deleted with `--older-than 1s`.
pub(super) async fn wait_old_enough(world: &InboxDatabase) {
    wait_until(DEADLINE, "rows old enough", async || {
        let count = "SELECT count(*) FROM app_outbox WHERE occurred_at > now() - interval '1 s'";
        (world.number(count).await == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn every_row_of_an_id_is_archived_before_it_is_deleted() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    let archive = Directory::create(&world);
    world.succeed(["init", "--partition-by", "day"]).await;
    // 5,050 ids occur twice each, and an object ends at 10,000 rows.
    world
        .execute(
            "INSERT INTO app_outbox (id, aggregatetype, aggregateid, event_type, version, payload, occurred_at)
             SELECT ('00000000-0000-4000-8000-' || lpad((n % 5050)::text, 12, '0'))::uuid, 'video', 'v-1',
                    'test.made', n, '{}', now() - interval '3 days' + n * interval '1 ms'
               FROM generate_series(1, 10100) AS n",
        )
        .await;
    world.settle().await;
    let prune = ["prune", "--yes", "--older-than", "1d", "--archive", archive.path()];
    let told = world.succeed(prune.into_iter().chain(["-o", "json"])).await;
    assert!(told.contains("\"archived_rows\": 10100"), "{told}");
    assert_eq!(world.number(ROWS).await, 0);
    let read = read_archive(archive.path(), &HashSet::new());
    assert_eq!((&read["lines"], &read["ids"]), (&10_100.into(), &5_050.into()), "{read}");
}

/// A table of our own, in which nothing is required.
const LOOSE_TABLE: &str =
    "CREATE TABLE loose (id text, aggregatetype text, aggregateid text, event_type text,
       payload text, version bigint, occurred_at timestamptz DEFAULT now());
     ALTER TABLE loose ALTER payload SET STORAGE EXTERNAL";

#[tokio::test]
async fn rows_without_an_id_are_archived_and_rows_that_are_too_large_stay() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    let archive = Directory::create(&world);
    world.execute(LOOSE_TABLE).await;
    let table =
        ["--outbox-table", "public.loose", "--column-schema-version", "", "--column-headers", ""];
    world.succeed(["init"].into_iter().chain(table)).await;
    world
        .execute(
            "INSERT INTO loose (id, aggregatetype, aggregateid, event_type, payload, version)
             SELECT id, 'video', 'v-' || version, 'test.made', payload, version
               FROM (VALUES ('a', '{}', 1), (NULL, '{}', 2), ('large', repeat('x', 40000000), 3), ('c', '{}', 4))
                    AS row (id, payload, version)",
        )
        .await;
    world.catch_up().await;
    let discard = ["dispatch", "discard", "--yes", "--status", "dead", "--reason", "test"];
    world.succeed(discard).await;
    let behind =
        "SELECT count(*) FROM loose WHERE occurred_at > now() - interval '1 s' OR age(xmin) <=
                    (SELECT age(settled_xid::xid) FROM app_outbox_relay)";
    wait_until(DEADLINE, "rows that may be deleted", async || {
        world.execute("SELECT pg_logical_emit_message(true, 'foreign', 'x')").await;
        world.catch_up().await;
        (world.number(behind).await == 0).then_some(())
    })
    .await;
    let prune = ["prune", "--yes", "--older-than", "1s", "--archive", archive.path(), "-o", "json"];
    let told = world.succeed(prune).await;
    assert!(told.contains("\"archived_rows\": 3"), "{told}");
    assert!(told.contains("archive-failed") && told.contains("large"), "{told}");
    assert_eq!(world.number("SELECT count(*) FROM loose WHERE id = 'large'").await, 1);
    assert_eq!(world.number("SELECT count(*) FROM loose").await, 1);
}

/// The size of all partitions, and the number of rows.
async fn size(world: &InboxDatabase) -> (i64, i64) {
    let bytes =
        "SELECT sum(pg_total_relation_size(relid))::bigint FROM pg_partition_tree('app_outbox')";
    (world.number(bytes).await, world.number(ROWS).await)
}

#[tokio::test]
async fn under_constant_load_sizes_stay_flat_and_every_deleted_row_is_archived() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    let archive = Directory::create(&world);
    init_with_tiny_partitions(&world).await;
    world.set_up_consumer().await;
    let options = ["--prune-older-than", "2s", "--prune-interval", "1s", "--prune-archive"];
    let relay = world.start_relay(options.into_iter().chain([archive.path()])).await;
    let mut consumer = world.start_consumer([]).await;
    let producer = Producer::start(world.url(), Duration::from_millis(10));
    let dropped = async |count: u64| {
        wait_until(DEADLINE, &format!("{count} partitions to be dropped"), async || {
            let metrics = relay.wait_for_http(DEADLINE, "/metrics", 200).await;
            let name = "walrelay_partitions_dropped_total ";
            let value = metrics.lines().find_map(|line| line.strip_prefix(name))?;
            (value.trim().parse::<f64>().ok()? >= count as f64).then_some(())
        })
        .await;
    };
    dropped(3).await;
    let early = size(&world).await;
    dropped(9).await;
    let late = size(&world).await;
    assert!(late.0 < 2 * early.0 && late.1 < 2 * early.1, "{early:?} became {late:?}");

    let inserted = u64::from(producer.stop().await);
    world.pubsub.wait_stored(DEADLINE, inserted).await;
    world.wait_applied(i64::try_from(inserted).expect("few rows")).await;
    let mut relay = relay;
    assert_eq!(relay.terminate(DEADLINE).await, Some(0));
    assert_eq!(consumer.terminate(DEADLINE).await, Some(0));
    let stored = world.pubsub.stored();
    assert_eq!(stored.len() as u64, inserted, "a row was published twice");
    let left = ids(&world, "SELECT id::text FROM app_outbox").await;
    let deleted: HashSet<String> =
        stored.into_iter().map(|row| row.event_id).filter(|id| !left.contains(id)).collect();
    assert!(deleted.len() > 300, "{} rows were deleted", deleted.len());
    let read = read_archive(archive.path(), &deleted);
    assert_eq!(read["missing"], serde_json::json!([]), "{} deleted, {read}", deleted.len());
    let in_default = world.number("SELECT count(*) FROM app_outbox_default").await;
    assert_eq!(in_default, 0, "partitions were created too late");
}
