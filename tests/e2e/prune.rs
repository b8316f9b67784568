//! `prune`: a dry run first, whole partitions of a partitioned outbox, and never a row that is
//! still needed.

use walrelay_testkit::outbox::Workload;
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase};

const ROWS: &str = "SELECT count(*) FROM app_outbox";

#[tokio::test]
async fn a_dry_run_reports_the_number_of_rows_and_deletes_none() {
    let Some(world) = InboxDatabase::create().await else { return };
    Workload::of_rows(30).insert(world.client()).await.expect("rows");
    world.settle().await;
    let told = world.succeed(["prune", "--yes", "--older-than", "1s", "--dry-run"]).await;
    let kept = world.number(ROWS).await;
    assert_eq!(kept, 30);
    assert!(
        told.starts_with("would delete ") && told.contains("row(s) of public.app_outbox"),
        "{told}"
    );
    // The refusal names the unfinished operation.
    let begun = "UPDATE app_outbox_relay SET operation = '{\"kind\": \"recovery\", \"id\": \"1\", \"bound\": \"nothing\"}'";
    world.execute(begun).await;
    let refused = world.run(["prune", "--yes", "--older-than", "1s"]).await;
    assert_eq!(refused.code, Some(3), "{}", refused.text);
    assert!(
        refused.text.contains("a backfill") && !refused.text.contains("a recovery"),
        "{}",
        refused.text
    );
    world.execute("UPDATE app_outbox_relay SET operation = NULL").await;
    wait_until(DEADLINE, "rows old enough", async || {
        world.succeed(["prune", "--yes", "--older-than", "1s"]).await;
        (world.number(ROWS).await == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn of_a_partitioned_outbox_whole_partitions_go_and_those_for_rows_to_come_stay() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    world
        .execute(
            "CREATE TABLE app_outbox (
               id uuid NOT NULL DEFAULT gen_random_uuid(), aggregatetype text NOT NULL, aggregateid text NOT NULL,
               event_type text NOT NULL, version bigint NOT NULL, schema_version int NOT NULL DEFAULT 1,
               payload jsonb NOT NULL, headers jsonb, occurred_at timestamptz NOT NULL DEFAULT now(),
               PRIMARY KEY (id, occurred_at)) PARTITION BY RANGE (occurred_at);
             CREATE TABLE outbox_2020 PARTITION OF app_outbox FOR VALUES FROM ('2020-01-01') TO ('2021-01-01');
             CREATE TABLE outbox_now PARTITION OF app_outbox FOR VALUES FROM ('2021-01-01') TO ('2100-01-01');
             CREATE TABLE outbox_2100 PARTITION OF app_outbox FOR VALUES FROM ('2100-01-01') TO ('2101-01-01');
             CREATE TABLE outbox_other PARTITION OF app_outbox DEFAULT",
        )
        .await;
    world.succeed(["init"]).await;
    world
        .execute(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload, occurred_at)
             SELECT 'video', 'v-1', 'test.made', n, '{}', '2020-06-01' FROM generate_series(1, 20) AS n;
             INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             SELECT 'video', 'v-1', 'test.made', n, '{}' FROM generate_series(21, 25) AS n",
        )
        .await;
    // Nothing is settled yet, so no row is deleted.
    world.run(["prune", "--yes", "--older-than", "30d"]).await;
    assert_eq!(world.number(ROWS).await, 25);
    world.settle().await;

    let dry = world.succeed(["prune", "--yes", "--older-than", "30d", "--dry-run"]).await;
    assert!(dry.contains("20 row(s)") && dry.contains("all of partition outbox_2020"), "{dry}");
    let told = world.succeed(["prune", "--yes", "--older-than", "30d"]).await;
    assert!(told.contains("dropped: partition outbox_2020"), "{told}");
    assert_eq!(world.number(ROWS).await, 5);
    let left = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'app_outbox'::regclass";
    assert_eq!(world.number(left).await, 3);
    world.catch_up().await;
}

#[tokio::test]
async fn nothing_is_pruned_where_transaction_ids_on_record_are_of_another_server() {
    let Some(world) = InboxDatabase::create().await else { return };
    Workload::of_rows(9).insert(world.client()).await.expect("rows");
    world.settle().await;
    world.execute("UPDATE app_outbox_relay SET system_identifier = '1'").await;
    let refused = world.run(["prune", "--yes", "--older-than", "1s"]).await;
    assert_eq!(refused.code, Some(5), "{}", refused.text);
    assert_eq!(world.number(ROWS).await, 9);
}

#[tokio::test]
async fn a_relay_keeps_an_anchor_of_its_own_and_finds_it_again() {
    let Some(world) = InboxDatabase::create().await else { return };
    for _ in 0..2 {
        let mut relay = world.start_relay(["--anchor-keep", "6h"]).await;
        let kept = format!(
            "SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{}_anchor_kept'",
            world.name()
        );
        wait_until(DEADLINE, "the anchor", async || (world.number(&kept).await == 1).then_some(()))
            .await;
        assert_eq!(relay.terminate(DEADLINE).await, Some(0));
    }
    Workload::of_rows(12).insert(world.client()).await.expect("rows");
    world.catch_up().await;
    world.succeed(["slot", "reset", "--yes", "--to-anchor", "kept"]).await;
    world.catch_up().await;
    assert_eq!(world.pubsub.stored_count(), 24);
}
