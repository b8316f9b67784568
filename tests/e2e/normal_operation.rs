//! Normal operation: every committed row arrives once, in order and unchanged.

use std::collections::BTreeMap;
use std::time::Duration;

use walrelay_testkit::outbox::Workload;
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase, Producer, topic};

const MEBIBYTE: u64 = 1 << 20;

#[tokio::test]
async fn five_thousand_rows_with_rollbacks_among_them_arrive_once_in_order_and_the_slot_follows() {
    let Some(world) = InboxDatabase::create().await else { return };
    let mut relay = world.start_relay([]).await;

    let workload =
        Workload { aggregates_count: 100, rows_per_transaction: 13, ..Workload::of_rows(5_000) };
    let committed = workload.insert(world.client()).await.unwrap();

    world.pubsub.wait_stored(DEADLINE, 5_000).await;
    world.wait_confirmed(DEADLINE).await;
    world.wait_lag_below(DEADLINE, MEBIBYTE).await;
    assert_eq!(committed.len(), 5_000);
    world.check(&committed).assert_exactly_once();
    assert_eq!(relay.terminate(DEADLINE).await, Some(0));
    let troubles: Vec<String> =
        relay.lines().into_iter().filter(|line| !line.contains("\"INFO\"")).collect();
    assert!(troubles.is_empty(), "warnings in an undisturbed run: {troubles:#?}");
    assert_eq!(world.dispatch_count("dead").await + world.dispatch_count("retrying").await, 0);
}

#[tokio::test]
async fn every_attribute_and_every_byte_is_as_the_row_says() {
    let Some(world) = InboxDatabase::create().await else { return };
    let _relay = world.start_relay([]).await;
    world
        .execute(
            r#"INSERT INTO app_outbox
                 (id, aggregatetype, aggregateid, event_type, version, schema_version, payload, headers, occurred_at)
               VALUES
                 ('00000000-0000-4000-8000-000000000001', 'video', 'v-1 ü "x"', 'Uploaded', 9223372036854775807, 3,
                  '{"b": [1, 2.50, null], "a": "Grüße \\ \u2028 \""}',
                  '{"tenant": "t-9", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}',
                  '2024-02-29 23:59:59.123456+02'),
                 ('00000000-0000-4000-8000-000000000002', 'video', 'v-1 ü "x"', 'Deleted', 0, 1,
                  '{}', NULL, '2000-01-01 00:00:00+00')"#,
        )
        .await;
    world.pubsub.wait_stored(DEADLINE, 2).await;

    let messages = world.pubsub.emulator().published(&topic("video.events"));
    let attributes: Vec<BTreeMap<&str, &str>> =
        messages.iter().map(|message| message.attributes().into_iter().collect()).collect();
    let commit_lsn = attributes[0]["commit_lsn"];
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let first = [
        ("event_id", "00000000-0000-4000-8000-000000000001"),
        ("event_type", "Uploaded"),
        ("aggregate_type", "video"),
        ("aggregate_id", "v-1 ü \"x\""),
        ("version", "9223372036854775807"),
        ("schema_version", "3"),
        ("source", "public.app_outbox"),
        ("occurred_at", "2024-02-29T21:59:59.123456Z"),
        ("commit_lsn", commit_lsn),
        ("tx_index", "0"),
        ("tenant", "t-9"),
        ("traceparent", trace),
        ("googclient_traceparent", trace),
    ];
    assert_eq!(attributes[0], BTreeMap::from(first));
    let second = [
        ("event_id", "00000000-0000-4000-8000-000000000002"),
        ("event_type", "Deleted"),
        ("aggregate_type", "video"),
        ("aggregate_id", "v-1 ü \"x\""),
        ("version", "0"),
        ("schema_version", "1"),
        ("source", "public.app_outbox"),
        ("occurred_at", "2000-01-01T00:00:00.000000Z"),
        ("commit_lsn", commit_lsn),
        ("tx_index", "1"),
    ];
    assert_eq!(attributes[1], BTreeMap::from(second));
    for message in &messages {
        assert_eq!(message.key(), "v-1 ü \"x\"");
    }
    // The data equals the jsonb output byte for byte.
    let rows = world.client().query("SELECT payload::text FROM app_outbox ORDER BY id", &[]).await;
    let payloads: Vec<String> = rows.unwrap().iter().map(|row| row.get(0)).collect();
    let data: Vec<Vec<u8>> = messages.iter().map(|message| message.data().to_vec()).collect();
    assert_eq!(data, payloads.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>());
}

#[tokio::test]
async fn delayed_replies_keep_the_slot_at_its_position() {
    let Some(world) = InboxDatabase::create().await else { return };
    let _relay = world.start_relay(["--status-interval", "100ms"]).await;
    world.pubsub.fault("hold");
    let workload = Workload { rows_per_transaction: 1, ..Workload::of_rows(1) };
    let mut committed = workload.insert(world.client()).await.unwrap();
    world.pubsub.wait_held(DEADLINE).await;
    let before = world.confirmed_flush().await;

    // Status updates continue. The server keeps the time stamp of the last one.
    let sql = "SELECT reply_time::text FROM pg_stat_replication WHERE application_name IS NOT NULL
                AND pid = (SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1)";
    let mut replies = std::collections::BTreeSet::new();
    let more = Workload { first_number: 1, ..Workload::of_rows(100) };
    committed.extend(more.insert(world.client()).await.unwrap());
    wait_until(DEADLINE, "ten more status updates", async || {
        let row = world.client().query_opt(sql, &[&world.name()]).await.unwrap()?;
        replies.insert(row.get::<_, Option<String>>(0));
        (replies.len() > 10).then_some(())
    })
    .await;
    let (position, _) = held_commit(&world);
    assert!(world.confirmed_flush().await <= position, "confirmed past a row without a reply");
    assert!(world.confirmed_flush().await >= before, "the slot went backwards");

    world.pubsub.heal();
    world.wait_confirmed(DEADLINE).await;
    world.check(&committed).assert_exactly_once();
}

/// Returns the commit position in the first message.
fn held_commit(world: &InboxDatabase) -> (u64, String) {
    let stored = world.pubsub.stored();
    let text = stored[0].commit_lsn.clone();
    let (high, low) = text.split_once('/').expect("a position");
    let part = |digits| u64::from_str_radix(digits, 16).expect("hexadecimal digits");
    ((part(high) << 32) | part(low), text)
}

#[tokio::test]
async fn an_idle_outbox_does_not_pin_the_wal_of_a_busy_database() {
    let Some(world) = InboxDatabase::create().await else { return };
    let _relay = world.start_relay([]).await;
    world
        .execute(
            "CREATE TABLE business (id bigserial, filler text);
             ALTER TABLE business ALTER filler SET STORAGE PLAIN",
        )
        .await;
    let before = world.wal_end().await;

    // 100 MB of WAL from tables outside the publication.
    world
        .execute(
            "INSERT INTO business (filler) SELECT repeat(md5(n::text), 50)
               FROM generate_series(1, 60000) AS n",
        )
        .await;
    let written = world.wal_end().await - before;

    assert!(written > 100_000_000, "only {written} bytes were written");
    world.wait_lag_below(Duration::from_secs(10), 8 * MEBIBYTE).await;
}

#[tokio::test]
async fn until_caught_up_ends_with_success_when_everything_before_it_is_confirmed() {
    let Some(world) = InboxDatabase::create().await else { return };
    let committed = Workload::of_rows(500).insert(world.client()).await.unwrap();

    world.catch_up().await;
    world.check(&committed).assert_exactly_once();
    // A second run with no pending row.
    world.catch_up().await;
    assert_eq!(world.pubsub.stored_count(), 500);
}

#[tokio::test]
async fn until_caught_up_waits_for_what_is_due_in_dispatch_state() {
    let Some(world) = InboxDatabase::create().await else { return };
    let mut relay = world.start_relay(["--park-after", "300ms"]).await;
    world.pubsub.fault("key=v-0,reject=UNAVAILABLE");
    let producer = Producer::start(world.url(), Duration::from_millis(20));
    wait_until(DEADLINE, "rows of the failing key to be parked", async || {
        (world.dispatch_count("retrying").await >= 30).then_some(())
    })
    .await;
    producer.stop().await;
    world.wait_confirmed(DEADLINE).await;
    assert_eq!(relay.terminate(DEADLINE).await, Some(0));
    let parked = world.dispatch_count("retrying").await;
    world.pubsub.heal();
    // A row with a later retry time is not due, so `--until-caught-up` would not wait for it.
    world.succeed(["dispatch", "retry", "--yes", "--topic", "video.events"]).await;

    world.catch_up().await;
    world.check(&world.committed().await).assert_exactly_once();
    assert_eq!(world.dispatch_count("published").await, parked);
}

#[tokio::test]
async fn until_caught_up_ends_under_traffic_and_slow_replies_with_many_keys_due() {
    let Some(world) = InboxDatabase::create().await else { return };
    // More keys than lanes.
    world.pubsub.fault("reject=NOT_FOUND");
    let many =
        Workload { aggregates_count: 1_200, rows_per_transaction: 400, ..Workload::of_rows(1_200) };
    many.insert(world.client()).await.unwrap();
    let mut relay = world.start_relay(["--park-after", "300ms"]).await;
    world.wait_dispatch(DEADLINE, "retrying", 1_200).await;
    assert_eq!(relay.terminate(DEADLINE).await, Some(0));
    let start = world.wal_end().await;
    world.pubsub.heal();
    world.pubsub.fault("delay=60ms");
    world.succeed(["dispatch", "retry", "--yes", "--topic", "video.events"]).await;

    let producer = Producer::start(world.url(), Duration::from_millis(120));
    wait_until(DEADLINE, "some traffic", async || (producer.rows_count() > 20).then_some(())).await;
    let done = world.relay(["--until-caught-up"]).finish(DEADLINE).await;
    assert_eq!(done.code, Some(0), "{}", done.text);
    producer.stop().await;
    // Only rows before `start` count: later rows of the same keys also went through dispatch state.
    let published = format!(
        "SELECT count(*) FROM app_outbox_dispatch
          WHERE status = 'published' AND commit_lsn - '0/0'::pg_lsn < {start}"
    );
    assert_eq!(world.number(&published).await, 1_200);
}

#[tokio::test]
async fn a_rate_limits_how_many_rows_are_published_per_second() {
    let Some(world) = InboxDatabase::create().await else { return };
    let relay = world.start_relay(["--rate", "40"]).await;
    let began = std::time::Instant::now();
    Workload::of_rows(120).insert(world.client()).await.expect("rows");
    world.wait_confirmed(DEADLINE).await;
    // The first tenth of a second is free: four rows, and one batch of four.
    let least = std::time::Duration::from_millis((120 - 8) * 1_000 / 40);
    assert!(began.elapsed() >= least, "120 rows took {:?}", began.elapsed());
    assert_eq!(world.pubsub.stored_count(), 120);
    drop(relay);
}

#[tokio::test]
async fn a_kill_under_a_rate_limit_repeats_few_rows() {
    let Some(world) = InboxDatabase::create().await else { return };
    // Each key has many rows, so a relay that reads all of them could spend the rate on few keys.
    let workload = Workload { aggregates_count: 20, ..Workload::of_rows(1_500) };
    let committed = workload.insert(world.client()).await.unwrap();
    let mut relay = world.start_relay(["--rate", "500"]).await;
    world.pubsub.wait_stored(DEADLINE, 700).await;
    relay.kill();

    let _next = world.start_relay([]).await;
    world.wait_confirmed(DEADLINE).await;
    let verdict = world.check(&committed);
    assert!(verdict.lost.is_empty() && verdict.reordered.is_empty(), "{verdict}");
    let repeated = world.pubsub.stored_count() - 1_500;
    assert!(repeated <= 300, "{repeated} rows are repeated");
}
