//! A reset republishes everything after an anchor to all subscribers, contiguous with the live
//! rows.

use pgoutput_parser::Lsn;
use walrelay_testkit::checker::Committed;
use walrelay_testkit::outbox::Workload;
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase, topic};

fn ids(committed: &[Committed], key: &str) -> Vec<String> {
    committed.iter().filter(|row| row.key == key).map(|row| row.event_id.clone()).collect()
}

fn stored(world: &InboxDatabase, key: &str) -> Vec<String> {
    let messages = world.pubsub.emulator().published(&topic("video.events"));
    let of_key = messages.iter().filter(|message| message.key() == key);
    of_key.map(|message| message.attribute("event_id").unwrap_or_default().to_owned()).collect()
}

const KEYS: [&str; 3] = ["v-0", "v-1", "v-2"];

#[tokio::test]
async fn a_reset_under_live_traffic_repeats_everything_since_the_anchor_contiguous_with_what_follows()
 {
    let Some(world) = InboxDatabase::create().await else { return };
    let before = Workload::of_rows(30).insert(world.client()).await.expect("rows");
    let relay = world.start_relay([]).await;
    world.pubsub.wait_stored(DEADLINE, 30).await;
    world.wait_confirmed(DEADLINE).await;
    world.succeed(["anchor", "create", "a"]).await;
    let insert = async |first_number, rows| {
        let workload = Workload { first_number, ..Workload::of_rows(rows) };
        workload.insert(world.client()).await.expect("rows")
    };
    let mut since = insert(30, 300).await;
    world.pubsub.wait_stored(DEADLINE, 330).await;

    let reset = world.command(["slot", "reset", "--yes", "--to-anchor", "a"]).start();
    for step in 0..20 {
        since.extend(insert(330 + step * 20, 20).await);
    }
    let done = reset.finish(DEADLINE).await;
    assert_eq!(done.code, Some(0), "{}", done.text);
    since.extend(insert(730, 30).await);
    // The repetition ends with the newest rows.
    wait_until(DEADLINE, "the last rows", async || {
        KEYS.iter().all(|key| stored(&world, key).last() == ids(&since, key).last()).then_some(())
    })
    .await;
    world.wait_confirmed(DEADLINE).await;

    for key in KEYS {
        let (all, again) = (stored(&world, key), ids(&since, key));
        let whole: Vec<String> = ids(&before, key).into_iter().chain(again.clone()).collect();
        assert!(all.ends_with(&again), "{key}: the repetition is contiguous");
        let first_time = &all[..all.len() - again.len()];
        assert!(whole.starts_with(first_time), "{key}: in order until the reset");
        assert!(first_time.len() >= 110, "{key}: it was published before");
    }
    drop(relay);
}

#[tokio::test]
async fn a_reset_to_a_place_behind_the_anchor_repeats_what_lies_behind_that_place() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.succeed(["anchor", "create", "a"]).await;
    Workload::of_rows(30).insert(world.client()).await.expect("rows");
    let middle = Lsn::new(world.wal_end().await).to_string();
    let more = Workload { first_number: 30, ..Workload::of_rows(12) };
    let later = more.insert(world.client()).await.expect("rows");
    world.catch_up().await;

    world.succeed(["slot", "reset", "--yes", "--to-anchor", "a", "--to-lsn", &middle]).await;
    world.catch_up().await;
    assert_eq!(world.pubsub.stored_count(), 42 + 12);
    for key in KEYS {
        assert!(stored(&world, key).ends_with(&ids(&later, key)), "{key}");
    }
    // A second reset repeats all rows, because the anchor has not moved.
    world.succeed(["slot", "reset", "--yes", "--to-anchor", "a"]).await;
    world.catch_up().await;
    assert_eq!(world.pubsub.stored_count(), 42 + 12 + 42);
}

#[tokio::test]
async fn a_reset_republishes_published_dispatch_rows_and_dead_rows_only_on_request() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.succeed(["anchor", "create", "a"]).await;
    world.pubsub.fault("key=v-1,reject=PERMISSION_DENIED");
    let relay = world.start_relay(["--park-after", "200ms"]).await;
    Workload::of_rows(30).insert(world.client()).await.expect("rows");
    let bad = "00000000-0000-4000-8000-00000000dead";
    world.pubsub.fault(&format!("event_id={bad},reject=INVALID_ARGUMENT"));
    world
        .execute(&format!(
            "INSERT INTO app_outbox (id, aggregatetype, aggregateid, event_type, version, payload)
             VALUES ('{bad}', 'video', 'v-9', 'test.poison', 0, '{{\"n\": 0}}')"
        ))
        .await;
    wait_until(DEADLINE, "a parked key", async || {
        (world.dispatch_count("retrying").await > 0 && world.dispatch_count("dead").await == 1)
            .then_some(())
    })
    .await;
    world.pubsub.heal();
    world.wait_dispatch(DEADLINE, "retrying", 0).await;
    world.pubsub.wait_stored(DEADLINE, 30).await;
    drop(relay);
    world.wait_slot_free(DEADLINE).await;

    world.succeed(["slot", "reset", "--yes", "--to-anchor", "a"]).await;
    world.catch_up().await;
    assert_eq!(world.pubsub.stored_count(), 60, "the dead row stays dead");
    assert_eq!(world.dispatch_count("dead").await, 1);

    world.succeed(["slot", "reset", "--yes", "--to-anchor", "a", "--include-dead"]).await;
    world.catch_up().await;
    assert_eq!(world.pubsub.stored_count(), 60 + 31);
    assert_eq!(world.dispatch_count("dead").await, 0);
}

#[tokio::test]
async fn a_reset_past_the_settled_position_is_refused_and_loses_no_row() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.catch_up().await;
    world.succeed(["anchor", "create", "a"]).await;
    Workload::of_rows(14).insert(world.client()).await.expect("rows");
    let here = Lsn::new(world.wal_end().await).to_string();
    let refused =
        world.run(["slot", "reset", "--yes", "--to-anchor", "a", "--to-lsn", &here]).await;
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    assert!(refused.text.contains("rows-would-be-skipped"), "{}", refused.text);
    world.catch_up().await;
    world.check(&world.committed().await).assert_exactly_once();
}

#[tokio::test]
async fn a_failover_slot_is_one_again_after_a_reset() {
    let Some(world) = InboxDatabase::create_empty_since(17).await else { return };
    world.succeed(["init", "--failover"]).await;
    world.succeed(["anchor", "create", "a"]).await;
    world.succeed(["slot", "reset", "--yes", "--to-anchor", "a"]).await;
    let failover = format!(
        "SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{}' AND failover",
        world.name()
    );
    assert_eq!(world.number(&failover).await, 1);
}

#[tokio::test]
async fn init_converts_the_slot_that_is_there_into_a_failover_slot_or_fails() {
    let Some(world) = InboxDatabase::create().await else { return };
    if world.major() < 17 {
        let refused = world.run(["init", "--failover"]).await;
        assert_eq!(refused.code, Some(3), "{}", refused.text);
        return;
    }
    let failover = format!(
        "SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{}' AND failover",
        world.name()
    );
    let script = world.succeed(["init", "--failover", "--sql"]).await;
    let guard = script.split("-- slot ").nth(2).expect("a guard before the slot");
    let (_, guard) = guard.split_once('\n').expect("a title");
    let error = world.client().batch_execute(guard).await.unwrap_err();
    let hint = error.as_db_error().and_then(|it| it.hint()).unwrap_or_default().to_owned();
    assert!(hint.contains("(FAILOVER true)"), "{error:?}");

    let mut relay = world.start_relay([]).await;
    let held = world.run(["init", "--failover"]).await;
    assert_eq!(held.code, Some(6), "{}", held.text);
    assert!(held.text.contains("slot-held"), "{}", held.text);
    assert_eq!(world.number(&failover).await, 0);
    assert_eq!(relay.terminate(DEADLINE).await, Some(0));

    let told = world.succeed(["init", "--failover"]).await;
    assert!(told.contains("converted: slot"), "{told}");
    assert_eq!(world.number(&failover).await, 1);
    let again = world.succeed(["init", "--failover"]).await;
    assert!(!again.contains("converted"), "{again}");
    world.client().batch_execute(guard).await.expect("it is one now");
    Workload::of_rows(5).insert(world.client()).await.expect("rows");
    world.catch_up().await;
}

#[tokio::test]
async fn an_anchor_heals_a_slot_that_was_dropped_and_one_that_is_gone_leaves_the_slot_alone() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.succeed(["anchor", "create", "a"]).await;
    let committed = Workload::of_rows(20).insert(world.client()).await.expect("rows");
    world.catch_up().await;
    world.execute(&format!("SELECT pg_drop_replication_slot('{}')", world.name())).await;
    let more = Workload { first_number: 20, ..Workload::of_rows(9) };
    let missed = more.insert(world.client()).await.expect("rows");
    assert_eq!(world.run(["run", "--on-slot-lost", "stop"]).await.code, Some(5));

    world.succeed(["slot", "reset", "--yes", "--to-anchor", "a"]).await;
    world.catch_up().await;
    for key in KEYS {
        let (first, rest) = (ids(&committed, key), ids(&missed, key));
        let expected: Vec<String> = [first.clone(), first, rest].concat();
        assert_eq!(stored(&world, key), expected, "{key}");
    }

    // A started reset whose anchor was dropped is abandoned, and `status` reports the reason.
    world
        .execute(
            "UPDATE app_outbox_relay SET operation =
               jsonb_build_object('kind', 'reset', 'anchor_slot', 'gone', 'target', '0/1')",
        )
        .await;
    let vain = world.succeed(["status"]).await;
    assert!(vain.contains("its anchor is gone, so this cancels it: walrelay run"), "{vain}");
    assert!(!vain.contains("finishes it"), "{vain}");

    let gone = world.run(["slot", "reset", "--yes", "--to-anchor", "b"]).await;
    assert_eq!(gone.code, Some(2), "{}", gone.text);
    world.catch_up().await;
}

#[tokio::test]
async fn an_advance_past_the_end_of_the_wal_is_refused_and_skips_no_row() {
    let Some(world) = InboxDatabase::create().await else { return };
    Workload::of_rows(1).insert(world.client()).await.expect("rows");
    world.catch_up().await;
    let beyond = ["slot", "advance", "--to-lsn", "FFFF/0"];
    for consent in ["--yes", "--dry-run"] {
        let refused = world.run(beyond.into_iter().chain([consent])).await;
        assert_eq!(refused.code, Some(2), "{}", refused.text);
        assert!(refused.text.contains("position-out-of-range"), "{}", refused.text);
    }
    let later = Workload { first_number: 1, ..Workload::of_rows(3) };
    later.insert(world.client()).await.expect("rows");
    world.catch_up().await;
    assert_eq!(world.pubsub.stored_count(), 4);
}
