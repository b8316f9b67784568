//! A year of retention, partitions, archive and a consumer, on a server whose clock is moved.
//!
//! The server runs under libfaketime. Its clock moves by a day as soon as the day's rows are
//! published and the next partition exists. Each move ends the relay's session, because the server
//! takes the day for a silence of the relay. Everything else is the binary as users run it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use walrelay_private_postgres::{Installation, PrivatePostgres};
use walrelay_testkit::postgres::installation_or_skip;
use walrelay_testkit::{random_name, skip, wait_until};
use walrelay_tests::{DEADLINE, InboxDatabase, Producer};

use super::archive::{Directory, ids, read_archive};

/// Days of the first sample, when deletions have started, and of the second one.
const EARLY: std::ops::Range<u64> = 60..120;

/// The number of days of the second sample, at the end.
const LATE_DAYS: u64 = 60;

/// The settings that keep the server's timers out of the moved clock.
const SETTINGS: [(&str, &str); 3] =
    [("wal_sender_timeout", "0"), ("autovacuum_naptime", "1s"), ("timezone", "UTC")];

/// Bytes of a table with its partitions, and of their indexes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Size {
    table: i64,
    indexes: i64,
}

impl Size {
    fn max(self, other: Self) -> Self {
        Self { table: self.table.max(other.table), indexes: self.indexes.max(other.indexes) }
    }

    /// Whether this size is at most 1.5 times another one, and a mebibyte.
    fn is_flat_since(self, earlier: Self) -> bool {
        let is_flat = |late: i64, early: i64| late <= early + early / 2 + (1 << 20);
        is_flat(self.table, earlier.table) && is_flat(self.indexes, earlier.indexes)
    }
}

/// A server whose clock the test moves. The folder has its clock and a program `postgres` that
/// preloads libfaketime.
struct MovedClock {
    folder: PathBuf,
}

impl MovedClock {
    fn create(library: &Path, real: &Installation) -> Self {
        let folder = std::env::temp_dir().join(random_name("walrelay-clock"));
        fs::create_dir(&folder).expect("a new folder");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("a readable folder");
        let clock = Self { folder };
        clock.set_day(0);
        for entry in fs::read_dir(&real.bin_dir).expect("the server's programs").flatten() {
            if entry.file_name() != "postgres" {
                symlink(entry.path(), clock.folder.join(entry.file_name())).expect("a link");
            }
        }
        let script = format!(
            "#!/bin/sh\nexport LD_PRELOAD={} FAKETIME_TIMESTAMP_FILE={} FAKETIME_CACHE_DURATION=1\n\
             export FAKETIME_DONT_FAKE_MONOTONIC=1 DONT_FAKE_MONOTONIC=1\nexec {} \"$@\"\n",
            library.display(),
            clock.file().display(),
            real.bin_dir.join("postgres").display()
        );
        let program = clock.folder.join("postgres");
        fs::write(&program, script).expect("a program");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("a program");
        clock
    }

    fn file(&self) -> PathBuf {
        self.folder.join("clock")
    }

    /// Replaces the file in one step, because the server reads it at any time.
    fn set_day(&self, day: u64) {
        let next = self.folder.join("next");
        fs::write(&next, format!("+{day}d\n")).expect("the clock can be moved");
        fs::rename(next, self.file()).expect("the clock can be moved");
    }
}

impl Drop for MovedClock {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.folder).ok();
    }
}

fn faketime_or_skip() -> Option<PathBuf> {
    let library = fs::read_dir("/usr/lib").expect("the libraries").flatten().find_map(|entry| {
        let path = entry.path().join("faketime/libfaketime.so.1");
        path.exists().then_some(path)
    });
    library.or_else(|| skip("no libfaketime; Debian's package `faketime` has it"))
}

#[expect(clippy::disallowed_methods, reason = "a test's switch, not configuration")]
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Sizes of all tables of relay and inbox, by the name of the table or of its parent.
async fn sizes(world: &InboxDatabase) -> BTreeMap<String, Size> {
    let sql = "SELECT coalesce(i.inhparent, c.oid)::regclass::text,
                      sum(pg_table_size(c.oid))::bigint, sum(pg_indexes_size(c.oid))::bigint
                 FROM pg_class AS c LEFT JOIN pg_inherits AS i ON i.inhrelid = c.oid
                WHERE c.relkind IN ('r', 'p') AND c.relnamespace = 'public'::regnamespace GROUP BY 1";
    let rows = world.client().query(sql, &[]).await.expect("the sizes");
    rows.iter().map(|row| (row.get(0), Size { table: row.get(1), indexes: row.get(2) })).collect()
}

fn keep_largest(largest: &mut BTreeMap<String, Size>, sizes: &BTreeMap<String, Size>) {
    for (name, size) in sizes {
        let kept = largest.entry(name.clone()).or_default();
        *kept = kept.max(*size);
    }
}

/// Waits until the relay has published every row up to now. Without that, each move of the clock
/// would interrupt a relay that is still behind.
async fn wait_published(world: &InboxDatabase) {
    let rows = world.client().query("SELECT pg_current_wal_insert_lsn()::text", &[]).await;
    let end: String = rows.expect("the position")[0].get(0);
    let sql = format!(
        "SELECT count(*) FROM pg_replication_slots
          WHERE slot_name = '{}' AND confirmed_flush_lsn >= '{end}'",
        world.name()
    );
    wait_until(DEADLINE, "the relay to catch up", async || {
        (world.number(&sql).await == 1).then_some(())
    })
    .await;
}

/// Moves the server's clock, and waits until its sessions use the new time.
async fn move_clock(clock: &MovedClock, world: &InboxDatabase, day: u64) {
    let today = "SELECT extract(epoch FROM clock_timestamp())::bigint / 86400";
    let before = world.number(today).await;
    clock.set_day(day);
    wait_until(DEADLINE, "the new day", async || {
        (world.number(today).await > before).then_some(())
    })
    .await;
}

/// Waits until the partition of tomorrow exists. A new day begins after that, as in real life, where
/// a day is longer than the relay's interval.
async fn wait_for_tomorrow(world: &InboxDatabase) {
    let sql = "SELECT count(*) FROM app_outbox_partition_bounds('app_outbox')
                WHERE lower_bound <= now() + interval '1 day' AND upper_bound > now() + interval '1 day'";
    wait_until(DEADLINE, "the partition of tomorrow", async || {
        (world.number(sql).await == 1).then_some(())
    })
    .await;
}

#[tokio::test]
#[ignore = "takes minutes: make year"]
async fn in_a_year_no_table_grows_and_every_deleted_row_is_archived() {
    let (Some(real), Some(library)) = (installation_or_skip(), faketime_or_skip()) else { return };
    let (days, rows_a_day) = (setting("WALRELAY_DAYS", 365), setting("WALRELAY_ROWS_A_DAY", 2_000));
    assert!(days > EARLY.end + LATE_DAYS, "{days} days are too few");
    let clock = MovedClock::create(&library, &real);
    let installation = Installation { bin_dir: clock.folder.clone(), ..real };
    let server = PrivatePostgres::start(&installation, &SETTINGS).expect("a server starts");
    let Some(world) = InboxDatabase::create_empty_at(&server.url("postgres")).await else { return };
    let archive = Directory::create(&world);
    world.succeed(["init", "--partition-by", "day"]).await;
    world.set_up_consumer().await;
    let keep = ["--prune-older-than", "30d", "--prune-interval", "1s"];
    let options = keep.into_iter().chain(["--prune-archive", archive.path()]);
    let mut relay = world.start_relay(options).await;
    let mut consumer = world.start_consumer(keep).await;
    let producer = Producer::start(world.url(), Duration::from_millis(5));

    let started = Instant::now();
    let (mut early, mut late) = (BTreeMap::new(), BTreeMap::new());
    for day in 1..=days {
        let rows = day * rows_a_day;
        wait_until(DEADLINE, "the rows of the day", async || {
            (u64::from(producer.rows_count()) >= rows).then_some(())
        })
        .await;
        wait_published(&world).await;
        wait_for_tomorrow(&world).await;
        move_clock(&clock, &world, day).await;
        let now = sizes(&world).await;
        if day % 30 == 0 {
            eprintln!("day {day}, after {} s: {now:?}", started.elapsed().as_secs());
        }
        if EARLY.contains(&day) {
            keep_largest(&mut early, &now);
        }
        if day > days - LATE_DAYS {
            keep_largest(&mut late, &now);
        }
    }
    for (name, size) in &late {
        let before = early[name];
        eprintln!("{name}: at most {before:?} early, {size:?} late");
        assert!(size.is_flat_since(before), "{name}: {before:?} became {size:?}");
    }

    let inserted = u64::from(producer.stop().await);
    world.pubsub.wait_stored(DEADLINE, inserted).await;
    world.wait_applied(i64::try_from(inserted).expect("few rows")).await;
    assert_eq!(relay.terminate(DEADLINE).await, Some(0));
    assert_eq!(consumer.terminate(DEADLINE).await, Some(0));
    assert_history(&world, inserted, &archive).await;
}

/// Checks that every row was published and applied once and in order, and that each row is in the
/// outbox or in the archive.
async fn assert_history(world: &InboxDatabase, inserted: u64, archive: &Directory) {
    let distinct = "SELECT count(DISTINCT event_id) FROM effect.applied";
    assert_eq!(world.number(distinct).await, world.applied_count().await, "applied twice");
    let disorder = "SELECT count(*) FROM (
                      SELECT lsn::pg_lsn < lag(lsn::pg_lsn) OVER (PARTITION BY key ORDER BY n) AS is_late
                        FROM effect.applied) AS applied WHERE is_late";
    assert_eq!(world.number(disorder).await, 0, "applied out of order");
    let in_default = world.number("SELECT count(*) FROM app_outbox_default").await;
    assert_eq!(in_default, 0, "partitions were created too late");

    let all = ids(world, "SELECT event_id FROM effect.applied").await;
    assert_eq!(all.len() as u64, inserted);
    let left = ids(world, "SELECT id::text FROM app_outbox").await;
    let deleted = all.difference(&left).cloned().collect();
    let read = read_archive(archive.path(), &deleted);
    eprintln!("{} of {inserted} rows are deleted; the archive: {read}", deleted.len());
    assert_eq!(read["missing"], serde_json::json!([]), "{read}");
    assert!(deleted.len() as u64 > inserted / 2, "few rows were deleted");
}
