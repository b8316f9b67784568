//! A backfill publishes rows of the table to another topic, in order per aggregate, and can be
//! resumed.

use std::collections::{BTreeMap, HashSet};

use walrelay_testkit::outbox::Workload;
use walrelay_testkit::process::Signal;
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase, topic};

/// Returns the key and version of each message in the order of storing.
fn published(world: &InboxDatabase, name: &str) -> Vec<(String, i64)> {
    let messages = world.pubsub.emulator().published(&topic(name));
    let version = |text: Option<&str>| text.and_then(|text| text.parse().ok()).unwrap_or(-1);
    let told = messages.iter().map(|m| (m.key().to_owned(), version(m.attribute("version"))));
    told.collect()
}

fn by_key(rows: &[(String, i64)]) -> BTreeMap<&str, Vec<i64>> {
    let mut keys: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for (key, version) in rows {
        keys.entry(key).or_default().push(*version);
    }
    keys
}

#[tokio::test]
async fn all_rows_of_the_table_come_once_by_version_per_aggregate_and_the_live_slot_does_not_move()
{
    let Some(world) = InboxDatabase::create().await else { return };
    world.pubsub.create_topic("again");
    Workload::of_rows(2_500).insert(world.client()).await.expect("rows");
    world.catch_up().await;
    let confirmed = world.confirmed_flush().await;

    let dry = world.succeed(["replay", "start", "--source", "table", "--dry-run"]).await;
    assert!(dry.contains("would publish 2500 row(s)"), "{dry}");
    let told = world
        .succeed(["replay", "start", "--yes", "--source", "table", "--to-topic", "again"])
        .await;
    assert!(told.contains("2500 row(s) are in again"), "{told}");

    let again = published(&world, "again");
    assert_eq!(again.len(), 2_500);
    for (key, versions) in by_key(&again) {
        assert!(versions.is_sorted(), "{key}: {versions:?}");
    }
    let messages = world.pubsub.emulator().published(&topic("again"));
    let ids: HashSet<_> =
        messages.iter().map(|m| m.attribute("replay_id").map(str::to_owned)).collect();
    assert!(ids.len() == 1 && !ids.contains(&None), "{ids:?}");
    let positions: HashSet<_> = messages
        .iter()
        .map(|m| {
            (
                m.attribute("commit_lsn").map(str::to_owned),
                m.attribute("tx_index").map(str::to_owned),
            )
        })
        .collect();
    assert_eq!(positions.len(), 2_500, "each row has a position of its own");
    assert_eq!(world.confirmed_flush().await, confirmed);
    assert_eq!(world.dispatch_count("published").await, 0);
}

#[tokio::test]
async fn a_topic_that_does_not_exist_is_refused_before_anything_is_begun() {
    let Some(world) = InboxDatabase::create().await else { return };
    Workload::of_rows(30).insert(world.client()).await.expect("rows");
    world.succeed(["anchor", "create", "a"]).await;
    let nowhere = ["--to-topic", "nowhere"];
    let by_type = ["--to-topic", "{aggregatetype}.again"];
    let replay: &[&str] = &["replay", "start", "--yes", "--from-anchor", "a"];
    let table: &[&str] = &["replay", "start", "--yes", "--source", "table"];
    for (command, topic) in
        [(replay, nowhere), (replay, by_type), (table, nowhere), (table, by_type)]
    {
        let refused = world.run(command.iter().copied().chain(topic)).await;
        assert_eq!(refused.code, Some(4), "{}", refused.text);
        assert!(refused.text.contains("does not exist"), "{}", refused.text);
        assert!(refused.text.contains("walrelay init --create-topics="), "{}", refused.text);
    }
    assert_eq!(world.number("SELECT count(*) FROM app_outbox_replay").await, 0);
}

#[tokio::test]
async fn an_aggregate_a_type_or_a_time_is_backfilled_alone_in_the_order_that_is_asked_for() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.pubsub.create_topic("again");
    Workload::of_rows(90).insert(world.client()).await.expect("rows");
    let one = ["--aggregate-id", "v-1", "--aggregate-type", "video"];
    let told = world
        .succeed(
            ["replay", "start", "--yes", "--source", "table", "--to-topic", "again"]
                .into_iter()
                .chain(["--order-by", "occurred_at,version"])
                .chain(one),
        )
        .await;
    assert!(told.contains("30 row(s)"), "{told}");
    assert!(published(&world, "again").iter().all(|(key, _)| key == "v-1"));
    let none = world
        .succeed(["replay", "start", "--source", "table", "--dry-run", "--aggregate-type", "audio"])
        .await;
    assert!(none.contains("would publish 0 row(s)"), "{none}");
    let recent = world
        .succeed(["replay", "start", "--source", "table", "--dry-run", "--from-time", "1h"])
        .await;
    assert!(recent.contains("would publish 90 row(s)"), "{recent}");
    let future = world
        .succeed([
            "replay",
            "start",
            "--source",
            "table",
            "--dry-run",
            "--from-time",
            "2100-01-01T00:00:00Z",
        ])
        .await;
    assert!(future.contains("would publish 0 row(s)"), "{future}");
    let wrong = world
        .run(["replay", "start", "--source", "table", "--dry-run", "--order-by", "nothing"])
        .await;
    assert_eq!(wrong.code, Some(2), "{}", wrong.text);
    let live = world
        .run(["replay", "start", "--yes", "--source", "table", "--to-topic", "video.events"])
        .await;
    assert_eq!(live.code, Some(2), "{}", live.text);
}

#[tokio::test]
async fn an_interrupted_backfill_goes_on_with_the_aggregate_where_it_stopped() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.pubsub.create_topic("again");
    world
        .execute(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             SELECT 'video', 'a-' || lpad((n % 600)::text, 3, '0'), 'test.made', n, '{}'
               FROM generate_series(1, 12000) AS n",
        )
        .await;
    for signal in [Signal::Interrupt, Signal::Kill] {
        let before = published(&world, "again").len();
        let begin = [
            "replay",
            "start",
            "--yes",
            "--source",
            "table",
            "--to-topic",
            "again",
            "--rate",
            "3000",
        ];
        let mut first = world.command(begin).start();
        let line = first.wait_for_line(DEADLINE, "replay begins").await;
        let line: serde_json::Value = serde_json::from_str(&line).expect("a line of log");
        let id = line["id"].as_str().expect("an id").to_owned();
        let settled = "SELECT count(*) FROM app_outbox_replay WHERE finished_at IS NULL AND resume_table IS NOT NULL";
        walrelay_testkit::wait_until(DEADLINE, "some of it on record", async || {
            (world.number(settled).await == 1).then_some(())
        })
        .await;
        first.signal(signal);
        first.wait_ended(DEADLINE).await;
        let listed = world.succeed(["replay", "list"]).await;
        assert!(listed.contains(&id) && listed.contains("unfinished"), "{listed}");
        let shown = world.succeed(["replay", "show", &id, "-o", "json"]).await;
        let shown: serde_json::Value = serde_json::from_str(&shown).expect("a replay");
        assert_eq!((&shown["source"], &shown["destination"]), (&"table".into(), &"again".into()));
        let in_the_way = world.run(["reshard", "--yes", "--shards", "2", "--dry-run"]).await;
        assert_eq!(in_the_way.code, Some(2), "{}", in_the_way.text);
        for word in [id.as_str(), "walrelay replay cancel"] {
            assert!(in_the_way.text.contains(word), "{word:?} is not in\n{}", in_the_way.text);
        }
        let told = world.succeed(["replay", "resume", "--yes", &id]).await;
        assert!(told.contains("are in again"), "{told}");

        let rows = published(&world, "again").split_off(before);
        assert!(rows.len() < 2 * 12_000, "{}: it began anew", rows.len());
        let distinct: HashSet<_> = rows.iter().collect();
        assert_eq!(distinct.len(), 12_000, "nothing is left out");
        for (key, versions) in by_key(&rows) {
            // The key was published once, or in part and then completely.
            let all = &versions[versions.len() - 20..];
            assert!(all.is_sorted(), "{key}: {versions:?}");
        }
    }
}

#[tokio::test]
async fn a_backfill_that_is_killed_before_its_first_note_gives_no_position_to_two_rows() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.pubsub.create_topic("again");
    Workload::of_rows(300).insert(world.client()).await.expect("rows");
    let first = world
        .command([
            "replay",
            "start",
            "--yes",
            "--source",
            "table",
            "--to-topic",
            "again",
            "--rate",
            "100",
        ])
        .start();
    let line = first.wait_for_line(DEADLINE, "replay begins").await;
    let line: serde_json::Value = serde_json::from_str(&line).expect("a line of log");
    let id = line["id"].as_str().expect("an id").to_owned();
    let mut running = Some(first);
    for _ in 0..2 {
        let before = world.pubsub.stored_count();
        let mut process = running
            .take()
            .unwrap_or_else(|| world.command(["replay", "resume", "--yes", &id]).start());
        // Simulates a process that recorded no progress.
        world.pubsub.wait_stored(DEADLINE, before + 20).await;
        process.kill();
        process.wait_ended(DEADLINE).await;
        let forgotten = "UPDATE app_outbox_replay SET resume_table = NULL, rows_published = 0";
        world.execute(forgotten).await;
        world.execute("DELETE FROM app_outbox WHERE version % 7 = 0").await;
        world.execute("DELETE FROM app_outbox WHERE id IN (SELECT id FROM app_outbox ORDER BY version LIMIT 9)").await;
    }
    world.succeed(["replay", "resume", "--yes", &id]).await;
    let mut rows_at: BTreeMap<(String, String), HashSet<String>> = BTreeMap::new();
    for message in world.pubsub.emulator().published(&topic("again")) {
        let of = |name| message.attribute(name).unwrap_or_default().to_owned();
        rows_at.entry((of("commit_lsn"), of("tx_index"))).or_default().insert(of("event_id"));
    }
    let shared: Vec<_> = rows_at.iter().filter(|(_, rows)| rows.len() > 1).collect();
    assert!(shared.is_empty(), "{shared:?}");
}

#[tokio::test]
async fn a_replay_from_the_table_at_a_low_rate_advances_with_every_restart() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.pubsub.create_topic("again");
    Workload::of_rows(400).insert(world.client()).await.expect("rows");
    let begin =
        ["replay", "start", "--yes", "--source", "table", "--to-topic", "again", "--rate", "200"];
    let mut process = world.command(begin).start();
    const RECORDED: &str = "SELECT coalesce(max(rows_published), 0)::bigint FROM app_outbox_replay";
    let mut recorded = 0;
    for _ in 0..2 {
        wait_until(DEADLINE, "progress on record", async || {
            (world.number(RECORDED).await > recorded).then_some(())
        })
        .await;
        process.kill();
        process.wait_ended(DEADLINE).await;
        recorded = world.number(RECORDED).await;
        let sql = "SELECT id FROM app_outbox_replay";
        let id: String = world.client().query_one(sql, &[]).await.expect("the replay").get(0);
        process = world.command(["replay", "resume", "--yes", &id]).start();
    }
    assert_eq!(process.wait_ended(DEADLINE).await.code(), Some(0));
    let messages = world.pubsub.emulator().published(&topic("again")).len();
    assert!((400..700).contains(&messages), "{messages} messages of 400 rows");
}

#[tokio::test]
async fn a_backfill_to_a_topic_that_is_given_up_is_over() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.pubsub.create_topic("again");
    Workload::of_rows(600).insert(world.client()).await.expect("rows");
    let begin =
        ["replay", "start", "--yes", "--source", "table", "--to-topic", "again", "--rate", "100"];
    let mut first = world.command(begin).start();
    world.pubsub.wait_stored(DEADLINE, 50).await;
    first.kill();
    first.wait_ended(DEADLINE).await;
    let sql = "SELECT id FROM app_outbox_replay";
    let id: String = world.client().query_one(sql, &[]).await.expect("a backfill").get(0);
    world.catch_up().await;
    for prune in [
        &["prune", "--yes", "--older-than", "1s"][..],
        &["prune", "--yes", "--older-than", "1s", "--dry-run"],
    ] {
        let refused = world.run(prune.iter().copied()).await;
        assert_eq!(refused.code, Some(2), "{}", refused.text);
        for way in ["resume", "cancel"] {
            let told = format!("walrelay replay {way} {id}");
            assert!(refused.text.contains(&told), "{told:?} is not in\n{}", refused.text);
        }
    }

    let told = world.succeed(["replay", "cancel", "--yes", &id]).await;
    assert!(told.contains(&format!("replay {id} is cancelled")), "{told}");
    assert!(told.contains("published to again"), "{told}");
    assert!(told.contains("at least "), "the last moment is not counted: {told}");
    world.succeed(["prune", "--yes", "--older-than", "30d"]).await;
    let over = world.run(["replay", "resume", "--yes", &id]).await;
    assert_eq!(over.code, Some(2), "{}", over.text);
    assert!(over.text.contains("was cancelled"), "{}", over.text);
    world.succeed(["reshard", "--yes", "--shards", "2", "--dry-run"]).await;
}
