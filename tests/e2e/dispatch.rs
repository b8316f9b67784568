//! Rows that can never be published, and the operator's commands on them while the relay runs.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;
use walrelay_testkit::checker::Committed;
use walrelay_testkit::outbox::Workload;
use walrelay_testkit::relay::Relay;
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase, topic};

/// The time in which an operator's command takes effect.
const EFFECT_DEADLINE: Duration = Duration::from_secs(4);

const MEBIBYTE: u64 = 1 << 20;

/// Starts a relay and inserts one row that Pub/Sub always refuses. Returns the row's id.
async fn with_poison(world: &InboxDatabase, options: &[&str], rows_count: u32) -> (Relay, String) {
    let id = "00000000-0000-4000-8000-00000000dead".to_owned();
    world.pubsub.fault(&format!("event_id={id},reject=INVALID_ARGUMENT"));
    let relay = world.start_relay(options.iter().copied()).await;
    let half = rows_count / 2;
    let first = Workload::of_rows(half).insert(world.client()).await;
    first.expect("rows are inserted");
    world
        .execute(&format!(
            "INSERT INTO app_outbox (id, aggregatetype, aggregateid, event_type, version, payload)
             VALUES ('{id}', 'video', 'v-0', 'test.poison', {half}, '{{\"bad\": true, \"total\": 123456789012345678901234567890}}')"
        ))
        .await;
    let rest = Workload { first_number: half + 1, ..Workload::of_rows(rows_count - half) };
    rest.insert(world.client()).await.expect("rows are inserted");
    (relay, id)
}

#[tokio::test]
async fn one_poison_row_among_a_thousand_is_dead_alone_and_a_retry_publishes_it() {
    let Some(world) = InboxDatabase::create().await else { return };
    let (_relay, id) = with_poison(&world, &[], 1_000).await;

    world.pubsub.wait_stored(DEADLINE, 1_000).await;
    world.wait_dispatch(DEADLINE, "dead", 1).await;
    world.wait_confirmed(DEADLINE).await;
    world.wait_lag_below(DEADLINE, MEBIBYTE).await;
    let committed = world.committed().await;
    let verdict = world.check(&committed);
    assert_eq!(verdict.lost, std::slice::from_ref(&id), "{verdict}");
    assert_eq!(world.number("SELECT count(*) FROM app_outbox_dispatch").await, 1);
    let code = "SELECT count(*) FROM app_outbox_dispatch WHERE error_code = 'INVALID_ARGUMENT'";
    assert_eq!(world.number(code).await, 1);

    world.pubsub.heal();
    world.succeed(["dispatch", "retry", &id]).await;
    world.pubsub.wait_stored(EFFECT_DEADLINE, 1_001).await;
    world.wait_dispatch(EFFECT_DEADLINE, "published", 1).await;
    let ids: BTreeSet<String> =
        world.pubsub.stored().into_iter().map(|message| message.event_id).collect();
    assert_eq!(ids.len(), 1_001);
}

#[tokio::test]
async fn a_retried_row_whose_topic_can_never_exist_is_dead_again_at_once() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.succeed(["emit", "bad type", "b-1", "Placed", "{}"]).await;
    let _relay = world.start_relay([]).await;
    world.wait_dispatch(DEADLINE, "dead", 1).await;
    let died = "SELECT max(updated_at)::text FROM app_outbox_dispatch
                 WHERE status = 'dead' AND error_code = 'UNROUTABLE'";
    let last = async || {
        world.client().query_one(died, &[]).await.expect("a row").get::<_, Option<String>>(0)
    };
    let before = last().await;
    world.succeed(["dispatch", "retry", "--all-dead", "--yes"]).await;
    wait_until(EFFECT_DEADLINE, "the row to be dead again", async || {
        last().await.filter(|at| Some(at) != before.as_ref())
    })
    .await;
}

#[tokio::test]
async fn an_operator_lists_shows_edits_and_discards_while_the_relay_runs() {
    let Some(world) = InboxDatabase::create().await else { return };
    let (_relay, id) = with_poison(&world, &[], 40).await;
    world.wait_dispatch(DEADLINE, "dead", 1).await;

    let list = json(&world, &["dispatch", "list", "--status", "dead", "--output", "json"]).await;
    assert_eq!(list.as_array().map(Vec::len), Some(1), "{list}");
    assert_eq!(list[0]["event_id"], id.as_str());
    assert_eq!(list[0]["ordering_key"], "v-0");
    assert_eq!(list[0]["topic"], topic("video.events"));
    for (filter, count) in [("v-0", 1), ("v-1", 0)] {
        let of_key = json(&world, &["dispatch", "list", "--key", filter, "--output", "json"]).await;
        assert_eq!(of_key.as_array().map(Vec::len), Some(count), "{of_key}");
    }
    let event_type = list[0]["event_type"].as_str().expect("it has a type");
    for (filter, count) in [(event_type, 1), ("other", 0)] {
        let arguments = ["dispatch", "list", "--event-type", filter, "--output", "json"];
        let of_type = json(&world, &arguments).await;
        assert_eq!(of_type.as_array().map(Vec::len), Some(count), "{of_type}");
    }
    let old = json(&world, &["dispatch", "list", "--older-than", "1h", "--output", "json"]).await;
    assert_eq!(old, Value::Array(Vec::new()));
    let table = world.run(["dispatch", "list", "--topic", "video.events"]).await;
    assert!(table.text.contains(&id) && table.text.contains("dead"), "{}", table.text);

    let shown = json(&world, &["dispatch", "show", &id, "--output", "json"]).await;
    assert_eq!(shown["message"]["data"]["bad"], true);
    // A person may edit the payload as it is shown, so each number is shown with all digits.
    for format in ["json", "text"] {
        let text = world.succeed(["dispatch", "show", &id, "--output", format]).await;
        assert!(text.contains("123456789012345678901234567890"), "{text}");
    }
    assert_eq!(shown["message"]["attributes"]["event_type"], "test.poison");

    // The injected fault matches an attribute, and the edit changes this attribute.
    world.pubsub.heal();
    world.pubsub.fault("event_type=test.poison,reject=INVALID_ARGUMENT");
    let file = File::of(&world, "json");
    file.write(r#"{"event_id": "another", "event_type": "test.mended"}"#);
    let payload = File::of(&world, "payload");
    payload.write(r#"{"bad": false}"#);
    let edit =
        ["dispatch", "edit", &id, "--attributes-file", &file.0, "--payload-file", &payload.0];
    let another = world.run(edit).await;
    assert_eq!(another.code, Some(2), "{}", another.text);
    assert!(another.text.contains("the attribute event_id says which event"), "{}", another.text);
    file.write(r#"{"event_type": "test.mended", "tenant": "a"}"#);
    let edited = world.succeed(edit).await;
    assert!(edited.ends_with("writes: event_type"), "{edited}");
    world.wait_dispatch(EFFECT_DEADLINE, "published", 1).await;
    let mended = world.pubsub.stored().into_iter().find(|message| message.event_id == id);
    assert_eq!(mended.map(|message| message.data), Some(br#"{"bad": false}"#.to_vec()));
    let after = json(&world, &["dispatch", "show", &id, "--output", "json"]).await;
    let (before, after) = (&shown["message"]["attributes"], &after["message"]["attributes"]);
    for kept in ["event_id", "commit_lsn", "tx_index", "version", "source", "occurred_at"] {
        assert_eq!(after[kept], before[kept], "{kept}");
        assert!(!after[kept].is_null(), "{kept}");
    }
    assert_eq!(after["tenant"], "a");

    let again = world.run(["dispatch", "discard", "--yes", &id, "--reason", "too late"]).await;
    assert_eq!(again.code, Some(2), "a published row cannot be discarded: {}", again.text);
    let unknown = world.run(["dispatch", "show", "no-such-id"]).await;
    assert_eq!(unknown.code, Some(2), "{}", unknown.text);
    assert!(unknown.text.contains("no-such-id"), "{}", unknown.text);
}

#[tokio::test]
async fn a_discarded_row_is_never_published_and_keeps_its_reason() {
    let Some(world) = InboxDatabase::create().await else { return };
    let (_relay, id) = with_poison(&world, &[], 40).await;
    world.wait_dispatch(DEADLINE, "dead", 1).await;

    world.succeed(["dispatch", "discard", "--yes", &id, "--reason", "a test order"]).await;
    world.pubsub.heal();

    let shown = json(&world, &["dispatch", "show", &id, "--output", "json"]).await;
    assert_eq!(shown["status"], "discarded");
    assert!(shown.to_string().contains("a test order"), "{shown}");
    world.succeed(["dispatch", "retry", "--yes", "--all-dead"]).await;
    let more = Workload { first_number: 100, ..Workload::of_rows(30) };
    more.insert(world.client()).await.unwrap();
    world.wait_confirmed(DEADLINE).await;
    assert!(world.pubsub.stored().iter().all(|message| message.event_id != id));
}

#[tokio::test]
async fn a_dry_run_of_a_retry_counts_the_rows_that_the_retry_makes_due() {
    let Some(world) = InboxDatabase::create().await else { return };
    let (_relay, _) = with_poison(&world, &[], 40).await;
    world.wait_dispatch(DEADLINE, "dead", 1).await;
    world
        .execute(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload, headers)
             VALUES ('video', 'v-9', 'test.made', 1, '{}', '[1]')",
        )
        .await;
    world.wait_dispatch(DEADLINE, "dead", 2).await;
    let would = world.succeed(["dispatch", "retry", "--all-dead", "--dry-run"]).await;
    assert!(would.contains("retry 1 row(s), and leave 1 row(s)"), "{would}");
    let retry = ["dispatch", "retry", "--all-dead", "-o", "json"];
    let would_as_json = json(&world, &[&retry[..], &["--dry-run"]].concat()).await;
    let text = would_as_json["would"].as_str().expect("a text");
    assert!(would.contains(&format!("would {text}")), "{would_as_json}");
    let done = json(&world, &[&retry[..], &["--yes"]].concat()).await;
    assert_eq!((&done["result"], &done["events"]), (&"retried".into(), &1.into()), "{done}");
    assert_eq!(done["need_edit"], 1, "{done}");
}

/// Checks that exactly the rows of the dead row's key from that row on are not published, and wait
/// in dispatch state. Returns the number of rows behind the dead row.
async fn assert_held_behind(world: &InboxDatabase, (committed, id): (&[Committed], &str)) -> i64 {
    let place = committed.iter().position(|row| row.event_id == id).expect("the dead row");
    let behind: BTreeSet<&str> = committed[place..]
        .iter()
        .filter(|row| row.key == "v-0")
        .map(|row| row.event_id.as_str())
        .collect();
    let verdict = world.check(committed);
    let lost: BTreeSet<&str> = verdict.lost.iter().map(String::as_str).collect();
    assert_eq!(lost, behind, "{verdict}");
    let expected = i64::try_from(behind.len() - 1).expect("a number");
    world.wait_dispatch(DEADLINE, "retrying", expected).await;
    expected
}

#[tokio::test]
async fn rows_behind_a_dead_row_are_not_published_by_commands_that_drain_the_slot() {
    for command in [&["slot", "release", "--yes"][..], &["reshard", "--shards", "2", "--yes"]] {
        let Some(world) = InboxDatabase::create().await else { return };
        let (_relay, id) = with_poison(&world, &["--on-dead", "hold"], 60).await;
        world.wait_dispatch(DEADLINE, "dead", 1).await;
        world.wait_confirmed(DEADLINE).await;
        // The command has the default policy, and only a relay decides about these rows.
        world.succeed(command.iter().copied()).await;
        assert_held_behind(&world, (&world.committed().await, &id)).await;
    }
}

#[tokio::test]
async fn with_on_dead_hold_a_key_waits_behind_its_dead_row_and_goes_on_in_order() {
    let Some(world) = InboxDatabase::create().await else { return };
    let (_relay, id) = with_poison(&world, &["--on-dead", "hold"], 120).await;
    world.wait_dispatch(DEADLINE, "dead", 1).await;
    world.wait_confirmed(DEADLINE).await;

    // All later rows of the key are in dispatch state, and the other keys are complete.
    let committed = world.committed().await;
    let expected = assert_held_behind(&world, (&committed, &id)).await;

    world.pubsub.heal();
    world.succeed(["dispatch", "retry", "--yes", "--all-dead"]).await;
    world.wait_dispatch(DEADLINE, "published", expected + 1).await;
    world.check(&committed).assert_exactly_once();
}

#[tokio::test]
async fn a_message_over_ten_megabytes_is_one_dead_row_and_the_others_flow() {
    let Some(world) = InboxDatabase::create().await else { return };
    let _relay = world.start_relay([]).await;
    Workload::of_rows(20).insert(world.client()).await.unwrap();
    world
        .execute(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             VALUES ('video', 'v-0', 'test.large', 20, jsonb_build_object('x', repeat('x', 10000000)))",
        )
        .await;
    let rest = Workload { first_number: 21, ..Workload::of_rows(20) };
    rest.insert(world.client()).await.unwrap();

    world.wait_dispatch(DEADLINE, "dead", 1).await;
    world.pubsub.wait_stored(DEADLINE, 40).await;
    world.wait_confirmed(DEADLINE).await;
    let verdict = world.check(&world.committed().await);
    assert_eq!((verdict.lost.len(), verdict.reordered.len()), (1, 0), "{verdict}");
    let list = json(&world, &["dispatch", "list", "--output", "json"]).await;
    let error = list[0]["last_error"].to_string();
    assert!(error.contains("10000000") || error.contains("10,000,000"), "{list}");
}

/// A temporary file of one test.
struct File(String);

impl File {
    fn of(world: &InboxDatabase, ending: &str) -> Self {
        let path = std::env::temp_dir().join(format!("{}.{ending}", world.name()));
        Self(path.display().to_string())
    }

    fn write(&self, text: &str) {
        std::fs::write(&self.0, text).expect("a file is written");
    }
}

impl Drop for File {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}

async fn json(world: &InboxDatabase, arguments: &[&str]) -> Value {
    let done = world.succeed(arguments.iter().copied()).await;
    serde_json::from_str(&done).unwrap_or_else(|error| panic!("{error}: {done}"))
}

#[tokio::test]
async fn dead_and_parked_rows_are_shown_in_status_and_metrics() {
    let Some(world) = InboxDatabase::create().await else { return };
    let (relay, _) = with_poison(&world, &[], 20).await;
    world.wait_dispatch(DEADLINE, "dead", 1).await;

    let status = json(&world, &["status", "--output", "json"]).await;
    assert_eq!(status["dispatch"]["dead"], 1, "{status}");
    let is_counted = |metrics: &str| {
        let counted = metrics.lines().any(|line| {
            line.starts_with("walrelay_dead_total{") && line.trim_end().ends_with(" 1")
        });
        let rows = "walrelay_dispatch_rows{status=\"dead\"} 1";
        counted && metrics.lines().any(|line| line.starts_with(rows))
    };
    relay.wait_for_metrics(DEADLINE, is_counted).await;
}

/// Creates `count` dead rows with one cause, and one row with a scheduled retry.
async fn with_many_dead(count: u32) -> Option<InboxDatabase> {
    let world = InboxDatabase::create().await?;
    world
        .execute(&format!(
            "INSERT INTO app_outbox_dispatch
                    (slot, event_id, commit_lsn, tx_index, topic, ordering_key, message, status, error_code, last_error)
             SELECT '{slot}', 'e-' || n, '0/16'::pg_lsn + n, n, '{topic}', repeat('k', 2000), '\\x0a0178',
                    'dead', 'INVALID_ARGUMENT', repeat('too bad ', 200)
               FROM generate_series(1, {count}) AS n;
             INSERT INTO app_outbox_dispatch
                    (slot, event_id, commit_lsn, tx_index, topic, ordering_key, message, status, next_attempt_at, error_code)
             VALUES ('{slot}', 'waits', '0/15', 0, '{topic}', 'w', '\\x0a0178', 'retrying', now(), 'UNAVAILABLE'),
                    ('{slot}', 'refused', '0/14', 0, '{topic}', 'r', '\\x0a0178', 'retrying', now(), 'NOT_FOUND')",
            slot = world.name(),
            topic = topic("video.events"),
        ))
        .await;
    Some(world)
}

#[tokio::test]
async fn many_rows_are_listed_page_by_page_and_only_those_that_need_a_person() {
    let Some(world) = with_many_dead(1_100).await else { return };
    world
        .execute(&format!(
            "INSERT INTO app_outbox_dispatch
                    (slot, event_id, commit_lsn, tx_index, topic, ordering_key, message, status)
             SELECT '{}', 'behind-' || n, '0/15', n, '{}', 'w', '\\x0a0178', 'retrying' FROM generate_series(1, 7) AS n",
            world.name(),
            topic("video.events"),
        ))
        .await;
    let page = world.succeed(["dispatch", "list"]).await;
    assert!(page.contains("100 of 1101 row(s); the next: --after"), "{page}");
    assert!(page.contains("\n1 row(s) are tried again by themselves"), "{page}");
    assert!(page.contains("7 row(s) are queued behind other rows of their keys"), "{page}");
    assert!(page.contains("refused") && !page.contains("waits"), "{page}");
    assert!(page.lines().all(|line| line.chars().count() < 300), "a key breaks the table");
    let after = page.split("--after ").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
    let next = world.succeed(["dispatch", "list", "--after", after, "--limit", "1"]).await;
    assert!(next.contains(" e-100 "), "{after}: {next}");

    let all = json(&world, &["dispatch", "list", "--all", "--output", "json"]).await;
    assert_eq!(all.as_array().map(Vec::len), Some(1_101));
    assert_eq!(all[1]["ordering_key"].as_str().map(str::len), Some(2_000), "JSON is not cut");
    let any =
        json(&world, &["dispatch", "list", "--status", "all", "--all", "--output", "json"]).await;
    assert_eq!(any.as_array().map(Vec::len), Some(1_109));
    let refused =
        json(&world, &["dispatch", "list", "--error", "NOT_FOUND", "--output", "json"]).await;
    assert_eq!(refused[0]["event_id"], "refused");
}

#[tokio::test]
async fn many_rows_are_retried_and_given_up_by_filter_and_never_without_consent() {
    let Some(world) = with_many_dead(1_200).await else { return };
    let unasked = world.run(["dispatch", "discard", "--yes", "--reason", "a load test"]).await;
    assert_eq!(unasked.code, Some(2), "without ids and filters: {}", unasked.text);
    let filtered =
        ["dispatch", "discard", "--error", "INVALID_ARGUMENT", "--reason", "a load test"];
    let refused = world.run(filtered).await;
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    assert!(
        refused.text.contains("discard 1200 row(s)") && refused.text.contains("--yes"),
        "{}",
        refused.text
    );
    assert_eq!(world.dispatch_count("dead").await, 1_200);

    let of_key = ["dispatch", "discard", "--key", "w", "--reason", "a load test", "--yes"];
    let none = world.succeed(of_key).await;
    assert!(none.contains("no dead row matches; 1 row(s) that are retrying do"), "{none}");
    assert!(none.contains("--status retrying takes them"), "{none}");

    let retried = world
        .succeed(["dispatch", "retry", "--yes", "--status", "dead", "--older-than", "0s"])
        .await;
    assert!(retried.contains("1200 row(s) are due now"), "{retried}");
    assert_eq!(world.dispatch_count("retrying").await, 1_202);
    let query = filtered.into_iter().chain(["--status", "retrying", "--yes"]);
    let discarded = world.succeed(query).await;
    assert!(discarded.contains("1200 row(s) are discarded"), "{discarded}");
    assert_eq!(world.dispatch_count("discarded").await, 1_200);
}

#[tokio::test]
async fn a_row_whose_topic_cannot_exist_gets_another_and_is_published_there() {
    let Some(world) = InboxDatabase::create().await else { return };
    let _relay = world.start_relay([]).await;
    world
        .execute(
            "INSERT INTO app_outbox (id, aggregatetype, aggregateid, event_type, version, payload)
             VALUES ('00000000-0000-4000-8000-0000000000aa', 'no topic', 'v-1', 'a', 1, '{}')",
        )
        .await;
    world.wait_dispatch(DEADLINE, "dead", 1).await;
    let id = "00000000-0000-4000-8000-0000000000aa";
    let routed = ["dispatch", "edit", id, "--set-topic", "video.events", "--set-key", "v-9"];
    world.succeed(routed).await;
    world.wait_dispatch(EFFECT_DEADLINE, "published", 1).await;
    let stored = world.pubsub.stored();
    assert_eq!((stored[0].event_id.as_str(), stored[0].key.as_str()), (id, "v-9"));
}

#[tokio::test]
async fn the_manuals_recipe_for_a_key_that_is_too_long_publishes_the_row() {
    let Some(world) = InboxDatabase::create().await else { return };
    let _relay = world.start_relay([]).await;
    let id = "00000000-0000-4000-8000-0000000000ab";
    world
        .execute(&format!(
            "INSERT INTO app_outbox (id, aggregatetype, aggregateid, event_type, version, payload)
             VALUES ('{id}', 'video', repeat('k', 2000), 'a', 1, '{{}}')"
        ))
        .await;
    world.wait_dispatch(DEADLINE, "dead", 1).await;
    let listed = world.succeed(["dispatch", "list"]).await;
    let cause = "  LOCAL_LIMIT: attribute \"aggregate_id\" in bytes is 2000";
    assert!(listed.contains(cause), "{listed}");
    let payload = File::of(&world, "payload");
    payload.write("{}");
    let unmended = world.run(["dispatch", "edit", id, "--payload-file", &payload.0]).await;
    assert_eq!(unmended.code, Some(2), "{}", unmended.text);
    assert!(unmended.text.contains("the ordering key in bytes is 2000"), "{}", unmended.text);
    assert_eq!(world.dispatch_count("dead").await, 1, "it is left as it is");

    let manual = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/how-to/operate/dead-rows.md");
    let manual = std::fs::read_to_string(manual).unwrap();
    let recipe = manual.lines().find(|line| line.starts_with("| give a row a key")).unwrap();
    let (_, recipe) = recipe.split_once("`walrelay ").unwrap();
    let recipe = recipe.split('`').next().unwrap().replace("ID", id);
    let edited = world.succeed(recipe.split(' ')).await;
    assert!(edited.ends_with("writes: aggregate_id"), "{edited}");
    world.wait_dispatch(EFFECT_DEADLINE, "published", 1).await;
    let stored = world.pubsub.stored();
    assert_eq!((stored[0].event_id.as_str(), stored[0].key.as_str()), (id, "A-17"));
}

#[tokio::test]
async fn a_row_whose_headers_cannot_be_read_is_published_with_headers_that_are_given_and_not_without()
 {
    let Some(world) = InboxDatabase::create().await else { return };
    let _relay = world.start_relay([]).await;
    let id = "00000000-0000-4000-8000-0000000000ac";
    world
        .execute(&format!(
            "INSERT INTO app_outbox (id, aggregatetype, aggregateid, event_type, version, payload, headers)
             VALUES ('{id}', 'video', 'v-1', 'a', 1, '{{}}', '[\"tenant\"]')"
        ))
        .await;
    world.wait_dispatch(DEADLINE, "dead", 1).await;
    let refused = world.run(["dispatch", "retry", id]).await;
    assert_eq!(refused.code, Some(2), "{}", refused.text);
    assert!(refused.text.contains("without its headers"), "{}", refused.text);
    let left = world.succeed(["dispatch", "retry", "--yes", "--all-dead"]).await;
    assert!(left.contains("0 row(s) are due now\n1 row(s) are left as they are"), "{left}");
    assert_eq!(world.dispatch_count("dead").await, 1);

    let file = File::of(&world, "json");
    file.write(r#"{"tenant": "a"}"#);
    world.succeed(["dispatch", "edit", id, "--attributes-file", &file.0]).await;
    world.wait_dispatch(EFFECT_DEADLINE, "published", 1).await;
    let shown = json(&world, &["dispatch", "show", id, "--output", "json"]).await;
    assert_eq!(shown["message"]["attributes"]["tenant"], "a");
}

#[tokio::test]
async fn a_run_of_dead_rows_is_a_line_and_a_number() {
    let Some(world) = InboxDatabase::create().await else { return };
    let mut relay = world.start_relay([]).await;
    world
        .execute(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             SELECT 'no topic', 'v-' || n, 'a', n, '{}' FROM generate_series(1, 3000) AS n",
        )
        .await;
    world.wait_dispatch(DEADLINE, "dead", 3_000).await;
    assert_eq!(relay.terminate(DEADLINE).await, Some(0));
    let lines = relay.lines();
    let about: Vec<&String> = lines.iter().filter(|line| line.contains("dead")).collect();
    assert_eq!(about.len(), 2, "{about:#?}");
    assert!(about[0].contains("row is dead"), "{about:#?}");
    assert!(about[1].contains("\"rows\":2999"), "{about:#?}");
}

#[tokio::test]
async fn a_dry_run_with_named_rows_refuses_what_the_real_run_refuses_and_a_refusal_changes_no_row()
{
    let Some(world) = InboxDatabase::create().await else { return };
    let (_relay, id) = with_poison(&world, &[], 40).await;
    world.wait_dispatch(DEADLINE, "dead", 1).await;
    let discard = ["dispatch", "discard", "--reason", "a test order"];
    for command in [vec!["dispatch", "retry", "nosuch"], [&discard[..], &[&id, "nosuch"]].concat()]
    {
        for mode in ["--dry-run", "--yes"] {
            let refused = world.run(command.iter().copied().chain([mode])).await;
            assert_eq!(refused.code, Some(2), "{command:?} {mode}: {}", refused.text);
            assert!(refused.text.contains("nosuch"), "{command:?} {mode}: {}", refused.text);
        }
    }
    assert_eq!(world.dispatch_count("dead").await, 1, "a part of the command took effect");
    let twice = [&discard[..], &[&id, &id, "--yes"]].concat();
    let done = world.succeed(twice).await;
    assert!(done.contains(&format!("{id} is discarded")), "{done}");
    let again = world.run([&discard[..], &[&id, "--dry-run"]].concat()).await;
    assert_eq!(again.code, Some(2), "{}", again.text);
}
