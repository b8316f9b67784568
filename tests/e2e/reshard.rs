//! Changes of the shard count: with concurrent producers, with rows in dispatch state, and with
//! failures.

use std::time::Duration;

use walrelay_testkit::checker::Verdict;
use walrelay_testkit::outbox::Workload;
use walrelay_testkit::process::Signal;
use walrelay_testkit::relay::Relay;
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase, Producer};

const UNFINISHED: &str = "SELECT count(*) FROM app_outbox_relay WHERE operation IS NOT NULL";
const SLOTS: &str = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()";
const PUBLICATIONS: &str = "SELECT count(*) FROM pg_publication";

/// Creates a test environment whose outbox has `count` shards.
async fn divided(count: u32) -> Option<InboxDatabase> {
    let world = InboxDatabase::create_empty().await?;
    world.succeed(["init", "--shards", &count.to_string()]).await;
    Some(world)
}

/// Returns the `--shard` values. `None` for an outbox without shards.
fn shards(count: u32) -> Vec<Option<String>> {
    match count {
        1 => vec![None],
        _ => (0..count).map(|index| Some(format!("{index}/{count}"))).collect(),
    }
}

async fn start_all(world: &InboxDatabase, count: u32, options: &[&str]) -> Vec<Relay> {
    let mut relays = Vec::new();
    for shard in shards(count) {
        let named = shard.as_deref().map(|name| ["--shard", name]);
        let arguments = named.iter().flatten().copied().chain(options.iter().copied());
        relays.push(world.start_relay(arguments).await);
    }
    relays
}

async fn stop_all(relays: Vec<Relay>) {
    for mut relay in relays {
        assert_eq!(relay.terminate(DEADLINE).await, Some(0));
    }
}

async fn catch_up(world: &InboxDatabase, count: u32) {
    for shard in shards(count) {
        let named = shard.as_deref().map(|name| ["--shard", name]);
        world
            .succeed(
                ["run", "--until-caught-up"].into_iter().chain(named.iter().flatten().copied()),
            )
            .await;
    }
}

/// Removes findings of shared positions. A row's index counts only the rows of its shard, so rows
/// of two shards may share a position.
fn without_position_findings(verdict: &Verdict) -> Verdict {
    let shared = "position belongs to another row too";
    let altered = verdict.altered.iter().filter(|(_, what)| *what != shared).cloned().collect();
    Verdict { altered, ..verdict.clone() }
}

/// Checks that `count` shards exist and that nothing is left of any other count.
async fn assert_only_shards(world: &InboxDatabase, count: u32) {
    let count = i64::from(count);
    assert_eq!(world.number(UNFINISHED).await, 0);
    assert_eq!(world.number(SLOTS).await, count);
    assert_eq!(world.number(PUBLICATIONS).await, count);
    assert_eq!(world.number("SELECT count(*) FROM app_outbox_relay").await, count);
    let strangers = "SELECT count(*) FROM app_outbox_dispatch
                      WHERE slot NOT IN (SELECT slot FROM app_outbox_relay)";
    assert_eq!(world.number(strangers).await, 0);
}

async fn more_rows(producer: &Producer) {
    let goal = producer.rows_count() + 100;
    wait_until(DEADLINE, "rows of the producer", async || {
        (producer.rows_count() > goal).then_some(())
    })
    .await;
}

/// Writes rows until `keys` keys are parked. A key is parked only while other keys are published.
async fn park_while_others_flow(world: &InboxDatabase, keys: i64) {
    let producer = Producer::start(world.url(), Duration::from_millis(20));
    let parked =
        "SELECT count(DISTINCT ordering_key) FROM app_outbox_dispatch WHERE status = 'retrying'";
    wait_until(DEADLINE, "rows of the failing keys to be parked", async || {
        (world.number(parked).await == keys).then_some(())
    })
    .await;
    producer.stop().await;
}

#[tokio::test]
async fn the_number_changes_under_relays_and_producers_and_nothing_is_lost() {
    let Some(world) = InboxDatabase::create().await else { return };
    let producer = Producer::start(world.url(), Duration::from_millis(10));
    let mut relays = start_all(&world, 1, &[]).await;
    for count in [2, 4, 2, 1] {
        more_rows(&producer).await;
        let told = world.succeed(["reshard", "--yes", "--shards", &count.to_string()]).await;
        assert!(told.contains("switched at "), "{told}");
        // The relays of the previous count exit for good, and report the new count.
        let next = match count {
            1 => "the outbox has one slot for all rows here".to_owned(),
            _ => format!("the outbox has {count} shards here"),
        };
        for relay in relays {
            let ended = relay.finish(DEADLINE).await;
            assert_eq!(ended.code, Some(3), "{}", ended.text);
            assert!(ended.text.contains(&next), "{}", ended.text);
        }
        assert_only_shards(&world, count).await;
        relays = start_all(&world, count, &[]).await;
    }
    more_rows(&producer).await;
    producer.stop().await;
    world.wait_confirmed(DEADLINE).await;
    without_position_findings(&world.check(&world.committed().await)).assert_clean();
    stop_all(relays).await;
}

#[tokio::test]
async fn a_relay_that_waited_through_two_changes_streams_the_new_slot_of_its_name() {
    let Some(world) = divided(2).await else { return };
    let mut waiting = world.start_relay(["--shard", "0/2"]).await;
    let dying = world.command(["reshard", "--yes", "--shards", "1"]);
    let died = dying.env("WALRELAY_FAILPOINT", "reshard-held").finish(DEADLINE).await;
    assert_eq!(died.code, None, "{}", died.text);
    waiting.wait_for_line(DEADLINE, "waiting: ").await;
    waiting.signal(Signal::Stop);
    for count in ["1", "2"] {
        world.succeed(["reshard", "--yes", "--shards", count]).await;
    }
    waiting.signal(Signal::Continue);
    let workload = Workload { aggregates_count: 20, ..Workload::of_rows(60) };
    workload.insert(world.client()).await.expect("rows");
    world.succeed(["run", "--until-caught-up", "--shard", "1/2"]).await;
    world.pubsub.wait_stored(DEADLINE, 60).await;
    assert_eq!(waiting.terminate(DEADLINE).await, Some(0));
    for shard in ["0/2", "1/2"] {
        world.succeed(["check", "--shard", shard]).await;
    }
    catch_up(&world, 2).await;
    without_position_findings(&world.check(&world.committed().await)).assert_clean();
}

#[tokio::test]
async fn a_publication_changed_before_the_first_relay_of_a_new_shard_is_noticed() {
    let Some(world) = divided(1).await else { return };
    world.succeed(["reshard", "--yes", "--shards", "2"]).await;
    let publication = format!("{}_0_of_2", world.name());
    world.execute(&format!("ALTER PUBLICATION {publication} SET (publish = 'truncate')")).await;
    let workload = Workload { aggregates_count: 20, ..Workload::of_rows(60) };
    workload.insert(world.client()).await.expect("rows");
    world.execute(&format!("ALTER PUBLICATION {publication} SET (publish = 'insert')")).await;
    let checked = world.run(["check", "--shard", "0/2"]).await;
    assert_eq!(checked.code, Some(5), "{}", checked.text);
    assert!(checked.text.contains("slot recover --shard 0/2"), "{}", checked.text);
    world.succeed(["slot", "recover", "--yes", "--shard", "0/2"]).await;
    catch_up(&world, 2).await;
    without_position_findings(&world.check(&world.committed().await)).assert_clean();
}

#[tokio::test]
async fn without_relays_the_command_publishes_what_is_left_and_every_row_goes_out_once() {
    let Some(world) = divided(2).await else { return };
    let workload = Workload { aggregates_count: 40, ..Workload::of_rows(300) };
    workload.insert(world.client()).await.expect("rows");
    world.succeed(["reshard", "--yes", "--shards", "8"]).await;
    assert_only_shards(&world, 8).await;
    assert_eq!(world.pubsub.stored_count(), 300);
    let more = Workload { first_number: 300, ..workload };
    more.insert(world.client()).await.expect("rows");
    catch_up(&world, 8).await;
    without_position_findings(&world.check(&world.committed().await)).assert_exactly_once();
    world.succeed(["check"]).await;
    let again = world.succeed(["reshard", "--yes", "--shards", "8"]).await;
    assert!(again.contains("nothing to do"), "{again}");
}

#[tokio::test]
async fn rows_committed_during_the_drain_are_published_by_the_new_shards() {
    let Some(world) = InboxDatabase::create().await else { return };
    let producer = Producer::start(world.url(), Duration::from_millis(5));
    more_rows(&producer).await;
    for count in [4, 2] {
        world.succeed(["reshard", "--yes", "--shards", &count.to_string()]).await;
        more_rows(&producer).await;
    }
    let rows = producer.stop().await;
    catch_up(&world, 2).await;
    let committed = world.committed().await;
    assert_eq!(committed.len(), rows as usize);
    without_position_findings(&world.check(&committed)).assert_exactly_once();
}

#[tokio::test]
async fn parked_and_dead_rows_move_to_the_shard_of_their_key_before_later_rows() {
    let Some(world) = divided(2).await else { return };
    let poison = "00000000-0000-4000-8000-00000000dead";
    world.pubsub.fault(&format!("event_id={poison},reject=INVALID_ARGUMENT"));
    for key in ["v-1", "v-2", "v-3"] {
        world.pubsub.fault(&format!("key={key},reject=UNAVAILABLE"));
    }
    let relays = start_all(&world, 2, &["--park-after", "500ms"]).await;
    park_while_others_flow(&world, 3).await;
    world
        .execute(&format!(
            "INSERT INTO app_outbox (id, aggregatetype, aggregateid, event_type, version, payload)
             VALUES ('{poison}', 'video', 'v-4', 'test.poison', 999999, '{{\"bad\": true}}')"
        ))
        .await;
    world.wait_dispatch(DEADLINE, "dead", 1).await;
    let parked = world.dispatch_count("retrying").await;
    let workload = Workload { aggregates_count: 10, ..Workload::of_rows(200) };
    let mut number = 1_000_000;
    for count in [4, 1, 4] {
        // The relays of the previous count end by themselves or were never started.
        world.succeed(["reshard", "--yes", "--shards", &count.to_string()]).await;
        let more = Workload { first_number: number, ..workload.clone() };
        more.insert(world.client()).await.expect("rows");
        number += 200;
        assert_only_shards(&world, count).await;
        assert_eq!(world.dispatch_count("dead").await, 1);
        assert!(world.dispatch_count("retrying").await >= parked);
    }
    drop(relays);
    let astray = format!(
        "SELECT count(*) FROM app_outbox_dispatch
          WHERE slot <> '{}_' || (hashtext(ordering_key) & 3) || '_of_4'",
        world.name()
    );
    assert_eq!(world.number(&astray).await, 0);
    world.pubsub.heal();
    for index in 0..4 {
        let shard = format!("{index}/4");
        let retry = ["dispatch", "retry", "--status", "retrying", "--yes", "--shard", &shard];
        world.succeed(retry).await;
        world.succeed(["dispatch", "retry", "--yes", "--all-dead", "--shard", &shard]).await;
    }
    catch_up(&world, 4).await;
    let committed: Vec<_> = world.committed().await;
    let verdict = without_position_findings(&world.check(&committed));
    // The key continued behind its dead row, so reorderings with this row are expected.
    let passed: Vec<_> = verdict.reordered.iter().filter(|(early, _)| early != poison).collect();
    assert!(passed.is_empty() && verdict.lost.is_empty(), "{verdict}");
}

#[tokio::test]
async fn relays_of_the_new_number_wait_for_the_switch_and_those_of_the_old_go_on_when_it_fails() {
    let Some(world) = divided(2).await else { return };
    let workload = Workload { aggregates_count: 20, ..Workload::of_rows(100) };
    let old = start_all(&world, 2, &[]).await;
    workload.insert(world.client()).await.expect("rows");
    world.pubsub.wait_stored(DEADLINE, 100).await;

    world.pubsub.fault("reject=UNAVAILABLE");
    let more = Workload { first_number: 100, ..workload.clone() };
    more.insert(world.client()).await.expect("rows");
    let mut command = world.command(["reshard", "--yes", "--shards", "4"]).start();
    command.wait_for_line(DEADLINE, "draining").await;
    let new = world.relay(["--shard", "1/4"]).start();
    new.wait_for_line(DEADLINE, "a change from 2 shards to 4 shards").await;
    command.signal(Signal::Interrupt);
    assert_eq!(command.wait_ended(DEADLINE).await.code(), Some(1));
    world.pubsub.heal();
    // The old relays publish the rows that arrived during the failed change, because nothing was
    // switched.
    world.pubsub.wait_stored(DEADLINE, 200).await;
    // For the new shards, no row is known to be settled.
    let pruned = world.succeed(["prune", "--yes", "--older-than", "1s"]).await;
    assert!(pruned.contains("0 row(s) deleted"), "{pruned}");

    world.succeed(["reshard", "--yes", "--shards", "4"]).await;
    new.wait_for_line(DEADLINE, "\"streaming\"").await;
    for relay in old {
        assert_eq!(relay.finish(DEADLINE).await.code, Some(3));
    }
    drop(new);
    assert_only_shards(&world, 4).await;
    let last = Workload { first_number: 200, ..workload };
    last.insert(world.client()).await.expect("rows");
    catch_up(&world, 4).await;
    without_position_findings(&world.check(&world.committed().await)).assert_clean();
}

#[tokio::test]
async fn an_anchor_that_is_made_meanwhile_is_noticed_before_the_switch() {
    let Some(world) = InboxDatabase::create().await else { return };
    let blocker = world.connect().await;
    blocker.batch_execute("BEGIN; SELECT txid_current()").await.expect("a transaction");
    let command = world.command(["reshard", "--yes", "--shards", "2"]).start();
    command.wait_for_line(DEADLINE, "waiting for a transaction to end").await;
    // As an older version would make it.
    let name = world.name();
    world
        .execute(&format!("SELECT pg_copy_logical_replication_slot('{name}', '{name}_anchor_mid')"))
        .await;
    // The command protects the old slots, although the change is not recorded for them yet. What could
    // not continue after it does not begin beside it.
    for action in [
        &["slot", "reset", "--yes", "--to-anchor", "mid"][..],
        &["slot", "drop", "--yes"],
        &["anchor", "create", "late"],
        &["replay", "start", "--yes", "--source", "table", "--to-topic", "replays"],
        &["replay", "start", "--yes", "--in-place", "--source", "table", "--aggregate-id", "v-1"],
    ] {
        let early = world.run(action.iter().copied()).await;
        assert_eq!(early.code, Some(3), "{action:?}: {}", early.text);
        for part in ["a change from one slot for all rows to 2 shards", "walrelay reshard"] {
            assert!(early.text.contains(part), "{part}: {}", early.text);
        }
    }
    let status = world.run(["status"]).await;
    assert!(
        status.text.contains("  this finishes it: walrelay reshard --shards 2"),
        "{}",
        status.text
    );
    // A relay of the new count waits from now on.
    let new = world.relay(["--shard", "0/2"]).start();
    new.wait_for_line(DEADLINE, "a change from one slot for all rows to 2 shards").await;
    blocker.batch_execute("COMMIT").await.expect("it ends");

    let refused = command.finish(DEADLINE).await;
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    assert!(refused.text.contains("mid"), "{}", refused.text);

    world.succeed(["anchor", "drop", "--yes", "mid"]).await;
    world.succeed(["reshard", "--yes", "--shards", "2"]).await;
    assert_eq!(world.number(SLOTS).await, 2, "nothing is left of the old number");
}

#[tokio::test]
async fn a_key_of_several_columns_is_handed_over_by_its_text() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    let key = ["--ordering-key", "{aggregatetype}-{schema_version}-{aggregateid}"];
    world.succeed(["init"].into_iter().chain(key)).await;
    world.pubsub.fault("key=video-1-v-3,reject=UNAVAILABLE");
    let relay = world.start_relay(["--park-after", "500ms"].into_iter().chain(key)).await;
    park_while_others_flow(&world, 1).await;
    world.succeed(["reshard", "--yes", "--shards", "4"].into_iter().chain(key)).await;
    drop(relay);
    world.pubsub.heal();
    let more = Workload { first_number: 1_000_000, aggregates_count: 10, ..Workload::of_rows(100) };
    more.insert(world.client()).await.expect("rows");
    for index in 0..4 {
        let shard = format!("{index}/4");
        let retry = ["dispatch", "retry", "--status", "retrying", "--yes", "--shard", &shard];
        world.succeed(retry).await;
        let run = ["run", "--until-caught-up", "--shard", &shard];
        world.succeed(run.into_iter().chain(key)).await;
    }
    let mut committed = world.committed().await;
    committed.iter_mut().for_each(|row| row.key = format!("video-1-{}", row.key));
    without_position_findings(&world.check(&committed)).assert_clean();
}

#[tokio::test]
async fn obstacles_are_named_and_nothing_is_changed() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    let refused = async |arguments: &[&str], code: i32, told: &str| {
        let done = world.run(arguments.iter().copied()).await;
        assert_eq!(done.code, Some(code), "{arguments:?}: {}", done.text);
        assert!(done.text.contains(told), "{arguments:?}: {}", done.text);
    };
    refused(&["reshard", "--yes", "--shards", "2"], 3, "walrelay init").await;
    world.succeed(["init"]).await;
    world.catch_up().await;
    for (arguments, told) in [
        (&["reshard", "--yes", "--shards", "3"][..], "a power of two"),
        (&["reshard"], "--shards"),
        (&["reshard", "--yes", "--shards", "2", "--shard", "0/2"], "leave it out"),
        (&["reshard", "--yes", "--shards", "2", "--ordering-key", "all"], "cannot be divided"),
    ] {
        refused(arguments, 2, told).await;
    }
    world.succeed(["anchor", "create", "a"]).await;
    refused(&["reshard", "--yes", "--shards", "2"], 2, "walrelay anchor drop").await;
    world.succeed(["anchor", "drop", "--yes", "a"]).await;
    world
        .execute(&format!(
            "INSERT INTO app_outbox_replay
                    (id, slot, system_identifier, source, anchor, from_lsn, to_lsn, destination, to_topic, settled_lsn)
             VALUES ('5f3a9c01', '{}', '1', 'wal', 'a', '0/1', '0/2', 'topic', 't', '0/1')",
            world.name()
        ))
        .await;
    refused(&["reshard", "--yes", "--shards", "2"], 2, "replay 5f3a9c01 of slot").await;
    refused(&["reshard", "--yes", "--shards", "2"], 2, "walrelay replay cancel 5f3a9c01").await;
    world.succeed(["replay", "cancel", "--yes", "5f3a9c01"]).await;
    let told = world.succeed(["reshard", "--yes", "--shards", "2", "--dry-run"]).await;
    assert!(told.contains(&format!("{0}_0_of_2, {0}_1_of_2", world.name())), "{told}");
    assert_only_shards(&world, 1).await;
    world.catch_up().await;
}

#[tokio::test]
async fn a_publication_of_somebody_else_is_left_and_is_there_for_the_way_back() {
    let Some(world) = InboxDatabase::create().await else { return };
    let role = format!("{}_own", world.name());
    world
        .execute(&format!(
            "CREATE ROLE {role} LOGIN REPLICATION;
             GRANT CREATE ON DATABASE {name} TO {role};
             GRANT CREATE ON SCHEMA public TO {role};
             DO $$ DECLARE it regclass; BEGIN
               FOR it IN SELECT oid FROM pg_class WHERE starts_with(relname, 'app_') AND relkind = 'r'
               LOOP EXECUTE format('ALTER TABLE %s OWNER TO {role}', it); END LOOP; END $$",
            name = world.name(),
        ))
        .await;
    let url = world.url().replacen("postgres@", &format!("{role}@"), 1);
    let told = world.run(["reshard", "--yes", "--shards", "2", "--database-url", &url]).await;
    world
        .execute(&format!(
            "REASSIGN OWNED BY {role} TO CURRENT_USER; DROP OWNED BY {role}; DROP ROLE {role}"
        ))
        .await;
    assert_eq!(told.code, Some(0), "{}", told.text);
    let left = format!("left to its owner: publication {}", world.name());
    assert!(told.text.contains(&left), "{}", told.text);
    assert_eq!(world.number(PUBLICATIONS).await, 3);
    // The new owner is a change of the publication, which leaves out no row.
    catch_up(&world, 2).await;
    let workload = Workload { aggregates_count: 10, ..Workload::of_rows(60) };
    workload.insert(world.client()).await.expect("rows");
    catch_up(&world, 2).await;
    world.succeed(["reshard", "--yes", "--shards", "1"]).await;
    assert_only_shards(&world, 1).await;
    let more = Workload { first_number: 60, ..workload };
    more.insert(world.client()).await.expect("rows");
    world.catch_up().await;
    without_position_findings(&world.check(&world.committed().await)).assert_exactly_once();
}

#[tokio::test]
async fn rows_of_one_event_id_that_come_together_are_both_kept() {
    let Some(world) = divided(2).await else { return };
    world
        .execute(&format!(
            "INSERT INTO app_outbox_dispatch
                    (slot, event_id, commit_lsn, tx_index, topic, ordering_key, message, status)
             SELECT '{}_' || shard || '_of_2', 'twice', '0/20', shard, 't', 'k-' || shard, '', 'dead'
               FROM generate_series(0, 1) AS shard",
            world.name()
        ))
        .await;
    let told = world.succeed(["reshard", "--yes", "--shards", "1"]).await;
    assert!(told.contains("handed over: 2 row(s)"), "{told}");
    assert_only_shards(&world, 1).await;
    let rows = world
        .client()
        .query("SELECT event_id, ordering_key FROM app_outbox_dispatch ORDER BY ordering_key", &[])
        .await
        .expect("rows");
    let rows: Vec<(String, String)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let expected = [("twice", "k-0"), ("twice@0/20/1", "k-1")];
    assert_eq!(rows, expected.map(|(id, key)| (id.to_owned(), key.to_owned())));
}
