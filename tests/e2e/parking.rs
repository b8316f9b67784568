//! One failing key or topic, a complete outage, and the recovery from each.

use std::time::Duration;

use googleapis_tonic_google_pubsub_v1::google::pubsub::v1::PubsubMessage;
use prost::Message as _;
use tokio_postgres::types::ToSql;
use walrelay_testkit::checker::Committed;
use walrelay_testkit::outbox::Workload;
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase, Producer, topic};

const MEBIBYTE: u64 = 1 << 20;

#[tokio::test]
async fn a_failing_aggregate_is_parked_and_returns_in_order_while_everything_else_flows() {
    let Some(world) = InboxDatabase::create().await else { return };
    let relay = world.start_relay(["--park-after", "2s"]).await;
    world.pubsub.fault("key=v-3,reject=UNAVAILABLE");
    let producer = Producer::start(world.url(), Duration::from_millis(20));

    // The key is parked, and the slot moves past its rows while more of them arrive.
    wait_until(DEADLINE, "rows of the failing key to be parked", async || {
        (world.dispatch_count("retrying").await > 0).then_some(())
    })
    .await;
    let parked = world.dispatch_count("retrying").await;
    wait_until(DEADLINE, "later rows of the key to queue behind the parked ones", async || {
        (world.dispatch_count("retrying").await > parked + 100).then_some(())
    })
    .await;
    world.wait_confirmed(DEADLINE).await;
    world.wait_lag_below(DEADLINE, MEBIBYTE).await;
    let before = world.pubsub.stored();
    assert!(
        before.iter().all(|message| message.key != "v-3"),
        "the key failed, yet it got through"
    );
    assert!(before.len() > 500, "the other keys have not been flowing");
    let body = relay.wait_for_http(DEADLINE, "/livez", 200).await;
    assert!(body.contains("true"), "{body}");

    // The fault ends under load. The key returns to its live lane without a gap and in order.
    world.pubsub.heal();
    wait_until(DEADLINE, "the key's backlog to be published", async || {
        (world.dispatch_count("retrying").await == 0).then_some(())
    })
    .await;
    let redelivered = world.dispatch_count("published").await;
    let rows = producer.stop().await;
    let more = Workload { first_number: 1_000_000, aggregates_count: 10, ..Workload::of_rows(200) };
    more.insert(world.client()).await.unwrap();
    world.wait_confirmed(DEADLINE).await;
    // Rows from the time before the key returned to live are confirmed once they are recorded.
    world.wait_dispatch(DEADLINE, "retrying", 0).await;
    world.check(&world.committed().await).assert_exactly_once();
    assert!(redelivered > 100, "{redelivered} of {rows} rows went through dispatch state");
    let after = world.dispatch_count("published").await;
    let grown = after - redelivered;
    assert!(grown < 200, "{grown} rows more were parked: the key is not live again");
}

#[tokio::test]
async fn an_outage_of_everything_parks_nothing_and_loses_nothing() {
    let Some(world) = InboxDatabase::create().await else { return };
    let _relay = world.start_relay(["--park-after", "2s"]).await;
    let producer = Producer::start(world.url(), Duration::from_millis(20));
    world.pubsub.wait_stored(DEADLINE, 100).await;

    world.pubsub.fault("reject=UNAVAILABLE");
    let began = std::time::Instant::now();
    wait_until(DEADLINE, "ten seconds of outage", async || {
        assert_eq!(world.dispatch_count("retrying").await, 0, "an outage parks nothing");
        (began.elapsed() > Duration::from_secs(10)).then_some(())
    })
    .await;
    world.pubsub.heal();

    producer.stop().await;
    world.wait_confirmed(DEADLINE).await;
    assert_eq!(world.number("SELECT count(*) FROM app_outbox_dispatch").await, 0);
    world.check(&world.committed().await).assert_exactly_once();
}

#[tokio::test]
async fn a_topic_that_is_missing_makes_it_unready_and_flows_once_it_is_created() {
    let Some(world) = InboxDatabase::create().await else { return };
    let relay = world.start_relay(["--park-after", "1h"]).await;
    let audio = Workload { aggregate_type: "audio".into(), ..Workload::of_rows(60) };
    let mut committed = audio.insert(world.client()).await.unwrap();
    let video = Workload { aggregate_prefix: "w-".into(), ..Workload::of_rows(60) };
    committed.extend(video.insert(world.client()).await.unwrap());

    let body = relay.wait_for_http(DEADLINE, "/readyz", 503).await;
    assert!(body.contains("audio.events"), "{body}");
    world.pubsub.wait_stored(DEADLINE, 60).await;

    world.pubsub.create_topic("audio.events");
    world.wait_confirmed(DEADLINE).await;
    relay.wait_for_http(DEADLINE, "/readyz", 200).await;
    world.check(&committed).assert_exactly_once();
}

#[tokio::test]
async fn rows_of_a_topic_that_refuses_every_row_as_invalid_wait_and_follow_in_order() {
    for stored_before in [false, true] {
        let Some(world) = InboxDatabase::create().await else { return };
        world.pubsub.create_topic("audio.events");
        let relay = world.start_relay(["--park-after", "2s"]).await;
        let audio = Workload {
            aggregate_type: "audio".into(),
            aggregate_prefix: "a-".into(),
            ..Workload::of_rows(300)
        };
        let mut committed = Vec::new();
        if stored_before {
            committed.extend(audio.insert(world.client()).await.expect("rows are inserted"));
            world.pubsub.wait_stored(DEADLINE, 300).await;
        }
        world.pubsub.fault("topic=audio.events,reject=INVALID_ARGUMENT");
        let more = Workload { first_number: 300, ..audio };
        committed.extend(more.insert(world.client()).await.expect("rows are inserted"));
        let body = relay.wait_for_http(DEADLINE, "/readyz", 503).await;
        assert!(body.contains("audio.events") && body.contains("schema"), "{body}");
        let video = Workload::of_rows(30).insert(world.client()).await.expect("rows are inserted");
        committed.extend(video);
        // The rows are parked, so the slot moves on.
        world.wait_confirmed(DEADLINE).await;
        assert_eq!(world.dispatch_count("dead").await, 0);

        world.pubsub.heal();
        world.wait_dispatch(DEADLINE, "retrying", 0).await;
        relay.wait_for_http(DEADLINE, "/readyz", 200).await;
        assert_eq!(world.dispatch_count("dead").await, 0);
        world.check(&committed).assert_exactly_once();
    }
}

#[tokio::test]
async fn rows_of_very_many_missing_topics_do_not_stop_the_others() {
    let Some(world) = InboxDatabase::create().await else { return };
    // More rows than may be in flight, and none is parked by its time.
    let _relay = world.start_relay(["--park-after", "1h"]).await;
    world
        .execute(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             SELECT 'missing-' || n, 'k-' || n, 'test.made', 1, '{}' FROM generate_series(1, 25000) AS n",
        )
        .await;
    Workload::of_rows(10).insert(world.client()).await.expect("rows are inserted");
    world.pubsub.wait_stored(DEADLINE, 10).await;
    assert_eq!(world.dispatch_count("dead").await, 0);
}

#[tokio::test]
async fn a_dead_topic_among_healthy_ones_parks_its_own_keys_only() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.pubsub.create_topic("audio.events");
    let relay = world.start_relay(["--park-after", "500ms"]).await;
    world.pubsub.fault("topic=audio.events,reject=PERMISSION_DENIED");
    let audio = Workload {
        aggregate_type: "audio".into(),
        aggregate_prefix: "a-".into(),
        ..Workload::of_rows(90)
    };
    let mut committed = audio.insert(world.client()).await.unwrap();
    let video = Producer::start(world.url(), Duration::from_millis(50));

    world.wait_dispatch(DEADLINE, "retrying", 90).await;
    let body = relay.wait_for_http(DEADLINE, "/readyz", 503).await;
    assert!(body.contains("audio.events") && body.contains("add-iam-policy-binding"), "{body}");
    video.stop().await;
    world.wait_confirmed(DEADLINE).await;
    assert_eq!(
        world
            .number("SELECT count(*) FROM app_outbox_dispatch WHERE topic NOT LIKE '%audio.events'")
            .await,
        0
    );

    world.pubsub.heal();
    world.succeed(["dispatch", "retry", "--yes", "--topic", "audio.events"]).await;
    world.wait_dispatch(DEADLINE, "published", 90).await;
    relay.wait_for_http(DEADLINE, "/readyz", 200).await;
    committed.clear();
    committed.extend(world.committed().await);
    world.check(&committed).assert_exactly_once();
}

#[tokio::test]
async fn a_hundred_thousand_parked_rows_reload_within_the_byte_budget() {
    let Some(world) = InboxDatabase::create().await else { return };
    let parked = insert_parked_rows(&world, 100_000).await;

    let relay = world.start_relay(["--max-in-flight-bytes", "16MiB"]).await;
    let long = Duration::from_secs(150);
    world.pubsub.wait_stored(long, 100_000).await;
    world.wait_dispatch(long, "published", 100_000).await;

    if let Some(peak) = relay.peak_memory_bytes() {
        eprintln!("peak memory of the relay: {} MiB", peak >> 20);
        assert!(peak < 100 << 20, "the relay took {} MiB", peak >> 20);
    }
    world.check(&parked).assert_exactly_once();
}

/// Inserts parked rows of one kilobyte over a thousand keys, as an earlier relay would have
/// recorded them.
async fn insert_parked_rows(world: &InboxDatabase, rows_count: u32) -> Vec<Committed> {
    let sql = "INSERT INTO app_outbox_dispatch
                 (slot, event_id, commit_lsn, tx_index, topic, ordering_key, message, status, next_attempt_at)
               SELECT $1, id, '0/100'::pg_lsn + n, 0, $2, key, message, 'retrying',
                      CASE WHEN n < 1000 THEN now() END
                 FROM unnest($3::bigint[], $4::text[], $5::text[], $6::bytea[]) AS r (n, id, key, message)";
    let mut parked = Vec::new();
    for first in (0..rows_count).step_by(5_000) {
        let numbers: Vec<i64> = (first..first + 5_000).map(i64::from).collect();
        let rows: Vec<Committed> = numbers.iter().map(|number| parked_row(*number)).collect();
        let ids: Vec<&str> = rows.iter().map(|row| row.event_id.as_str()).collect();
        let keys: Vec<&str> = rows.iter().map(|row| row.key.as_str()).collect();
        let messages: Vec<Vec<u8>> =
            numbers.iter().zip(&rows).map(|(number, row)| encoded(*number, row)).collect();
        let parameters: [&(dyn ToSql + Sync); 6] =
            [&world.name(), &topic("video.events"), &numbers, &ids, &keys, &messages];
        world.client().execute(sql, &parameters).await.expect("rows are parked");
        parked.extend(rows);
    }
    parked
}

fn parked_row(number: i64) -> Committed {
    let key = format!("v-{}", number % 1_000);
    Committed { event_id: format!("e-{number}"), key, data: vec![b'x'; 1_000] }
}

fn encoded(number: i64, row: &Committed) -> Vec<u8> {
    let attributes = [
        ("event_id", row.event_id.clone()),
        ("commit_lsn", format!("0/{:X}", 0x100 + number)),
        ("tx_index", "0".to_owned()),
    ];
    let message = PubsubMessage {
        data: row.data.clone().into(),
        attributes: attributes.map(|(name, value)| (name.to_owned(), value)).into(),
        ordering_key: row.key.clone(),
        ..PubsubMessage::default()
    };
    message.encode_to_vec()
}
