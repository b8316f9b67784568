//! Shards: every row is published by exactly one shard, in order per key, and the commands handle
//! several shards.

use serde_json::Value;
use tokio::task::JoinSet;
use walrelay_testkit::checker::{Committed, Verdict};
use walrelay_testkit::outbox::Workload;
use walrelay_testkit::relay::Finished;
use walrelay_tests::{DEADLINE, InboxDatabase};

/// Creates a test environment whose outbox has `count` shards.
async fn divided(count: u32) -> Option<InboxDatabase> {
    let world = InboxDatabase::create_empty().await?;
    world.succeed(["init", "--shards", &count.to_string()]).await;
    Some(world)
}

/// Runs a relay for each shard until it has caught up. Returns the outputs.
async fn catch_up(world: &InboxDatabase, count: u32, options: &[&str]) -> Vec<Finished> {
    let mut running = JoinSet::new();
    for index in 0..count {
        let shard = format!("{index}/{count}");
        let own = ["run", "--until-caught-up", "--shard", shard.as_str()];
        let relay = world.command(own.into_iter().chain(options.iter().copied()));
        running.spawn(relay.finish(DEADLINE));
    }
    running.join_all().await
}

async fn assert_caught_up(world: &InboxDatabase, count: u32) {
    for done in catch_up(world, count, &[]).await {
        assert_eq!(done.code, Some(0), "{}", done.text);
    }
}

/// Checks that every row was published once and in order. A row's index counts only the rows of its
/// shard, so rows of two shards may share a position.
fn assert_once_each(verdict: &Verdict) {
    let shared = "position belongs to another row too";
    let altered = verdict.altered.iter().filter(|(_, what)| *what != shared).cloned().collect();
    let besides = Verdict { altered, ..verdict.clone() };
    besides.assert_exactly_once();
}

#[tokio::test]
async fn every_row_goes_out_once_and_in_order_over_two_and_four_shards() {
    for count in [2, 4] {
        let Some(world) = divided(count).await else { return };
        let workload = Workload { aggregates_count: 40, ..Workload::of_rows(400) };
        workload.insert(world.client()).await.expect("rows");
        assert_caught_up(&world, count).await;
        let verdict = world.check(&world.committed().await);
        assert_once_each(&verdict);
        // Each shard has its own record.
        let rows = "SELECT count(*) FROM app_outbox_relay WHERE slot LIKE '%\\_of\\_%'";
        assert_eq!(world.number(rows).await, i64::from(count));
    }
}

#[tokio::test]
async fn rows_without_a_key_are_on_exactly_one_shard() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    world.succeed(["init"]).await;
    world.execute("ALTER TABLE app_outbox ALTER aggregateid DROP NOT NULL").await;
    world.succeed(["slot", "drop", "--yes"]).await;
    world.succeed(["init", "--shards", "4"]).await;
    world
        .execute(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             SELECT 'video', CASE n % 3 WHEN 0 THEN NULL WHEN 1 THEN '' ELSE 'v-' || n END, 'made', n, '{}'
               FROM generate_series(1, 60) n",
        )
        .await;
    assert_caught_up(&world, 4).await;
    assert_eq!(world.pubsub.stored_count(), 60);
}

#[tokio::test]
async fn the_key_may_be_a_template_of_several_columns_of_other_types() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    let key = ["--ordering-key", "{aggregatetype}-{schema_version}-{aggregateid}"];
    world.succeed(["init", "--shards", "4"].into_iter().chain(key)).await;
    let workload = Workload { aggregates_count: 30, ..Workload::of_rows(300) };
    let committed = workload.insert(world.client()).await.expect("rows");
    for done in catch_up(&world, 4, &key).await {
        assert_eq!(done.code, Some(0), "{}", done.text);
    }
    let in_template = |mut row: Committed| {
        row.key = format!("video-1-{}", row.key);
        row
    };
    let committed: Vec<_> = committed.into_iter().map(in_template).collect();
    let verdict = world.check(&committed);
    assert_once_each(&verdict);
    // With an ordering key that does not match the row filters, nothing is published, and the relay
    // reports the cause.
    let other = world.run(["run", "--shard", "0/4"]).await;
    assert_eq!(other.code, Some(3), "{}", other.text);
    assert!(other.text.contains("the ordering key was changed, restore it"), "{}", other.text);
}

#[tokio::test]
async fn a_shard_of_another_number_and_a_relay_without_one_are_refused() {
    let Some(world) = divided(4).await else { return };
    for (arguments, told) in [
        (&["run", "--shard", "0/2"][..], "the outbox has 4 shards here"),
        (&["run"], "the outbox has 4 shards here"),
        (&["init"], "To change the number of shards, run `walrelay reshard`"),
        (&["init", "--shards", "2"], "run `walrelay reshard --shards 2`"),
        (&["slot", "recover", "--yes"], "Name the shard, for example `--shard 0/4`"),
        (&["slot", "recover", "--yes", "--shard", "0/2"], "0/2 is none of them"),
        (&["dispatch", "list"], "Name the shard, for example `--shard 0/4`"),
        (&["anchor", "create", "a"], "Name the shard, for example `--shard 0/4`"),
        (
            &["replay", "start", "--yes", "--from-anchor", "a", "--to-topic", "t"],
            "Name the shard, for example `--shard 0/4`",
        ),
        (
            &["replay", "start", "--yes", "--source", "table", "--in-place"],
            "Name the shard, for example `--shard 0/4`",
        ),
        (&["slot", "release", "--yes"], "Name the shard, for example `--shard 0/4`"),
    ] {
        let refused = world.run(arguments.iter().copied()).await;
        assert_eq!(refused.code, Some(3), "{arguments:?}: {}", refused.text);
        assert!(refused.text.contains(told), "{arguments:?}: {}", refused.text);
    }
    for arguments in
        [&["init", "--shards", "3"][..], &["run", "--shard", "4/4"], &["init", "--shard", "0/4"]]
    {
        let refused = world.run(arguments.iter().copied()).await;
        assert_eq!(refused.code, Some(2), "{arguments:?}: {}", refused.text);
    }
    world.succeed(["dispatch", "list", "--shard", "3/4"]).await;
}

#[tokio::test]
async fn a_backfill_in_place_of_a_shard_has_the_rows_of_that_shard_alone() {
    let Some(world) = divided(2).await else { return };
    Workload::of_rows(60).insert(world.client()).await.expect("rows");
    let mut told = 0;
    for shard in ["0/2", "1/2"] {
        let dry = world
            .succeed([
                "replay",
                "start",
                "--yes",
                "--source",
                "table",
                "--in-place",
                "--dry-run",
                "--shard",
                shard,
            ])
            .await;
        let rows = dry.split("would publish ").nth(1).and_then(|it| it.split(' ').next());
        told += rows.and_then(|rows| rows.parse::<u32>().ok()).expect("a number of rows");
    }
    assert_eq!(told, 60, "each row is of one shard");
    let whole = world.succeed(["replay", "start", "--yes", "--source", "table", "--dry-run"]).await;
    assert!(whole.contains("would publish 60 row(s)"), "to a topic it has all of them: {whole}");
}

#[tokio::test]
async fn check_covers_all_shards_and_finds_a_changed_filter() {
    let Some(world) = divided(2).await else { return };
    let fine = world.run(["check", "-v"]).await;
    for index in 0..2 {
        let told = format!("shard {index}/2");
        assert!(fine.text.contains(&told), "{}", fine.text);
    }
    world
        .execute(&format!(
            "ALTER PUBLICATION {}_1_of_2 SET TABLE app_outbox WHERE ((hashtext(aggregateid) & 1) = 0)",
            world.name()
        ))
        .await;
    for arguments in [&["check"][..], &["check", "--shard", "0/2"]] {
        let found = world.run(arguments.iter().copied()).await;
        assert_eq!(found.code, Some(3), "{}", found.text);
        assert!(found.text.contains("rows would be on no shard"), "{}", found.text);
    }
    // Only the shard with the changed filter refuses to stream.
    assert_eq!(world.run(["run", "--until-caught-up", "--shard", "1/2"]).await.code, Some(3));
    world.succeed(["run", "--until-caught-up", "--shard", "0/2"]).await;
    // `check` also finds a missing slot of another shard.
    world.execute(&format!("SELECT pg_drop_replication_slot('{}_1_of_2')", world.name())).await;
    let found = world.run(["check", "--shard", "0/2"]).await;
    assert!(found.text.contains(&format!("slot {}_1_of_2", world.name())), "{}", found.text);
}

#[tokio::test]
async fn status_shows_all_shards_and_the_worst_summary() {
    let Some(world) = divided(2).await else { return };
    let running = world.start_relay(["--shard", "0/2"]).await;
    let text = world.succeed(["status"]).await;
    assert!(text.starts_with("shard 1/2: nothing streams"), "{text}");
    assert!(text.contains("\n  0/2    streaming"), "{text}");
    let json: Value =
        serde_json::from_str(&world.succeed(["status", "--output", "json"]).await).unwrap();
    let shards = json["shards"].as_array().expect("shards");
    assert_eq!(shards.len(), 2);
    assert_eq!((&shards[0]["shard"], &shards[0]["active"]), (&"0/2".into(), &true.into()));
    let one = world.succeed(["status", "--shard", "0/2", "--output", "json"]).await;
    let one: Value = serde_json::from_str(&one).unwrap();
    assert_eq!((&one["shard"], one.get("shards")), (&"0/2".into(), None));
    // A replay that reads the whole outbox is shown, although it belongs to no shard.
    world
        .execute(&format!(
            "INSERT INTO app_outbox_replay
                    (id, slot, system_identifier, source, snapshot, destination, to_topic, settled_lsn)
             VALUES ('5f3a9c01', '{}', '1', 'table', '1:1:', 'topic', 'again', '0/0')",
            world.name()
        ))
        .await;
    let line = "replay 5f3a9c01 to again, no process runs it: walrelay replay resume 5f3a9c01";
    let left = world.succeed(["status"]).await;
    assert!(left.contains(line), "{left}");
    let second = world.start_relay(["--shard", "1/2"]).await;
    let all = world.succeed(["status"]).await;
    let headline =
        "all 2 shards are streaming, nothing parked; replay 5f3a9c01 to again is not finished";
    assert!(all.starts_with(headline), "{all}");
    drop(second);
    let metrics = running.wait_for_http(DEADLINE, "/metrics", 200).await;
    let info = format!("walrelay_info{{slot=\"{}_0_of_2\",shard=\"0/2\"}} 1", world.name());
    assert!(metrics.contains(&info), "{metrics}");
    drop(running);
}

#[tokio::test]
async fn nothing_is_pruned_before_every_shard_has_settled_it() {
    let Some(world) = divided(2).await else { return };
    Workload { aggregates_count: 20, ..Workload::of_rows(100) }
        .insert(world.client())
        .await
        .unwrap();
    world.succeed(["run", "--until-caught-up", "--shard", "0/2"]).await;
    // The other shard never ran: its record says that it has settled nothing.
    let early = world.succeed(["prune", "--yes", "--older-than", "1s"]).await;
    assert!(early.contains("0 row(s) deleted"), "{early}");
    world.succeed(["run", "--until-caught-up", "--shard", "1/2"]).await;
    world
        .execute("UPDATE app_outbox_relay SET settled_xid = '3' WHERE slot LIKE '%\\_1\\_of\\_2'")
        .await;
    let none = world.succeed(["prune", "--yes", "--older-than", "1s"]).await;
    assert!(none.contains("0 row(s) deleted"), "{none}");
    assert_eq!(world.number("SELECT count(*) FROM app_outbox").await, 100);
}

#[tokio::test]
async fn a_lost_shard_is_recovered_with_its_own_rows_alone() {
    let Some(world) = divided(2).await else { return };
    assert_caught_up(&world, 2).await;
    let workload = Workload { aggregates_count: 20, ..Workload::of_rows(200) };
    workload.insert(world.client()).await.expect("rows");
    world.execute(&format!("SELECT pg_drop_replication_slot('{}_0_of_2')", world.name())).await;
    let lost = world.run(["status"]).await;
    assert_eq!(lost.code, Some(5), "{}", lost.text);
    assert!(lost.text.contains("walrelay slot recover --shard 0/2"), "{}", lost.text);
    for command in [["run", "--until-caught-up"], ["check", "--http=off"]] {
        let stopped = world.run(command.into_iter().chain(["--shard", "0/2"])).await;
        assert_ne!(stopped.code, Some(0), "{}", stopped.text);
        let fix = "walrelay slot recover --shard 0/2";
        assert!(stopped.text.contains(fix), "{}", stopped.text);
    }
    let other = world.succeed(["status", "--shard", "1/2"]).await;
    assert!(other.contains("walrelay run --shard 1/2"), "{other}");
    world.succeed(["run", "--until-caught-up", "--shard", "1/2"]).await;
    world.succeed(["slot", "recover", "--yes", "--shard", "0/2"]).await;
    world.succeed(["run", "--until-caught-up", "--shard", "0/2"]).await;
    let verdict = world.check(&world.committed().await);
    assert_once_each(&verdict);
    let released = world.succeed(["slot", "release", "--yes", "--shard", "0/2"]).await;
    assert!(released.contains("then: walrelay slot recover --shard 0/2"), "{released}");
}
