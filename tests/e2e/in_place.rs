//! An in-place replay. The history of a key is republished in one piece, and later rows of the key
//! follow the history. Other keys are unaffected.

use walrelay_testkit::outbox::Workload;
use walrelay_testkit::relay::Relay;
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase, topic};

/// Returns the stored messages of a key in order: the version and the replay id.
fn stored(world: &InboxDatabase, key: &str) -> Vec<(i64, Option<String>)> {
    let messages = world.pubsub.emulator().published(&topic("video.events"));
    let of_key = messages.iter().filter(|message| message.key() == key);
    let said = of_key.map(|message| {
        let version = message.attribute("version").and_then(|text| text.parse().ok());
        (version.expect("a version"), message.attribute("replay_id").map(str::to_owned))
    });
    said.collect()
}

/// Returns the committed versions of a key.
async fn committed(world: &InboxDatabase, key: &str) -> Vec<i64> {
    let sql = "SELECT version FROM app_outbox WHERE aggregateid = $1 ORDER BY version";
    let rows = world.client().query(sql, &[&key]).await.expect("the outbox can be read");
    rows.iter().map(|row| row.get(0)).collect()
}

/// Checks that the key received every row once live, and the rows before the replay again in one
/// piece.
async fn assert_in_place(world: &InboxDatabase, key: &str, id: &str) {
    let (all, said) = (committed(world, key).await, stored(world, key));
    let is_replayed = |row: &(i64, Option<String>)| row.1.as_deref() == Some(id);
    let first = said.iter().position(is_replayed).unwrap_or_else(|| panic!("{key}: {said:?}"));
    let count = said.iter().filter(|row| is_replayed(row)).count();
    let (before, rest) = said.split_at(first);
    let (replayed, behind) = rest.split_at(count);
    let versions =
        |rows: &[(i64, Option<String>)]| rows.iter().map(|row| row.0).collect::<Vec<_>>();
    assert!(replayed.iter().all(is_replayed), "{key}: in one piece: {said:?}");
    assert_eq!(versions(before), all[..first], "{key}: once before");
    assert_eq!(versions(replayed), all[..first], "{key}: the same once more");
    assert_eq!(versions(behind), all[first..], "{key}: and then what has waited");
}

/// Checks that a key outside the replay received every row once.
async fn assert_undisturbed(world: &InboxDatabase, key: &str) {
    let live: Vec<_> = committed(world, key).await.into_iter().map(|it| (it, None)).collect();
    assert_eq!(stored(world, key), live, "{key}");
}

/// Starts a relay that has published `rows` rows over three keys, all after the anchor `a`.
async fn world_with_history(world: &InboxDatabase, rows: u32) -> Relay {
    world.succeed(["anchor", "create", "a"]).await;
    let relay = world.start_relay([]).await;
    insert(world, 0, rows).await;
    world.pubsub.wait_stored(DEADLINE, u64::from(rows)).await;
    relay
}

async fn insert(world: &InboxDatabase, first_number: u32, rows: u32) {
    let workload = Workload { first_number, ..Workload::of_rows(rows) };
    workload.insert(world.client()).await.expect("rows are inserted");
}

const REPLAY: [&str; 6] = ["replay", "start", "--yes", "--from-anchor", "a", "--in-place"];

fn replay_of(key: &str) -> impl Iterator<Item = &str> {
    REPLAY.into_iter().chain(["--aggregate-id", key])
}

/// Returns the id of the last started replay.
async fn last_id(world: &InboxDatabase) -> String {
    let sql = "SELECT id FROM app_outbox_replay ORDER BY started_at DESC LIMIT 1";
    world.client().query_one(sql, &[]).await.expect("a replay is on record").get(0)
}

const HOLDS: &str = "SELECT count(*) FROM app_outbox_hold";
const WANTED: &str = "SELECT count(*) FROM app_outbox_hold WHERE state = 'wanted'";

/// Runs a replay of a key that dies at a failpoint. Returns the replay's id.
async fn killed_at(world: &InboxDatabase, place: &str, key: &str) -> String {
    let mut killed = world.command(replay_of(key)).env("WALRELAY_FAILPOINT", place).start();
    killed.wait_ended(DEADLINE).await;
    last_id(world).await
}

#[tokio::test]
async fn in_place_for_one_aggregate_under_live_traffic_on_it() {
    let Some(world) = InboxDatabase::create().await else { return };
    let relay = world_with_history(&world, 300).await;
    let producer = world.connect().await;
    let traffic = Workload { first_number: 300, ..Workload::of_rows(3_000) };
    let (inserted, done) = tokio::join!(traffic.insert(&producer), world.run(replay_of("v-1")));
    inserted.expect("rows are inserted");
    assert_eq!(done.code, Some(0), "{}", done.text);
    assert!(done.text.contains("were published again in place"), "{}", done.text);
    insert(&world, 3_300, 30).await;
    world.wait_confirmed(DEADLINE).await;
    world.wait_dispatch(DEADLINE, "retrying", 0).await;
    let id = last_id(&world).await;
    assert_in_place(&world, "v-1", &id).await;
    let replayed = stored(&world, "v-1").iter().filter(|row| row.1.is_some()).count();
    assert!(replayed >= 100 && done.text.contains(&format!("{replayed} row(s)")));
    assert_undisturbed(&world, "v-0").await;
    assert_undisturbed(&world, "v-2").await;
    assert_eq!(world.number(HOLDS).await, 0);
    // Rows of the held key went through dispatch state. Rows of the other keys did not.
    let waited = "SELECT count(*) FROM app_outbox_dispatch WHERE replay_id = '' AND ordering_key";
    assert!(world.number(&format!("{waited} = 'v-1'")).await > 0);
    assert_eq!(world.number(&format!("{waited} <> 'v-1'")).await, 0);
    drop(relay);
}

#[tokio::test]
async fn a_replay_in_place_that_is_killed_anywhere_goes_on_where_it_stopped() {
    let Some(world) = InboxDatabase::create().await else { return };
    let _relay = world_with_history(&world, 90).await;
    let mut rows = 90;
    for place in ["replay-placed", "replay-held", "replay-added", "replay-lifted"] {
        let key = format!("k-{place}");
        let workload = Workload {
            aggregate_prefix: format!("{key}-"),
            aggregates_count: 1,
            ..Workload::of_rows(60)
        };
        workload.insert(world.client()).await.expect("rows are inserted");
        rows += 60;
        let key = format!("{key}-0");
        wait_until(DEADLINE, "the history of the key", async || {
            (stored(&world, &key).len() == 60).then_some(())
        })
        .await;
        let id = killed_at(&world, place, &key).await;
        wait_until(DEADLINE, "the relay's answer", async || {
            (world.number(WANTED).await == 0).then_some(())
        })
        .await;
        let more = Workload { first_number: 60, ..workload.clone() };
        more.insert(world.client()).await.expect("rows are inserted");
        rows += 60;

        let told = world.succeed(["replay", "resume", "--yes", &id]).await;
        assert!(told.contains("60 row(s) were published again in place"), "{place}: {told}");
        wait_until(DEADLINE, "the rest of the key", async || {
            (stored(&world, &key).len() == 180).then_some(())
        })
        .await;
        assert_in_place(&world, &key, &id).await;
        let again = world.run(["replay", "resume", "--yes", &id]).await;
        assert_eq!(again.code, Some(2), "{}", again.text);
    }
    assert_eq!(world.number(HOLDS).await, 0);
    assert_eq!(world.number("SELECT count(*) FROM app_outbox").await, i64::from(rows));
    for key in ["v-0", "v-1", "v-2"] {
        assert_undisturbed(&world, key).await;
    }
}

#[tokio::test]
async fn a_key_that_is_held_stays_so_over_a_restart_of_the_relay_and_a_second_replay_is_refused() {
    let Some(world) = InboxDatabase::create().await else { return };
    let mut relay = world_with_history(&world, 90).await;
    world.wait_confirmed(DEADLINE).await;
    let id = killed_at(&world, "replay-held", "v-1").await;
    relay.kill();
    relay.wait_ended(DEADLINE).await;
    insert(&world, 90, 30).await;

    let second = world.run(replay_of("v-1")).await;
    assert_eq!(second.code, Some(2), "{}", second.text);
    assert!(second.text.contains(&id) && second.text.contains("replay cancel"), "{}", second.text);
    let prune = world.run(["prune", "--yes", "--older-than", "1d"]).await;
    assert_eq!(prune.code, Some(2), "{}", prune.text);
    assert!(prune.text.contains(&id), "{}", prune.text);

    let next_relay = world.start_relay([]).await;
    // Rows of the other keys are published, and rows of the held key wait in the dispatch table.
    world.pubsub.wait_stored(DEADLINE, 90 + 20).await;
    world.wait_dispatch(DEADLINE, "retrying", 10).await;
    world.wait_confirmed(DEADLINE).await;
    let status = world.succeed(["status"]).await;
    let waits = format!("10 rows parked; those of 1 key(s) wait for replay {id}");
    for word in [waits.as_str(), "no process runs it", &format!("walrelay replay resume {id}")] {
        assert!(status.contains(word), "{word:?} is not in\n{status}");
    }
    assert!(!status.contains("failing topics"), "a replay holds the rows:\n{status}");
    assert_eq!(stored(&world, "v-1").len(), 30);
    world.succeed(["replay", "resume", "--yes", &id]).await;
    world.wait_dispatch(DEADLINE, "retrying", 0).await;
    assert_in_place(&world, "v-1", &id).await;
    assert_undisturbed(&world, "v-0").await;
    drop(next_relay);
}

#[tokio::test]
async fn without_a_relay_a_replay_in_place_says_so_and_goes_on_once_one_runs() {
    let Some(world) = InboxDatabase::create().await else { return };
    let mut first = world_with_history(&world, 60).await;
    world.wait_confirmed(DEADLINE).await;
    assert_eq!(first.terminate(DEADLINE).await, Some(0));
    let replay = world.command(replay_of("v-2")).start();
    replay.wait_for_line(DEADLINE, "no relay streams slot").await;
    let reset = world.run(["slot", "reset", "--yes", "--to-anchor", "a"]).await;
    assert_eq!(reset.code, Some(2), "what comes again would come in between: {}", reset.text);
    assert!(reset.text.contains("replay cancel"), "{}", reset.text);
    insert(&world, 60, 30).await;
    // A relay with `--until-caught-up` acknowledges the hold, and the next relay publishes.
    world.catch_up().await;
    replay.wait_for_line(DEADLINE, "its keys continue").await;
    let _relay = world.start_relay([]).await;
    let done = replay.finish(DEADLINE).await;
    assert_eq!(done.code, Some(0), "{}", done.text);
    world.wait_dispatch(DEADLINE, "retrying", 0).await;
    assert_in_place(&world, "v-2", &last_id(&world).await).await;
    assert_undisturbed(&world, "v-1").await;
}

#[tokio::test]
async fn a_replay_in_place_that_is_given_up_leaves_nothing_behind_and_lets_its_keys_go_on() {
    let Some(world) = InboxDatabase::create().await else { return };
    let _relay = world_with_history(&world, 90).await;
    let id = killed_at(&world, "replay-added", "v-1").await;
    insert(&world, 90, 30).await;
    world.wait_confirmed(DEADLINE).await;
    assert_eq!(stored(&world, "v-1").len(), 30, "the rest waits");

    let told = world.succeed(["replay", "cancel", "--yes", &id]).await;
    assert!(told.contains("30 row(s) were removed, 0 were published"), "{told}");
    world.pubsub.wait_stored(DEADLINE, 120).await;
    for key in ["v-0", "v-1", "v-2"] {
        assert_undisturbed(&world, key).await;
    }
    assert_eq!(world.number(HOLDS).await, 0);
    let over = world.run(["replay", "resume", "--yes", &id]).await;
    assert_eq!(over.code, Some(2), "{}", over.text);
    assert!(over.text.contains("was cancelled: 0 row(s)"), "{}", over.text);

    // The abandoned replay does not block another replay.
    world.succeed(replay_of("v-1")).await;
    assert_in_place(&world, "v-1", &last_id(&world).await).await;
}

#[tokio::test]
async fn a_replayed_row_that_is_dead_holds_its_key_where_dead_rows_do_and_the_command_says_so() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.succeed(["anchor", "create", "a"]).await;
    let _relay = world.start_relay(["--on-dead", "hold", "--park-after", "300ms"]).await;
    insert(&world, 0, 30).await;
    world.pubsub.wait_stored(DEADLINE, 30).await;
    let event = "SELECT id::text FROM app_outbox WHERE aggregateid = 'v-1' ORDER BY version OFFSET 4 LIMIT 1";
    let bad: String = world.client().query_one(event, &[]).await.expect("a row").get(0);
    world.pubsub.fault(&format!("event_id={bad},reject=INVALID_ARGUMENT"));

    let stopped = world.run(replay_of("v-1").chain(["--on-dead", "hold"])).await;
    assert_eq!(stopped.code, Some(1), "{}", stopped.text);
    let id = last_id(&world).await;
    for word in ["are queued behind a dead row", "replay resume", &id] {
        assert!(stopped.text.contains(word), "{word:?} is not in\n{}", stopped.text);
    }
    world.pubsub.heal();
    world.succeed(["dispatch", "retry", &format!("{bad}@{id}")]).await;
    let told = world.succeed(["replay", "resume", "--yes", &id, "--on-dead", "hold"]).await;
    assert!(told.contains("10 row(s) were published again"), "{told}");
    assert_in_place(&world, "v-1", &id).await;

    world.pubsub.fault(&format!("event_id={bad},reject=INVALID_ARGUMENT"));
    let one = ["--aggregate-id", "v-1", "--event-type", "of no row", "--dry-run"];
    let none = world.succeed(REPLAY.into_iter().chain(one)).await;
    assert!(none.contains("would publish 0 row(s) of 0 key(s)"), "{none}");
    let counted = world.succeed(replay_of("v-1").chain(["--dry-run"])).await;
    assert!(counted.contains("would publish 10 row(s) of 1 key(s)"), "{counted}");
    let wrong = world.run(replay_of("v-1").chain(["--to-topic", "again"])).await;
    assert_eq!(wrong.code, Some(2), "{}", wrong.text);
}

#[tokio::test]
async fn a_row_of_the_history_that_is_never_sent_becomes_dead_and_its_key_goes_on() {
    const BAD: &str = "00000000-0000-4000-8000-0000000000bd";
    let Some(world) = InboxDatabase::create().await else { return };
    let _relay = world_with_history(&world, 30).await;
    let bad = "INSERT INTO app_outbox (id, aggregatetype, aggregateid, event_type, version, payload, headers)
               VALUES ($1::text::uuid, 'video', 'v-1', 'test.made', 1000, '{}', '[1]')";
    world.client().execute(bad, &[&BAD]).await.expect("a row without valid headers");
    world.wait_dispatch(DEADLINE, "dead", 1).await;
    insert(&world, 30, 30).await;
    world.wait_confirmed(DEADLINE).await;
    for source in [&REPLAY[..], &["replay", "start", "--yes", "--source", "table", "--in-place"]] {
        let told = world.succeed(source.iter().copied().chain(["--aggregate-id", "v-1"])).await;
        assert!(told.contains("20 row(s) were published again"), "{told}");
        assert!(told.contains("dead: 1 row(s)"), "{told}");
        let id = last_id(&world).await;
        let replayed = stored(&world, "v-1").into_iter().filter(|row| row.1.as_ref() == Some(&id));
        assert_eq!(replayed.count(), 20, "the key continues behind the dead row");
        let listed = world.succeed(["dispatch", "list", "--status", "dead"]).await;
        assert!(listed.contains(&format!("{BAD}@{id}")), "{listed}");
    }
    assert_eq!(world.dispatch_count("dead").await, 3, "the original and two copies");
    assert_eq!(world.number(HOLDS).await, 0);
}

#[tokio::test]
async fn a_row_of_the_history_that_is_never_sent_holds_its_key_where_dead_rows_do() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.succeed(["anchor", "create", "a"]).await;
    let hold = ["--on-dead", "hold"];
    let _relay = world.start_relay(hold).await;
    insert(&world, 0, 9).await;
    world.pubsub.wait_stored(DEADLINE, 9).await;
    world
        .execute(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload, headers)
             VALUES ('video', 'v-1', 'test.made', 1000, '{}', '[1]')",
        )
        .await;
    world.wait_dispatch(DEADLINE, "dead", 1).await;
    let dead = "SELECT event_id FROM app_outbox_dispatch WHERE status = 'dead'";
    let id: String = world.client().query_one(dead, &[]).await.expect("the row").get(0);
    world.succeed(["dispatch", "discard", "--yes", &id, "--reason", "a test"]).await;
    insert(&world, 9, 9).await;
    world.wait_confirmed(DEADLINE).await;
    // Rows that still wait in dispatch state are published after the history, and not replayed.
    world.wait_dispatch(DEADLINE, "retrying", 0).await;
    let blocked = world.run(replay_of("v-1").chain(hold)).await;
    assert_eq!(blocked.code, Some(1), "{}", blocked.text);
    assert!(blocked.text.contains("replay-blocked"), "{}", blocked.text);
    let replay = last_id(&world).await;
    let copy = format!("{id}@{replay}");
    world.succeed(["dispatch", "discard", "--yes", &copy, "--reason", "a test"]).await;
    let resume = ["replay", "resume", "--yes", &replay, "--on-dead", "hold"];
    world.succeed(resume).await;
    let replayed = stored(&world, "v-1").into_iter().filter(|row| row.1.as_ref() == Some(&replay));
    assert_eq!(replayed.count(), 6);
}

#[tokio::test]
async fn live_rows_that_wait_behind_a_dead_row_of_the_history_block_the_replay_too() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.succeed(["anchor", "create", "a"]).await;
    let hold = ["--on-dead", "hold"];
    let _relay = world.start_relay(hold).await;
    insert(&world, 0, 9).await;
    world.pubsub.wait_stored(DEADLINE, 9).await;
    world
        .execute(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload, headers)
             VALUES ('video', 'v-1', 'test.made', 1000, '{}', '[1]')",
        )
        .await;
    world.wait_dispatch(DEADLINE, "dead", 1).await;
    let dead = "SELECT event_id FROM app_outbox_dispatch WHERE status = 'dead'";
    let id: String = world.client().query_one(dead, &[]).await.expect("the row").get(0);
    world.succeed(["dispatch", "discard", "--yes", &id, "--reason", "a test"]).await;
    // The dead row is the last of the history, because the next rows come after the pause.
    let replay = killed_at(&world, "replay-held", "v-1").await;
    insert(&world, 9, 9).await;
    world.wait_dispatch(DEADLINE, "retrying", 3).await;
    let resume = ["replay", "resume", "--yes", &replay, "--on-dead", "hold"];
    let blocked = world.run(resume).await;
    assert_eq!(blocked.code, Some(1), "{}", blocked.text);
    for word in ["replay-blocked", "3 row(s) of its keys are queued behind a dead row"] {
        assert!(blocked.text.contains(word), "{word:?} is not in\n{}", blocked.text);
    }
    let copy = format!("{id}@{replay}");
    world.succeed(["dispatch", "discard", "--yes", &copy, "--reason", "a test"]).await;
    let told = world.succeed(resume).await;
    // The discarded row counts as finished.
    assert!(told.contains("4 row(s) were published again"), "{told}");
    world.wait_dispatch(DEADLINE, "retrying", 0).await;
    let versions: Vec<i64> = stored(&world, "v-1").iter().map(|row| row.0).collect();
    let all: Vec<i64> =
        committed(&world, "v-1").await.into_iter().filter(|it| *it != 1000).collect();
    assert_eq!(versions, [&all[..3], &all[..]].concat());
}

#[tokio::test]
async fn rows_of_the_table_go_out_again_in_place_before_what_the_key_has_had_meanwhile() {
    let Some(world) = InboxDatabase::create().await else { return };
    let _relay = world_with_history(&world, 300).await;
    let producer = world.connect().await;
    let traffic = Workload { first_number: 300, ..Workload::of_rows(1_500) };
    let backfill =
        ["replay", "start", "--yes", "--source", "table", "--in-place", "--aggregate-id", "v-1"];
    let (inserted, done) = tokio::join!(traffic.insert(&producer), world.run(backfill));
    inserted.expect("rows are inserted");
    assert_eq!(done.code, Some(0), "{}", done.text);
    world.wait_confirmed(DEADLINE).await;
    world.wait_dispatch(DEADLINE, "retrying", 0).await;
    assert_in_place(&world, "v-1", &last_id(&world).await).await;
    assert_undisturbed(&world, "v-0").await;
    assert_undisturbed(&world, "v-2").await;

    // The replay dies after adding some of the rows, and every row is still added exactly once.
    let mut killed = world.command(backfill).env("WALRELAY_FAILPOINT", "replay-added").start();
    killed.wait_ended(DEADLINE).await;
    let id = last_id(&world).await;
    let told = world.succeed(["replay", "resume", "--yes", &id]).await;
    assert!(told.contains("600 row(s) were published again in place"), "{told}");
    let copies =
        "SELECT count(*) FROM app_outbox_dispatch WHERE replay_id <> '' AND event_id LIKE '%/%'";
    assert_eq!(world.number(copies).await, 0, "under no second id");
}

#[tokio::test]
async fn a_dry_run_refuses_more_keys_than_a_replay_in_place_may_hold() {
    let Some(world) = InboxDatabase::create().await else { return };
    let emit = "SELECT count(app_outbox_emit('video', 'v-' || n, 'E', '{}'))
                  FROM generate_series(1, 10001) AS n";
    assert_eq!(world.number(emit).await, 10_001);
    let order = ["replay", "start", "--source", "table", "--in-place"];
    for mode in ["--dry-run", "--yes"] {
        let refused = world.run(order.into_iter().chain([mode])).await;
        assert_eq!(refused.code, Some(2), "{mode}: {}", refused.text);
        assert!(refused.text.contains("replay-too-many-keys"), "{mode}: {}", refused.text);
    }
    assert_eq!(world.number("SELECT count(*) FROM app_outbox_replay").await, 0);
    let told = world.succeed(order.into_iter().chain(["--dry-run", "--aggregate-id", "v-1"])).await;
    assert!(told.contains("would publish 1 row(s) of 1 key(s)"), "{told}");
}

#[tokio::test]
async fn rows_without_a_key_come_again_too() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.succeed(["anchor", "create", "a"]).await;
    let _relay = world.start_relay(["--ordering-key", ""]).await;
    insert(&world, 0, 60).await;
    world.pubsub.wait_stored(DEADLINE, 60).await;
    let told = world.succeed(REPLAY.into_iter().chain(["--ordering-key", ""])).await;
    assert!(told.contains("60 row(s) were published again in place"), "{told}");
    let messages = world.pubsub.emulator().published(&topic("video.events"));
    let mut again: Vec<_> =
        messages.iter().filter(|m| m.attribute("replay_id").is_some()).collect();
    assert_eq!((messages.len(), again.len()), (120, 60));
    again.sort_by_key(|message| message.attribute("event_id").map(str::to_owned));
    again.dedup_by_key(|message| message.attribute("event_id").map(str::to_owned));
    assert_eq!(again.len(), 60, "each once");
}

#[tokio::test]
async fn a_replay_in_place_that_cannot_go_on_any_more_is_given_up_all_the_same() {
    let forgotten = "DELETE FROM app_outbox_replay";
    let of_another_server = "UPDATE app_outbox_replay SET system_identifier = '1'";
    for change in [forgotten, of_another_server] {
        let Some(world) = InboxDatabase::create().await else { return };
        let _relay = world_with_history(&world, 90).await;
        let id = killed_at(&world, "replay-added", "v-1").await;
        insert(&world, 90, 30).await;
        world.wait_confirmed(DEADLINE).await;
        world.execute(change).await;
        let stuck = world.run(["replay", "resume", "--yes", &id]).await;
        assert_eq!(stuck.code, Some(2), "{}", stuck.text);

        world.succeed(["replay", "cancel", "--yes", &id]).await;
        world.pubsub.wait_stored(DEADLINE, 120).await;
        for key in ["v-0", "v-1", "v-2"] {
            assert_undisturbed(&world, key).await;
        }
        assert_eq!(world.number(HOLDS).await, 0);
    }
}

#[tokio::test]
async fn a_slot_is_not_reset_before_the_history_of_a_replay_in_place_has_gone_out() {
    let Some(world) = InboxDatabase::create().await else { return };
    let mut first = world_with_history(&world, 60).await;
    world.wait_confirmed(DEADLINE).await;
    let id = killed_at(&world, "replay-held", "v-1").await;
    assert_eq!(first.terminate(DEADLINE).await, Some(0));
    // The holds are lifted, and no relay is running to publish the added rows.
    let mut lifted = world
        .command(["replay", "resume", "--yes", &id])
        .env("WALRELAY_FAILPOINT", "replay-lifted")
        .start();
    lifted.wait_ended(DEADLINE).await;
    assert_eq!(world.number(HOLDS).await, 0);
    let refused = world.run(["slot", "reset", "--yes", "--to-anchor", "a"]).await;
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    assert!(
        refused.text.contains(&id) && refused.text.contains("replay cancel"),
        "{}",
        refused.text
    );

    let _relay = world.start_relay([]).await;
    world.succeed(["replay", "resume", "--yes", &id]).await;
    assert_in_place(&world, "v-1", &id).await;
    world.succeed(["slot", "reset", "--yes", "--to-anchor", "a"]).await;
}

#[tokio::test]
async fn a_slot_whose_keys_are_held_is_neither_dropped_nor_let_go_for_an_upgrade() {
    let Some(world) = InboxDatabase::create().await else { return };
    let mut relay = world_with_history(&world, 60).await;
    world.wait_confirmed(DEADLINE).await;
    let id = killed_at(&world, "replay-held", "v-1").await;
    assert_eq!(relay.terminate(DEADLINE).await, Some(0));
    insert(&world, 60, 30).await;
    for command in
        [&["slot", "drop", "--yes", "--discard-rows", "1000"][..], &["slot", "release", "--yes"]]
    {
        let refused = world.run(command.iter().copied()).await;
        assert_eq!(refused.code, Some(2), "{command:?}: {}", refused.text);
        for word in [id.as_str(), "walrelay replay cancel"] {
            assert!(refused.text.contains(word), "{word:?} is not in\n{}", refused.text);
        }
    }
    world.succeed(["replay", "cancel", "--yes", &id]).await;
    world.succeed(["slot", "release", "--yes"]).await;
    for key in ["v-0", "v-1", "v-2"] {
        assert_undisturbed(&world, key).await;
    }
}

/// Checks that the key received `before` rows, then its history, and then the rest without a gap.
/// The rest may start with duplicates, as after any recovery.
async fn assert_nothing_left_out(world: &InboxDatabase, key: &str, before: usize, id: &str) {
    let (all, said) = (committed(world, key).await, stored(world, key));
    let is_replayed = |row: &&(i64, Option<String>)| row.1.as_deref() == Some(id);
    let versions =
        |rows: Vec<&(i64, Option<String>)>| -> Vec<i64> { rows.iter().map(|row| row.0).collect() };
    let replayed = versions(said.iter().filter(is_replayed).collect());
    let others = versions(said.iter().filter(|row| !is_replayed(row)).collect());
    assert!(all.starts_with(&replayed), "{key}: {said:?}");
    let (first, behind) = others.split_at(before);
    assert_eq!(first, &all[..before], "{key}");
    assert!(behind.len() >= all.len() - before && all.ends_with(behind), "{key}: {said:?}");
}

#[tokio::test]
async fn a_slot_that_is_lost_while_keys_are_held_is_recovered_and_they_go_on_when_the_replay_does()
{
    // The relay has acknowledged the hold or not, and the replay is resumed or abandoned.
    for (step, end) in [
        ("replay-held", "resume"),
        ("replay-placed", "resume"),
        ("replay-held", "cancel"),
        ("replay-placed", "cancel"),
    ] {
        let Some(world) = InboxDatabase::create().await else { return };
        let mut relay = world_with_history(&world, 60).await;
        world.wait_confirmed(DEADLINE).await;
        let id = match step {
            "replay-placed" => {
                assert_eq!(relay.terminate(DEADLINE).await, Some(0));
                killed_at(&world, step, "v-1").await
            }
            _ => {
                let id = killed_at(&world, step, "v-1").await;
                assert_eq!(relay.terminate(DEADLINE).await, Some(0));
                id
            }
        };
        world.execute(&format!("SELECT pg_drop_replication_slot('{}')", world.name())).await;
        insert(&world, 60, 60).await;
        world.succeed(["slot", "recover", "--yes"]).await;
        let _relay = world.start_relay([]).await;
        insert(&world, 120, 30).await;
        // The other keys are complete. The held key has only its rows from before, and the rest
        // waits in the dispatch table.
        world.pubsub.wait_stored(DEADLINE, 60 + 40 + 20).await;
        world.wait_confirmed(DEADLINE).await;
        assert_eq!(stored(&world, "v-1").len(), 20, "{step}");

        world.succeed(["replay", end, "--yes", &id]).await;
        world.wait_dispatch(DEADLINE, "retrying", 0).await;
        assert_nothing_left_out(&world, "v-1", 20, &id).await;
        let copies =
            stored(&world, "v-1").iter().filter(|row| row.1.as_deref() == Some(&id)).count();
        assert_eq!(copies >= 20, end == "resume", "{step} {end}: {copies}");
        assert_eq!(world.number(HOLDS).await, 0, "{step} {end}");
    }
}
