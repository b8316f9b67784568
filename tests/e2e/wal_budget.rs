//! The WAL that the relay retains stays within `--wal-budget`, whether or not Pub/Sub accepts
//! messages (I10).

use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::time::interval;
use walrelay_private_postgres::PrivatePostgres;
use walrelay_testkit::outbox::Workload;
use walrelay_testkit::postgres::installation_or_skip;
use walrelay_testkit::relay::Relay;
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase};

const MIB: u64 = 1 << 20;

/// Writes one mebibyte of foreign WAL.
const FOREIGN: &str = "SELECT pg_logical_emit_message(false, 'foreign', repeat('x', 1 << 20))";

/// Starts a private server, because on a shared server the slot would also retain the WAL of other
/// tests.
async fn own_server() -> Option<(PrivatePostgres, InboxDatabase)> {
    let installation = installation_or_skip()?;
    let settings =
        [("wal_level", "logical"), ("max_wal_size", "256MB"), ("max_prepared_transactions", "2")];
    let server = PrivatePostgres::start(&installation, &settings).expect("a server");
    let world = InboxDatabase::create_at(&server.url("postgres")).await?;
    Some((server, world))
}

/// Writes this much foreign WAL in steps, ten times a second. Returns the highest amount of
/// retained WAL.
async fn write_foreign_log(world: &InboxDatabase, mebibytes: u64, rows: u32) -> u64 {
    let mut most = 0;
    let mut pace = interval(Duration::from_millis(100));
    for step in 1..=u32::try_from(mebibytes).expect("few") {
        pace.tick().await;
        world.execute(FOREIGN).await;
        if rows > 0 {
            let workload = Workload { first_number: step * rows, ..Workload::of_rows(rows) };
            workload.insert(world.client()).await.expect("rows");
        }
        most = most.max(world.slot_lag_bytes().await);
    }
    most
}

async fn assert_all_came_in_order(world: &InboxDatabase) {
    let committed = world.committed().await;
    world.pubsub.wait_stored(DEADLINE, committed.len() as u64).await;
    world.wait_dispatch(DEADLINE, "retrying", 0).await;
    let verdict = world.check(&committed);
    assert!(verdict.lost.is_empty() && verdict.reordered.is_empty(), "{verdict}");
}

#[tokio::test]
async fn one_refused_idle_key_does_not_pin_the_wal() {
    let Some((_server, world)) = own_server().await else { return };
    let relay = world.start_relay(["--wal-budget", "32MiB"]).await;
    world.pubsub.fault("reject=UNAVAILABLE");
    Workload::of_rows(50).insert(world.client()).await.expect("rows");

    let most = write_foreign_log(&world, 80, 0).await;
    assert!(most < 40 * MIB, "{most} bytes of log waited");
    assert_eq!(world.dispatch_count("dead").await, 0);
    let metrics = relay.wait_for_http(DEADLINE, "/metrics", 200).await;
    assert!(metrics.lines().any(|line| line == "walrelay_wal_budget_bytes 33554432"), "{metrics}");
    assert!(!metrics.lines().any(|line| line == "walrelay_spilled_total 0"), "{metrics}");

    world.pubsub.heal();
    assert_all_came_in_order(&world).await;
}

#[tokio::test]
async fn an_outage_under_load_retains_wal_within_the_budget_and_keeps_order() {
    let Some((_server, world)) = own_server().await else { return };
    let relay = world.start_relay(["--wal-budget", "32MiB"]).await;
    Workload::of_rows(20).insert(world.client()).await.expect("rows");
    world.pubsub.wait_stored(DEADLINE, 20).await;
    world.pubsub.fault("reject=UNAVAILABLE");

    let most = write_foreign_log(&world, 100, 20).await;
    assert!(most < 44 * MIB, "{most} bytes of log waited");
    let status = relay.wait_for_http(DEADLINE, "/status", 200).await;
    let status: Value = serde_json::from_str(&status).expect("/status is JSON");
    assert_eq!(status["relay"]["wal_budget"]["budget_bytes"], 33_554_432, "{status}");
    // Every row is spilled and every retry fails. This counts as an outage, although memory holds
    // few rows.
    let reasons = relay.wait_for_http(DEADLINE, "/readyz", 503).await;
    assert!(reasons.contains("Pub/Sub stores nothing"), "{reasons}");
    assert!(reasons.contains("UNAVAILABLE (a fault rejects this request"), "{reasons}");

    world.pubsub.heal();
    assert_all_came_in_order(&world).await;
    relay.wait_for_http(DEADLINE, "/readyz", 200).await;
}

#[tokio::test]
async fn calls_without_a_reply_do_not_pin_the_wal_for_the_publish_timeout() {
    let Some((_server, world)) = own_server().await else { return };
    let _relay = world.start_relay(["--wal-budget", "16MiB"]).await;
    world.pubsub.fault("black-hole");
    Workload::of_rows(30).insert(world.client()).await.expect("rows");
    write_foreign_log(&world, 16, 0).await;

    let began = Instant::now();
    world.wait_lag_below(Duration::from_secs(30), 2 * MIB).await;
    assert!(began.elapsed() < Duration::from_secs(30));
    world.pubsub.heal();
    assert_all_came_in_order(&world).await;
}

#[tokio::test]
async fn one_key_without_replies_does_not_pin_the_wal_while_others_flow() {
    let Some((_server, world)) = own_server().await else { return };
    // In ten seconds, more WAL is written than the budget allows.
    let options = ["--wal-budget", "64MiB", "--publish-timeout", "10s"];
    let relay = world.start_relay(options).await;
    world.pubsub.fault("key=v-1,black-hole");
    let most = write_foreign_log(&world, 140, 20).await;
    assert!(most < 72 * MIB, "{most} bytes of log waited");
    let metrics = relay.wait_for_http(DEADLINE, "/metrics", 200).await;
    let is_told = |line: &str| line.contains("DEADLINE_EXCEEDED") && !line.ends_with(" 0");
    assert!(metrics.lines().any(is_told), "{metrics}");
    assert_eq!(world.dispatch_count("dead").await, 0);
    wait_until(DEADLINE, "the status to tell that a try had no answer", async || {
        let status = world.succeed(["status"]).await;
        status.contains("; the last try had no answer at ").then_some(())
    })
    .await;

    world.pubsub.heal();
    assert_all_came_in_order(&world).await;
}

#[tokio::test]
async fn an_outage_within_the_budget_parks_nothing() {
    let Some((_server, world)) = own_server().await else { return };
    let _relay = world.start_relay(["--wal-budget", "64MiB", "--park-after", "1s"]).await;
    world.pubsub.fault("reject=UNAVAILABLE");
    write_foreign_log(&world, 30, 10).await;
    assert_eq!(world.number("SELECT count(*) FROM app_outbox_dispatch").await, 0);
    wait_until(DEADLINE, "the status to report the outage as the relay noted it", async || {
        let status = world.succeed(["status"]).await;
        let is_told = status.contains("; not ready: Pub/Sub stores nothing")
            && status.contains("(a fault rejects this request");
        is_told.then_some(())
    })
    .await;
    world.pubsub.heal();
    assert_all_came_in_order(&world).await;
}

/// Returns the relay's `/status`.
async fn status_of(relay: &Relay) -> Value {
    let status = relay.wait_for_http(DEADLINE, "/status", 200).await;
    serde_json::from_str(&status).expect("/status is JSON")
}

/// Inserts two thousand rows without any foreign WAL.
async fn write_rows(world: &InboxDatabase, first_number: u32) {
    let workload = Workload {
        first_number,
        aggregates_count: 40,
        rows_per_transaction: 500,
        rollback_every: 0,
        ..Workload::of_rows(2_000)
    };
    workload.insert(world.client()).await.expect("rows");
}

#[tokio::test]
async fn spilling_pauses_where_outbox_rows_dominate_the_wal_and_foreign_wal_is_confirmed() {
    let Some((_server, world)) = own_server().await else { return };
    let relay = world.start_relay(["--wal-budget", "8MiB"]).await;
    world.pubsub.fault("reject=UNAVAILABLE");
    for batch in 0..20 {
        write_rows(&world, batch * 2_000).await;
    }
    wait_until(DEADLINE, "spilling to be given up", async || {
        (status_of(&relay).await["relay"]["wal_budget"]["futile"] == true).then_some(())
    })
    .await;

    let reasons = status_of(&relay).await["relay"]["reasons"].to_string();
    assert!(reasons.contains("outbox rows"), "{reasons}");

    // Without spilling, foreign WAL behind the rows would be retained for ever. As much foreign WAL
    // as the spilling costs is enough to move past all rows.
    write_rows(&world, 40_000).await;
    write_foreign_log(&world, 100, 0).await;
    wait_until(DEADLINE, "the log to be passed", async || {
        (held_bytes(&relay).await <= 8 * MIB).then_some(())
    })
    .await;
    assert_eq!(world.number("SELECT count(*) FROM app_outbox_dispatch").await, 42_000);

    world.pubsub.heal();
    assert_all_came_in_order(&world).await;
    relay.wait_for_http(DEADLINE, "/readyz", 200).await;
}

async fn held_bytes(relay: &Relay) -> u64 {
    status_of(relay).await["relay"]["wal_budget"]["retained_bytes"].as_u64().expect("a number")
}

#[tokio::test]
async fn without_a_budget_the_wal_is_retained() {
    let Some((_server, world)) = own_server().await else { return };
    let _relay = world.start_relay(["--wal-budget", "off"]).await;
    world.pubsub.fault("reject=UNAVAILABLE");
    Workload::of_rows(5).insert(world.client()).await.expect("rows");
    let most = write_foreign_log(&world, 60, 0).await;
    assert!(most > 50 * MIB, "{most} bytes of log waited");
    world.pubsub.heal();
    assert_all_came_in_order(&world).await;
}

#[tokio::test]
async fn the_budget_follows_the_server_while_the_relay_runs() {
    let Some((_server, world)) = own_server().await else { return };
    let relay = world.start_relay([]).await;
    let set = "ALTER SYSTEM SET max_slot_wal_keep_size = '96MB'";
    world.execute(set).await;
    world.execute("SELECT pg_reload_conf()").await;
    relay.wait_for_line(DEADLINE, "max_slot_wal_keep_size was changed").await;
    let metrics = relay.wait_for_http(DEADLINE, "/metrics", 200).await;
    let budget = format!("walrelay_wal_budget_bytes {}", 48 * MIB);
    assert!(metrics.contains(&budget), "{metrics}");
    let status = world.succeed(["status"]).await;
    assert!(status.contains("48 MiB; the server retains 96 MiB for a slot"), "{status}");
    let checked = world.run(["check", "-v"]).await.text;
    assert!(checked.contains("is 48 MiB; the server's bound is 96 MiB"), "{checked}");
}

/// Waits until `/status` names the cause of retained but confirmed WAL, and the cause satisfies
/// `is_so`.
async fn wait_pinned_by(relay: &Relay, what: &str, is_so: impl Fn(&Value) -> bool) {
    wait_until(DEADLINE, what, async || {
        let status = relay.wait_for_http(DEADLINE, "/status", 200).await;
        let status: Value = serde_json::from_str(&status).expect("/status is JSON");
        is_so(&status["pinned_by"]).then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_cause_of_retained_confirmed_wal_is_named() {
    let Some((_server, world)) = own_server().await else { return };
    let relay = world.start_relay([]).await;

    let writer = world.connect().await;
    let begin = "BEGIN; SELECT pg_current_xact_id()";
    writer.batch_execute(begin).await.expect("a transaction that writes");
    let pid = writer.query_one("SELECT pg_backend_pid()", &[]).await.expect("a row");
    let pid: i32 = pid.get(0);
    wait_pinned_by(&relay, "the writer to be named", |by| {
        by["pid"] == pid && by["seconds"].as_f64().is_some_and(|seconds| seconds >= 0.0)
    })
    .await;

    writer.batch_execute("PREPARE TRANSACTION 'forgotten'").await.expect("it is prepared");
    wait_pinned_by(&relay, "the prepared transaction to be named", |by| {
        by["prepared"] == "forgotten" && by["pid"].is_null()
    })
    .await;

    writer.batch_execute("ROLLBACK PREPARED 'forgotten'").await.expect("it is rolled back");
    wait_pinned_by(&relay, "nobody to be named", Value::is_null).await;
}
