//! The new slot of a recovery retains WAL within `--wal-budget` while rows of the table are
//! published (I10), and the recovery advances with each restart.

use std::time::Duration;

use tokio::time::interval;
use walrelay_private_postgres::PrivatePostgres;
use walrelay_testkit::checker::Committed;
use walrelay_testkit::outbox::Workload;
use walrelay_testkit::postgres::installation_or_skip;
use walrelay_testkit::{http_get, wait_until};
use walrelay_tests::{DEADLINE, InboxDatabase, topic};

const MIB: u64 = 1 << 20;

/// Writes one mebibyte of foreign WAL.
const FOREIGN: &str = "SELECT pg_logical_emit_message(false, 'foreign', repeat('x', 1 << 20))";

/// Starts a server that drops a slot which retains 64 MiB. The budget is then half of that.
async fn limited_server() -> Option<(PrivatePostgres, InboxDatabase)> {
    let installation = installation_or_skip()?;
    let settings = [
        ("wal_level", "logical"),
        ("max_wal_size", "48MB"),
        ("min_wal_size", "32MB"),
        ("max_slot_wal_keep_size", "64MB"),
    ];
    let server = PrivatePostgres::start(&installation, &settings).expect("a server");
    let world = InboxDatabase::create_at(&server.url("postgres")).await?;
    Some((server, world))
}

/// A producer that deletes some of its rows as soon as they are committed.
struct Producer<'a> {
    world: &'a InboxDatabase,
    committed: Vec<Committed>,
    foreign_mebibytes: u64,
}

impl<'a> Producer<'a> {
    /// Loses the slot, and inserts rows that only the table has.
    async fn over_lost_slot(world: &'a InboxDatabase, missed: u32) -> Self {
        let mut producer = Self { world, committed: Vec::new(), foreign_mebibytes: 0 };
        producer.insert(30).await;
        world.catch_up().await;
        world.execute(&format!("SELECT pg_drop_replication_slot('{}')", world.name())).await;
        producer.insert(missed).await;
        world.succeed(["slot", "recover", "--yes"]).await;
        producer
    }

    async fn insert(&mut self, rows: u32) {
        let first_number = u32::try_from(self.committed.len()).expect("few rows");
        let workload = Workload { first_number, ..Workload::of_rows(rows) };
        self.committed.extend(workload.insert(self.world.client()).await.expect("rows"));
    }

    async fn insert_and_delete(&mut self, rows: u32) {
        let before = self.committed.len();
        self.insert(rows).await;
        let ids: Vec<&str> = self.committed[before..].iter().map(|row| &*row.event_id).collect();
        let delete = "DELETE FROM app_outbox WHERE id::text = ANY ($1)";
        let deleted = self.world.client().execute(delete, &[&ids]).await.expect("rows go");
        assert_eq!(deleted, u64::from(rows));
    }

    /// Writes this much WAL of others, at most ten times a second, with rows in between. Every second
    /// batch is deleted.
    async fn write_beside(&mut self, mebibytes: u64, mebibytes_per_step: u64) {
        let mut pace = interval(Duration::from_millis(100));
        for step in 0..mebibytes / mebibytes_per_step {
            pace.tick().await;
            self.write_foreign(mebibytes_per_step).await;
            match step % 2 {
                0 => self.insert(3).await,
                _ => self.insert_and_delete(3).await,
            }
        }
        // The server drops slots at a checkpoint.
        self.world.execute("CHECKPOINT").await;
    }

    /// Writes this much WAL of others once the slot is safe from the server, which drops it if it retains
    /// 64 MiB. The relay acts on 24 MiB that are not confirmed. The server frees WAL in steps: it remembers
    /// one log of its running transactions at a time, such as a checkpoint writes. What is before that is freed
    /// once it is confirmed. So it retains up to twice what is not confirmed, and the distance of two
    /// such logs.
    async fn write_foreign(&mut self, mebibytes: u64) {
        for _ in 0..mebibytes {
            self.world.wait_lag_below(DEADLINE, 26 * MIB).await;
            self.world.execute(FOREIGN).await;
            self.foreign_mebibytes += 1;
            if self.foreign_mebibytes.is_multiple_of(4) {
                self.world.execute("CHECKPOINT").await;
            }
        }
    }

    async fn assert_all_come_in_order(&self) {
        let Self { world, committed, .. } = self;
        let finished = "SELECT count(*) FROM app_outbox_relay WHERE operation IS NULL";
        wait_until(DEADLINE, "the recovery to be finished", async || {
            (world.number(finished).await == 1).then_some(())
        })
        .await;
        world.wait_confirmed(DEADLINE).await;
        world.wait_dispatch(DEADLINE, "retrying", 0).await;
        let verdict = world.check(committed);
        assert!(verdict.lost.is_empty() && verdict.reordered.is_empty(), "{verdict}");
        assert!(verdict.misplaced.is_empty(), "{verdict}");
    }
}

fn stored(world: &InboxDatabase) -> usize {
    world.pubsub.emulator().published(&topic("video.events")).len()
}

#[tokio::test]
async fn a_recovery_in_an_outage_keeps_its_slot_within_the_budget_and_loses_no_deleted_row() {
    let Some((_server, world)) = limited_server().await else { return };
    let mut producer = Producer::over_lost_slot(&world, 70).await;
    world.pubsub.fault("reject=UNAVAILABLE");
    let relay = world.start_relay([]).await;
    producer.write_beside(160, 2).await;
    assert!(world.dispatch_count("retrying").await > 0, "rows of the slot are recorded");
    let kept =
        "SELECT count(*) FROM pg_replication_slots WHERE wal_status IN ('reserved', 'extended')";
    // The slot may be beyond its limit for a moment, because `restart_lsn` moves in steps.
    wait_until(DEADLINE, "the slot to be kept", async || {
        (world.number(kept).await == 1).then_some(())
    })
    .await;

    world.pubsub.heal();
    producer.assert_all_come_in_order().await;
    let is_lost = |line: &String| line.contains("the new slot is lost");
    assert!(!relay.lines().iter().any(is_lost), "the slot was never lost");
}

#[tokio::test]
async fn during_a_recovery_the_retained_wal_and_the_condition_of_the_relay_are_on_record() {
    let Some(world) = InboxDatabase::create().await else { return };
    let _producer = Producer::over_lost_slot(&world, 70).await;
    world.pubsub.fault("reject=PERMISSION_DENIED");
    let relay = world.relay(["--wal-budget", "64MiB"]).start();
    wait_until(DEADLINE, "the WAL budget in /status", async || {
        let (_, body) = http_get(relay.http_address(), "/status").await.ok()?;
        body.contains("\"budget_bytes\":67108864").then_some(())
    })
    .await;
    let noted = "SELECT count(*) FROM app_outbox_relay AS r
                   JOIN pg_replication_slots AS s ON s.slot_name = r.slot
                  WHERE r.operation ->> 'kind' = 'recovery' AND (r.condition ->> 'pid')::int = s.active_pid
                    AND jsonb_array_length(r.condition -> 'reasons') > 0";
    wait_until(DEADLINE, "the condition in the relay's row", async || {
        (world.number(noted).await == 1).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_slow_recovery_beside_other_wal_advances_with_each_restart() {
    let Some((_server, world)) = limited_server().await else { return };
    let mut producer = Producer::over_lost_slot(&world, 900).await;
    let before = stored(&world);
    for _ in 0..3 {
        let mut relay = world.relay(["--rate", "100"]).start();
        producer.write_beside(80, 4).await;
        relay.terminate(DEADLINE).await;
    }
    let _relay = world.start_relay([]).await;
    producer.assert_all_come_in_order().await;
    let (repeated, missed) = (stored(&world) - before, producer.committed.len() - 30);
    assert!(repeated < missed + 100, "{repeated} messages for {missed} rows");
}

#[tokio::test]
async fn rows_of_a_slot_that_is_lost_during_its_recovery_follow_the_rows_before_them() {
    let Some((_server, world)) = limited_server().await else { return };
    let mut producer = Producer::over_lost_slot(&world, 900).await;
    let before = stored(&world);
    {
        let mut relay = world.relay(["--rate", "100"]).start();
        producer.write_beside(60, 2).await;
        // The rows that are deleted are recorded once they are this far behind.
        producer.write_foreign(40).await;
        relay.kill();
    }
    assert!(world.dispatch_count("retrying").await > 0, "rows of the slot are recorded");
    world.wait_slot_free(DEADLINE).await;
    world.execute(&format!("SELECT pg_drop_replication_slot('{}')", world.name())).await;
    producer.insert(50).await;
    let relay = world.start_relay([]).await;
    relay.wait_for_line(DEADLINE, "continuing behind the rows that are settled").await;
    producer.insert_and_delete(20).await;
    producer.assert_all_come_in_order().await;
    let (repeated, missed) = (stored(&world) - before, producer.committed.len() - 30);
    assert!(repeated < missed + 200, "{repeated} messages for {missed} rows");
}
