//! `audit` and `trace` prove that every published event is in the inbox.

use serde_json::Value;
use walrelay_emulator::{Ordering, SubscriptionOptions};
use walrelay_testkit::relay::Relay;
use walrelay_testkit::wait_until;
use walrelay_tests::{CONSUMER, DEADLINE, InboxDatabase, topic};

/// Creates `events` events that are published, recorded as settled, and applied.
async fn world(events: u32) -> Option<InboxDatabase> {
    let world = InboxDatabase::create().await?;
    world.set_up_consumer().await;
    world.insert_events(20, events).await;
    let mut relay = world.start_relay([]).await;
    world.consume_all().await;
    // The settled horizon is a transaction id, so it waits for other open transactions on this
    // server.
    wait_until(DEADLINE, "everything to be settled on record", async || {
        let report = audited(&world, &[]).await;
        (report["rows"] == events).then_some(())
    })
    .await;
    assert_eq!(relay.terminate(DEADLINE).await, Some(0));
    Some(world)
}

/// Returns the audit's report on the only consumer, for any exit code.
async fn audited(world: &InboxDatabase, options: &[&str]) -> Value {
    let audit = match options.contains(&"--grace") {
        true => &["audit", "--output", "json"][..],
        false => &["audit", "--grace", "0s", "--output", "json"],
    };
    let done = world.run(audit.iter().chain(options).copied()).await;
    // The report starts and ends with a line of a single brace. The error is one line of JSON, and
    // may be read between two lines of the report.
    let lines = done.text.lines().filter(|line| !line.starts_with("{\""));
    let report: Vec<&str> = lines.skip_while(|line| *line != "{").collect();
    let end = report.iter().position(|line| *line == "}");
    let end = end.unwrap_or_else(|| panic!("no report: {}", done.text));
    let report: Value = serde_json::from_str(&report[..=end].join("\n")).expect("a report");
    let mut consumer = report["consumers"][0].clone();
    consumer["exit"] = done.code.into();
    consumer["dispatch"] = report["dispatch"].clone();
    consumer
}

#[tokio::test]
async fn an_event_deleted_from_the_inbox_is_named_and_nothing_else() {
    let Some(world) = world(500).await else { return };
    let whole = audited(&world, &[]).await;
    assert_eq!((&whole["missing"], &whole["exit"]), (&0.into(), &0.into()), "{whole}");
    assert_eq!(whole["inbox"]["done"], 500, "{whole}");

    let delete = "DELETE FROM app_inbox WHERE ctid IN (SELECT ctid FROM app_inbox LIMIT 1) RETURNING event_id";
    let id: String = world.client().query_one(delete, &[]).await.expect("one is deleted").get(0);
    // The same result with the consumer's database named explicitly, as for a separate database.
    let place = format!("{CONSUMER}={}", world.url());
    for options in [vec![], vec!["--inbox", &place], vec!["--aggregate-type", "video"]] {
        let holed = audited(&world, &options).await;
        assert_eq!((&holed["missing"], &holed["exit"]), (&1.into(), &1.into()), "{holed}");
        assert_eq!(holed["missing_events"][0]["event_id"], *id, "{holed}");
    }
    let other = audited(&world, &["--aggregate-type", "other"]).await;
    // Nothing was compared, so nothing is proved.
    assert_eq!((&other["rows"], &other["exit"]), (&0.into(), &2.into()), "{other}");
    let text = world.run(["audit", "--grace", "0s", "--aggregate-type", "other"]).await.text;
    assert!(text.contains("so nothing was compared"), "{text}");
    assert!(text.contains("audit-compared-nothing") && !text.contains("all are there"), "{text}");

    let lacking = world.run(["trace", &id]).await;
    assert_eq!(lacking.code, Some(1), "{}", lacking.text);
    let traced = lacking.text;
    assert!(traced.contains("settled            true"), "{traced}");
    assert!(traced.contains("inbox of ledger\n  not there"), "{traced}");
    assert!(traced.contains("is settled, and not in the inbox of ledger"), "{traced}");
    assert!(!traced.contains("payload"), "{traced}");
    let prune = "UPDATE app_inbox_consumer SET pruned_before = now()";
    world.execute(prune).await;
    world.succeed(["trace", &id]).await;
    let by_start = world.succeed(["trace", &id[..8]]).await;
    assert!(by_start.contains(&id), "{by_start}");
    let nowhere = world.run(["trace", "00000000-0000-4000-8000-00000000none"]).await;
    assert_eq!(nowhere.code, Some(1), "{}", nowhere.text);
    assert!(nowhere.text.contains("is in no outbox"), "{}", nowhere.text);
}

#[tokio::test]
async fn an_event_that_was_discarded_by_its_position_is_missing_and_one_that_a_person_gave_up_is_not()
 {
    let Some(world) = world(40).await else { return };
    let discard = "UPDATE app_inbox SET status = 'discarded', error_code = $1
                    WHERE ctid IN (SELECT ctid FROM app_inbox WHERE status = 'done' LIMIT 1) RETURNING event_id";
    let given_up = world.client().query_one(discard, &[&None::<&str>]).await;
    given_up.expect("one is discarded");
    let whole = audited(&world, &[]).await;
    assert_eq!((&whole["missing"], &whole["exit"]), (&0.into(), &0.into()), "{whole}");
    assert_eq!(whole["inbox"]["discarded"], 1, "{whole}");

    let skipped = world.client().query_one(discard, &[&Some("BEHIND_POSITION")]).await;
    let skipped: String = skipped.expect("one is discarded").get(0);
    let holed = audited(&world, &[]).await;
    assert_eq!((&holed["missing"], &holed["exit"]), (&1.into(), &1.into()), "{holed}");
    assert_eq!(holed["missing_events"][0]["event_id"], *skipped, "{holed}");
    assert_eq!(holed["inbox"], serde_json::json!({"discarded": 1, "done": 38}), "{holed}");
}

#[tokio::test]
async fn of_several_consumers_the_one_that_lacks_events_is_named_and_why_it_may() {
    let Some(world) = world(40).await else { return };
    let young = "projects/test/subscriptions/young";
    world.execute(&format!("INSERT INTO app_inbox_consumer VALUES ('young', '{young}')")).await;
    world
        .execute(
            "ALTER TABLE app_outbox DISABLE TRIGGER USER;
             UPDATE app_outbox SET occurred_at = occurred_at - interval '1 hour' WHERE version <= 30;
             UPDATE app_inbox SET occurred_at = o.occurred_at FROM app_outbox AS o WHERE o.id::text = event_id;
             INSERT INTO app_inbox (consumer, generation, event_id, ordering_key, occurred_at, status)
             SELECT 'young', 1, event_id, ordering_key, occurred_at, 'done' FROM app_inbox WHERE version > 30",
        )
        .await;
    // An updated row has a new transaction id, so it is settled only with the updating transaction.
    let mut relay = world.start_relay([]).await;
    wait_until(DEADLINE, "everything to be settled on record", async || {
        (audited(&world, &[]).await["rows"] == 40).then_some(())
    })
    .await;
    assert_eq!(relay.terminate(DEADLINE).await, Some(0));
    // A consumer should have the events since it began.
    let since_it_began = world.succeed(["audit", "--grace", "0s"]).await;
    assert!(since_it_began.contains("young: 10 settled event(s) since "), "{since_it_began}");
    let told = world.run(["audit", "--grace", "0s", "--from-time", "1d"]).await;
    assert_eq!(told.code, Some(1), "{}", told.text);
    assert!(told.text.contains("young lacks 30"), "{}", told.text);
    assert!(told.text.contains("--aggregate-type"), "{}", told.text);
    assert!(told.text.contains("ledger: 40 settled event(s) since "), "{}", told.text);
    assert!(told.text.contains("before the first event that it has"), "{}", told.text);
}

const AGAINST: [&str; 2] = ["--subscription", "audit"];

/// Creates 300 events that are published and recorded as settled, a subscription that holds them,
/// and the relay.
async fn world_with_a_subscription() -> Option<(InboxDatabase, Relay)> {
    let world = InboxDatabase::create().await?;
    let name = "projects/test/subscriptions/audit";
    let ordered =
        SubscriptionOptions { ordering: Ordering::PerKey, ..SubscriptionOptions::default() };
    let created =
        world.pubsub.emulator().create_subscription(name, &topic("video.events"), ordered);
    created.expect("a subscription");
    world.insert_events(20, 300).await;
    let relay = world.start_relay([]).await;
    wait_until(DEADLINE, "everything to be settled on record", async || {
        let report = audited(&world, &AGAINST).await;
        (report["rows"] == 300).then_some(())
    })
    .await;
    Some((world, relay))
}

#[tokio::test]
async fn an_audit_of_a_subscription_ends_while_events_are_being_published() {
    let Some((world, mut relay)) = world_with_a_subscription().await else { return };
    let publish = async {
        for published in 301.. {
            world.insert_events(1, 1).await;
            world.pubsub.wait_stored(DEADLINE, published).await;
        }
    };
    let report = tokio::select! {
        report = audited(&world, &AGAINST) => report,
        () = publish => unreachable!("there is always one more event"),
    };
    assert_eq!((&report["missing"], &report["exit"]), (&0.into(), &0.into()), "{report}");
    assert_eq!(report["inbox"]["delivered"], report["rows"], "{report}");
    assert_eq!(relay.terminate(DEADLINE).await, Some(0));
}

#[tokio::test]
async fn a_subscription_of_its_own_proves_it_without_an_inbox_and_keeps_what_it_holds() {
    let Some((world, mut relay)) = world_with_a_subscription().await else { return };
    assert_eq!(relay.terminate(DEADLINE).await, Some(0));
    // The audit acknowledged no message, so a second audit gives the same result.
    let whole = audited(&world, &AGAINST).await;
    assert_eq!((&whole["missing"], &whole["exit"]), (&0.into(), &0.into()), "{whole}");
    assert_eq!(whole["inbox"]["delivered"], 300, "{whole}");

    // Simulates a settled row that was never published, as after a replica skipped it.
    world.execute("ALTER TABLE app_outbox DISABLE TRIGGER USER").await;
    let lost = "UPDATE app_outbox SET id = gen_random_uuid() WHERE version = 7 RETURNING id::text";
    let lost: String = world.client().query_one(lost, &[]).await.expect("one is changed").get(0);
    let mut settling = world.start_relay([]).await;
    wait_until(DEADLINE, "the row to be settled on record", async || {
        let report = audited(&world, &AGAINST).await;
        (report["rows"] == 300 && report["missing_events"][0]["event_id"] == *lost).then_some(())
    })
    .await;
    assert_eq!(settling.terminate(DEADLINE).await, Some(0));
    let nowhere = world.run(["audit", "--subscription", "nowhere"]).await;
    assert_eq!(nowhere.code, Some(4), "{}", nowhere.text);
}

#[tokio::test]
async fn rows_too_young_to_be_audited_are_counted() {
    let Some(world) = world(30).await else { return };
    let report = audited(&world, &["--grace", "1h"]).await;
    assert_eq!((&report["left_out"], &report["rows"]), (&30.into(), &0.into()), "{report}");
    let told = world.run(["audit", "--grace", "1h"]).await;
    assert_eq!(told.code, Some(2), "{}", told.text);
    assert!(told.text.contains("left out: 30 row(s)"), "{}", told.text);
}

#[tokio::test]
async fn the_ledger_shows_the_way_of_each_event() {
    let Some(world) = world(40).await else { return };
    let ledger = "SELECT count(*) FROM app_event_ledger
        WHERE settled AND dispatch_status IS NULL AND consumer = 'ledger' AND inbox_status = 'done'";
    assert_eq!(world.number(ledger).await, 40);
    world.insert_events(1, 1).await;
    let on_its_way =
        "SELECT count(*) FROM app_event_ledger WHERE NOT settled AND inbox_status IS NULL";
    assert_eq!(world.number(on_its_way).await, 1);
}

#[tokio::test]
async fn a_prune_that_finds_nothing_old_leaves_the_inbox_whole_on_record() {
    let Some(world) = world(20).await else { return };
    let prune = ["consumer", "prune", CONSUMER, "--yes", "--older-than", "40d"];
    let pruned =
        "SELECT count(*) FROM app_inbox_consumer WHERE pruned_before < now() - interval '39 days'";
    for (deleted, noted) in [(0, 0), (1, 1), (0, 1)] {
        let told = world.succeed(prune).await;
        assert!(told.contains(&format!("{deleted} row(s) deleted")), "{told}");
        assert_eq!(world.number(pruned).await, noted, "{told}");
        if noted == 0 {
            let old = "UPDATE app_inbox SET received_at = received_at - interval '41 days'
                        WHERE ctid IN (SELECT ctid FROM app_inbox LIMIT 1)";
            world.execute(old).await;
        }
    }
}

#[tokio::test]
async fn pruned_events_are_not_missing() {
    let Some(world) = world(60).await else { return };
    world.execute("DELETE FROM app_inbox").await;
    world.execute("UPDATE app_inbox_consumer SET pruned_before = now()").await;
    let pruned = audited(&world, &[]).await;
    assert_eq!((&pruned["rows"], &pruned["exit"]), (&0.into(), &2.into()), "{pruned}");
    assert_eq!(pruned["missing"], 0, "{pruned}");
    assert!(pruned["since"].is_string(), "{pruned}");
    // `consumer prune` records the time, and never moves that time backwards.
    let prune = ["consumer", "prune", CONSUMER, "--yes", "--older-than", "40d"];
    world.succeed(prune).await;
    let later =
        "SELECT count(*) FROM app_inbox_consumer WHERE pruned_before > now() - interval '1 hour'";
    assert_eq!(world.number(later).await, 1);
}

#[tokio::test]
async fn rows_retained_by_the_relay_are_reported_separately() {
    let Some(world) = world(20).await else { return };
    world
        .execute(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload, headers)
             VALUES ('video', 'poisoned', 'made', 1, '{}', '{\"googbad\": \"x\"}')",
        )
        .await;
    let mut relay = world.start_relay([]).await;
    world.wait_dispatch(DEADLINE, "dead", 1).await;
    assert_eq!(relay.terminate(DEADLINE).await, Some(0));
    let report = audited(&world, &[]).await;
    assert_eq!(
        (&report["missing"], &report["dispatch"]["dead"]),
        (&0.into(), &1.into()),
        "{report}"
    );
    let id = "SELECT event_id FROM app_outbox_dispatch WHERE status = 'dead'";
    let id: String = world.client().query_one(id, &[]).await.expect("one is dead").get(0);
    let traced = world.succeed(["trace", &id, "--output", "json"]).await;
    let traced: Value = serde_json::from_str(&traced).expect("JSON");
    assert_eq!(traced["dispatch"]["status"], "dead", "{traced}");
    assert!(traced["inboxes"][CONSUMER].is_null() && traced["dispatch"]["message"].is_null());
}

#[tokio::test]
async fn figures_are_of_the_time_and_the_aggregates_that_were_asked_for() {
    let Some(world) = world(20).await else { return };
    world
        .execute(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload, headers, occurred_at)
             VALUES ('video', 'poisoned', 'made', 1, '{}', '{\"googbad\": \"x\"}', now() - interval '2 hours'),
                    ('audio', 'poisoned', 'made', 1, '{}', '{\"googbad\": \"x\"}', now());
             INSERT INTO app_inbox (consumer, generation, event_id, ordering_key, occurred_at, status)
             VALUES ('ledger', 1, 'of another outbox', 'k', now(), 'done')",
        )
        .await;
    let mut relay = world.start_relay([]).await;
    world.wait_dispatch(DEADLINE, "dead", 2).await;
    assert_eq!(relay.terminate(DEADLINE).await, Some(0));
    let (hour, video) = (["--from-time", "1h"], ["--aggregate-type", "video"]);
    let both = [hour, video].concat();
    for (options, count_in_dispatch) in [
        (&[][..], serde_json::json!({ "dead": 2 })),
        (&hour, serde_json::json!({ "dead": 1 })),
        (&video, serde_json::json!({ "dead": 1 })),
        (&both, serde_json::json!({})),
    ] {
        let report = audited(&world, options).await;
        assert_eq!(report["dispatch"], count_in_dispatch, "{options:?}: {report}");
        assert_eq!((&report["rows"], &report["left_out"]), (&20.into(), &0.into()), "{report}");
        assert_eq!(report["inbox"], serde_json::json!({ "done": 20 }), "{report}");
    }
}

#[tokio::test]
async fn without_an_inbox_a_trace_shows_the_rest_and_an_audit_proves_nothing() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.insert_events(1, 1).await;
    world.catch_up().await;
    let id = "SELECT id::text FROM app_outbox";
    let id: String = world.client().query_one(id, &[]).await.expect("one row").get(0);
    let traced = world.run(["trace", &id]).await;
    assert_eq!(traced.code, Some(0), "{}", traced.text);
    for part in [
        "written at 20",
        "outbox\n  aggregateid        key-0",
        "dispatch state\n",
        "inbox\n  not searched",
        "--inbox NAME=",
    ] {
        assert!(traced.text.contains(part), "{part:?} is not in {}", traced.text);
    }
    let nowhere = world.run(["trace", "no such event"]).await;
    assert_eq!(nowhere.code, Some(1), "{}", nowhere.text);
    let audit = world.run(["audit"]).await;
    assert_eq!(audit.code, Some(2), "{}", audit.text);
    assert!(
        audit.text.contains("--inbox NAME=") && audit.text.contains("--subscription S"),
        "{}",
        audit.text
    );
}

#[tokio::test]
async fn a_trace_names_the_message_of_an_event_that_was_published_at_the_first_attempt() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.set_up_consumer().await;
    world.insert_events(1, 3).await;
    let mut relay = world.start_relay(["--log-level", "info,walrelay_relay=trace"]).await;
    world.consume_all().await;
    world.wait_applied(3).await;
    let ids = "SELECT event_id, message_id FROM app_inbox ORDER BY version";
    let rows = world.client().query(ids, &[]).await.expect("the inbox");
    let recorded: Vec<(String, String)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let published = world.pubsub.emulator().published(&topic("video.events"));
    let stored: Vec<String> = published.iter().map(|message| message.id().to_string()).collect();
    assert_eq!(recorded.iter().map(|(_, id)| id.clone()).collect::<Vec<_>>(), stored);
    for (event_id, message_id) in &recorded {
        let traced = world.succeed(["trace", event_id, "--output", "json"]).await;
        let traced: Value = serde_json::from_str(&traced).expect("JSON");
        assert!(traced["dispatch"].is_null(), "{traced}");
        assert_eq!(traced["message"]["message_id"], **message_id, "{traced}");
        assert!(traced["message"]["publish_time"].is_string(), "{traced}");
    }
    let text = world.succeed(["trace", &recorded[0].0]).await;
    assert!(text.contains("pub/sub\n  message id"), "{text}");

    assert_eq!(relay.terminate(DEADLINE).await, Some(0));
    let lines = relay.lines();
    let batches: Vec<Value> = lines
        .iter()
        .filter(|line| line.contains("batch stored"))
        .map(|line| serde_json::from_str(line).expect("a JSON log"))
        .collect();
    let logged: u64 = batches.iter().filter_map(|batch| batch["rows"].as_u64()).sum();
    assert_eq!(logged, 3, "{batches:#?}");
    let (first, last) = (batches.first().expect("one"), batches.last().expect("one"));
    assert_eq!(first["first_message_id"], *stored[0], "{first}");
    assert_eq!(last["last_message_id"], *stored[2], "{last}");
    assert_eq!(
        (&first["ordering_keys"], &first["topic"]),
        (&1.into(), &topic("video.events").into())
    );
    assert!(first["first_lsn"].is_string() && first["last_lsn"].is_string(), "{first}");
}

#[tokio::test]
async fn a_trace_of_an_id_that_two_rows_have_shows_one_with_their_number() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.insert_events(1, 1).await;
    world
        .execute(
            "ALTER TABLE app_outbox DROP CONSTRAINT app_outbox_pkey;
             INSERT INTO app_outbox (id, aggregatetype, aggregateid, event_type, version, payload)
             SELECT id, aggregatetype, aggregateid, event_type, version + 1, payload FROM app_outbox",
        )
        .await;
    let id = "SELECT id::text FROM app_outbox LIMIT 1";
    let id: String = world.client().query_one(id, &[]).await.expect("a row").get(0);
    let traced = world.run(["trace", &id]).await;
    assert!(traced.text.contains("rows with this id  2"), "{}", traced.text);
}
