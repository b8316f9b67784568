//! A replay republishes the rows after an anchor, in parallel to the live relay, and removes
//! everything it created.

use std::collections::HashSet;

use walrelay_testkit::outbox::Workload;
use walrelay_testkit::process::Signal;
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase, topic};

/// Key, event id, position and index of a message's row.
type ReplayedRow = (String, String, String, String);

fn published(world: &InboxDatabase, name: &str) -> Vec<ReplayedRow> {
    let messages = world.pubsub.emulator().published(&topic(name));
    let text = |value: Option<&str>| value.unwrap_or_default().to_owned();
    let said = messages.iter().map(|message| {
        (
            message.key().to_owned(),
            text(message.attribute("event_id")),
            text(message.attribute("commit_lsn")),
            text(message.attribute("tx_index")),
        )
    });
    said.collect()
}

fn of_key<'a>(said: &'a [ReplayedRow], key: &str) -> Vec<&'a ReplayedRow> {
    said.iter().filter(|row| row.0 == key).collect()
}

fn replay_ids(world: &InboxDatabase, name: &str) -> Vec<Option<String>> {
    let messages = world.pubsub.emulator().published(&topic(name));
    let mut ids: Vec<_> =
        messages.iter().map(|message| message.attribute("replay_id").map(str::to_owned)).collect();
    ids.dedup();
    ids
}

/// Waits until `count` slots exist. The server drops a temporary slot shortly after its connection
/// ends.
async fn wait_slots(world: &InboxDatabase, count: i64) {
    let sql = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()";
    wait_until(DEADLINE, "the slots that stay", async || {
        (world.number(sql).await == count).then_some(())
    })
    .await;
}

/// Creates an anchor, rows after the anchor, and a topic for a replay of the rows.
async fn world_with_an_anchor(world: &InboxDatabase, rows: u32) {
    world.succeed(["anchor", "create", "a"]).await;
    world.pubsub.create_topic("again");
    Workload::of_rows(rows).insert(world.client()).await.expect("rows");
}

#[tokio::test]
async fn a_replay_repeats_rows_positions_and_order_on_another_topic_and_the_live_slot_does_not_notice()
 {
    let Some(world) = InboxDatabase::create().await else { return };
    let mut relay = world.start_relay([]).await;
    world_with_an_anchor(&world, 1_000).await;
    world.pubsub.wait_stored(DEADLINE, 1_000).await;
    world.wait_confirmed(DEADLINE).await;
    let live = published(&world, "video.events");
    assert_eq!(relay.terminate(DEADLINE).await, Some(0));
    let confirmed = world.confirmed_flush().await;

    let told = world
        .succeed(["replay", "start", "--yes", "--from-anchor", "a", "--to-topic", "again"])
        .await;

    assert!(told.contains("1000 row(s)"), "{told}");
    let again = published(&world, "again");
    assert_eq!(again.len(), 1_000);
    for key in ["v-0", "v-1", "v-2"] {
        assert_eq!(of_key(&again, key), of_key(&live, key), "{key}");
    }
    assert!(matches!(replay_ids(&world, "again").as_slice(), [Some(id)] if told.contains(id)));
    assert_eq!(replay_ids(&world, "video.events"), [None]);
    assert_eq!(world.confirmed_flush().await, confirmed, "the live slot has not moved");
    wait_slots(&world, 2).await;
    assert_eq!(world.dispatch_count("published").await, 0);
}

#[tokio::test]
async fn a_replay_runs_beside_a_live_relay_that_goes_on() {
    let Some(world) = InboxDatabase::create().await else { return };
    let relay = world.start_relay([]).await;
    world_with_an_anchor(&world, 400).await;
    let arguments =
        ["replay", "start", "--yes", "--from-anchor", "a", "--to-topic", "again", "--rate", "400"];
    let replay = world.command(arguments).start();
    let more = Workload { first_number: 400, ..Workload::of_rows(200) };
    more.insert(world.client()).await.expect("rows");
    let done = replay.finish(DEADLINE).await;
    assert_eq!(done.code, Some(0), "{}", done.text);
    world.wait_confirmed(DEADLINE).await;
    let committed = world.committed().await;
    world.pubsub.wait_stored(DEADLINE, 1_000).await;
    assert_eq!(published(&world, "video.events").len(), committed.len());
    let again = published(&world, "again").len();
    assert!((400..=600).contains(&again), "{again}: what was there when it began");
    drop(relay);
}

#[tokio::test]
async fn a_wal_range_an_aggregate_or_a_type_is_replayed_and_a_dry_run_only_counts() {
    let Some(world) = InboxDatabase::create().await else { return };
    world_with_an_anchor(&world, 90).await;
    world.catch_up().await;
    let live = published(&world, "video.events");
    let all = ["replay", "start", "--yes", "--from-anchor", "a"];

    let told = world.succeed(all.into_iter().chain(["--dry-run", "--aggregate-id", "v-1"])).await;
    assert!(told.contains("would publish 30 row(s)"), "{told}");
    assert_eq!(world.number("SELECT count(*) FROM app_outbox_replay").await, 0);
    assert!(published(&world, "again").is_empty());

    let one = ["--to-topic", "again", "--aggregate-id", "v-1", "--aggregate-type", "video"];
    world.succeed(all.into_iter().chain(one)).await;
    assert_eq!(published(&world, "again").iter().collect::<Vec<_>>(), of_key(&live, "v-1"));

    let none =
        world.succeed(all.into_iter().chain(["--dry-run", "--event-type", "of no row"])).await;
    assert!(none.contains("would publish 0 row(s)"), "{none}");

    // Both ends of the range are included.
    let mut commits: Vec<_> = live.iter().map(|row| row.2.clone()).collect();
    commits.sort_by_key(|lsn| lsn.parse::<pgoutput_parser::Lsn>().expect("a position"));
    commits.dedup();
    let (first, last) = (commits[2].as_str(), commits[4].as_str());
    let expected = live.iter().filter(|row| commits[2..=4].contains(&row.2)).count();
    let between = world
        .succeed(["replay", "start", "--yes", "--dry-run", "--from-lsn", first, "--to-lsn", last])
        .await;
    assert!(between.contains(&format!("would publish {expected} row(s)")), "{expected}: {between}");
    wait_slots(&world, 2).await;
}

#[tokio::test]
async fn times_select_by_the_moment_of_the_commit() {
    let Some(world) = InboxDatabase::create().await else { return };
    world_with_an_anchor(&world, 20).await;
    let moment =
        "SELECT to_char(clock_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')";
    let between: String = world.client().query_one(moment, &[]).await.expect("a time").get(0);
    let more = Workload { first_number: 20, ..Workload::of_rows(15) };
    more.insert(world.client()).await.expect("rows");

    let all = ["replay", "start", "--yes", "--dry-run", "--from-anchor", "a"];
    let later = world.succeed(all.into_iter().chain(["--from-time", &between])).await;
    assert!(later.contains("would publish 15 row(s)"), "{later}");
    let earlier = world.succeed(all.into_iter().chain(["--to-time", &between])).await;
    assert!(earlier.contains("would publish 20 row(s)"), "{earlier}");

    let too_early = world.run(all.into_iter().chain(["--from-time", "30d"])).await;
    assert_eq!(too_early.code, Some(2), "{}", too_early.text);
}

/// Extracts the id after `replay resume` from the output.
fn resume_id(text: &str) -> String {
    let (_, behind) =
        text.rsplit_once("replay resume ").unwrap_or_else(|| panic!("no id in {text}"));
    behind.chars().take_while(char::is_ascii_hexdigit).collect()
}

#[tokio::test]
async fn a_replay_that_is_interrupted_or_killed_goes_on_where_it_stopped() {
    let Some(world) = InboxDatabase::create().await else { return };
    world_with_an_anchor(&world, 1_200).await;
    world.catch_up().await;
    let live = published(&world, "video.events");
    let arguments =
        ["replay", "start", "--yes", "--from-anchor", "a", "--to-topic", "again", "--rate", "300"];

    let mut first = world.command(arguments).start();
    world.pubsub.wait_stored(DEADLINE, 1_200 + 200).await;
    first.signal(Signal::Interrupt);
    assert_eq!(first.wait_ended(DEADLINE).await.code(), Some(1));
    let id = resume_id(&first.lines().join("\n"));
    wait_slots(&world, 2).await;

    let mut second = world.command(["replay", "resume", "--yes", &id]).start();
    world.pubsub.wait_stored(DEADLINE, 1_200 + 700).await;
    second.kill();
    wait_slots(&world, 2).await;

    world.succeed(["replay", "resume", "--yes", &id]).await;
    let again = published(&world, "again");
    for key in ["v-0", "v-1", "v-2"] {
        let mut seen = of_key(&again, key);
        let mut known = HashSet::new();
        seen.retain(|row| known.insert(*row));
        assert_eq!(seen, of_key(&live, key), "{key}: first occurrences are in order and complete");
    }
    assert!(again.len() < 1_200 + 700, "{}: it did not begin anew", again.len());
    assert_eq!(replay_ids(&world, "again"), [Some(id.clone())]);

    let done = world.run(["replay", "resume", "--yes", &id]).await;
    assert_eq!(done.code, Some(2), "{}", done.text);
    assert!(done.text.contains("is done"), "{}", done.text);
}

#[tokio::test]
async fn an_anchor_that_an_unfinished_replay_goes_on_from_is_neither_dropped_nor_moved_past_it() {
    let Some(world) = InboxDatabase::create().await else { return };
    world_with_an_anchor(&world, 600).await;
    world.catch_up().await;
    // Slow enough that even on a busy machine the replay is stopped before it settles all rows
    // after the anchor.
    let arguments =
        ["replay", "start", "--yes", "--from-anchor", "a", "--to-topic", "again", "--rate", "100"];
    let mut first = world.command(arguments).start();
    world.pubsub.wait_stored(DEADLINE, 600 + 20).await;
    first.signal(Signal::Interrupt);
    first.wait_ended(DEADLINE).await;
    let id = resume_id(&first.lines().join("\n"));
    let relay = world.start_relay([]).await;
    let told = world.succeed(["status"]).await;
    for told_of_it in
        ["to again is not finished, and no process runs it", "replay resume", "replay cancel"]
    {
        assert!(told.contains(told_of_it), "{told_of_it:?} is not in\n{told}");
    }
    assert!(told.contains(&format!("walrelay replay resume {id}")), "{told}");
    drop(relay);

    for command in [&["anchor", "drop", "--yes", "a"][..], &["anchor", "advance", "--yes", "a"]] {
        let refused = world.run(command.iter().copied()).await;
        assert_eq!(refused.code, Some(2), "{command:?}: {}", refused.text);
        for word in [format!("replay resume {id}"), format!("replay cancel {id}")] {
            assert!(refused.text.contains(&word), "{word:?} is not in\n{}", refused.text);
        }
    }
    // The replay does not use the other anchor, so that anchor can be dropped.
    world.succeed(["anchor", "create", "b"]).await;
    world.succeed(["anchor", "drop", "--yes", "b"]).await;

    world.succeed(["replay", "resume", "--yes", &id]).await;
    let later = world.start_relay([]).await;
    let over = world.succeed(["status"]).await;
    assert!(!over.contains(&id), "{over}");
    drop(later);
    world.succeed(["anchor", "advance", "--yes", "a"]).await;
    world.succeed(["anchor", "drop", "--yes", "a"]).await;
}

#[tokio::test]
async fn an_abandoned_replay_to_a_topic_blocks_nothing_and_leaves_no_slot() {
    let Some(world) = InboxDatabase::create().await else { return };
    world_with_an_anchor(&world, 600).await;
    world.catch_up().await;
    let arguments =
        ["replay", "start", "--yes", "--from-anchor", "a", "--to-topic", "again", "--rate", "200"];
    let mut first = world.command(arguments).start();
    world.pubsub.wait_stored(DEADLINE, 600 + 100).await;
    first.signal(Signal::Interrupt);
    first.wait_ended(DEADLINE).await;
    let id = resume_id(&first.lines().join("\n"));
    wait_slots(&world, 2).await;
    // Simulates the temporary slot of a dead process whose end the server has not noticed.
    let gone = world.connect().await;
    let copy = format!(
        "SELECT pg_create_logical_replication_slot('{}_replay_{id}', 'pgoutput', true)",
        world.name()
    );
    gone.batch_execute(&copy).await.expect("a temporary slot");

    let cancel = async |consent: &str| {
        let text = world.succeed(["replay", "cancel", consent, &id, "-o", "json"]).await;
        serde_json::from_str::<serde_json::Value>(&text).expect("JSON")
    };
    let would = cancel("--dry-run").await["would"].to_string();
    assert!(would.contains(&format!("cancel replay {id}: at least ")), "{would}");
    let cancelled = cancel("--yes").await;
    assert_eq!(
        (&cancelled["id"], &cancelled["destination"]),
        (&id.as_str().into(), &"again".into())
    );
    wait_slots(&world, 2).await;
    assert!(published(&world, "again").len() >= 100, "what was published stays");
    for again in ["resume", "cancel"] {
        let over = world.run(["replay", again, "--yes", &id]).await;
        assert_eq!(over.code, Some(2), "{}", over.text);
        assert!(over.text.contains("was cancelled"), "{}", over.text);
    }
    world.succeed(["anchor", "drop", "--yes", "a"]).await;
    world.succeed(["reshard", "--yes", "--shards", "2", "--dry-run"]).await;
}

#[tokio::test]
async fn a_row_that_is_never_taken_ends_a_replay_or_is_left_out_and_named() {
    let Some(world) = InboxDatabase::create().await else { return };
    world_with_an_anchor(&world, 30).await;
    world.catch_up().await;
    let live = published(&world, "video.events");
    let (key, bad, ..) = live[7].clone();
    world.pubsub.fault(&format!("topic=again,event_id={bad},reject=INVALID_ARGUMENT"));
    let arguments = ["replay", "start", "--yes", "--from-anchor", "a", "--to-topic", "again"];

    let stopped = world.run(arguments).await;
    assert_eq!(stopped.code, Some(1), "{}", stopped.text);
    for word in [bad.as_str(), "--skip-dead", "replay resume"] {
        assert!(stopped.text.contains(word), "{word:?} is not in\n{}", stopped.text);
    }
    assert!(!stopped.text.contains("dispatch state"), "nothing is recorded: {}", stopped.text);
    let before: Vec<_> = of_key(&live, &key).into_iter().take_while(|row| row.1 != bad).collect();
    let again = published(&world, "again");
    assert_eq!(of_key(&again, &key), before, "what lies behind it waits until it is mended");
    let done = world.succeed(arguments.into_iter().chain(["--skip-dead"])).await;
    assert!(done.contains("29 row(s)") && done.contains("left out: 1 row(s)"), "{done}");
    assert!(done.contains(&bad) && !done.contains("dispatch state"), "{done}");
    // The stopped replay is resumed with `--skip-dead`, and the option is recorded for later
    // resumes.
    let id = resume_id(&stopped.text);
    let resumed = world.succeed(["replay", "resume", "--yes", &id, "--skip-dead"]).await;
    assert!(resumed.contains(&bad) && resumed.contains("left out: 1 row(s)"), "{resumed}");
    let skips = "SELECT count(*) FROM app_outbox_replay WHERE skip_dead";
    assert_eq!(world.number(skips).await, 2);
    let in_dispatch_state = "SELECT count(*) FROM app_outbox_dispatch";
    assert_eq!(world.number(in_dispatch_state).await, 0, "dispatch state is the live relay's");
}

#[tokio::test]
async fn a_topic_of_the_relay_itself_and_a_place_before_the_anchor_are_refused() {
    let Some(world) = InboxDatabase::create().await else { return };
    world_with_an_anchor(&world, 3).await;
    let cases: [(&[&str], &str); 4] = [
        (&["--from-anchor", "a", "--to-topic", "video.events"], "does not lead to"),
        (&["--from-anchor", "b", "--to-topic", "again"], "there are: a"),
        (&["--from-lsn", "0/1", "--to-topic", "again"], "no anchor reaches back"),
        (&["--from-anchor", "a", "--to-topic", "again", "--from-lsn", "0/1"], "is before it"),
    ];
    for (arguments, word) in cases {
        let done = world
            .run(["replay", "start", "--yes"].into_iter().chain(arguments.iter().copied()))
            .await;
        assert_eq!(done.code, Some(2), "{}", done.text);
        assert!(done.text.contains(word), "{word:?} is not in\n{}", done.text);
    }
}
