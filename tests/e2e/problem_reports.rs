//! Every report names the cause of a problem: `/readyz`, `status`, `check` and metrics.

use std::time::{Duration, Instant};

use serde_json::Value;
use walrelay_private_postgres::PrivatePostgres;
use walrelay_testkit::outbox::Workload;
use walrelay_testkit::postgres::installation_or_skip;
use walrelay_testkit::wait_until;
use walrelay_tests::{DEADLINE, InboxDatabase};

/// The time until `status` shows the state of `/readyz`: one write of the relay's record, and slack
/// for a busy machine.
const SOON: Duration = Duration::from_secs(8);

async fn status(world: &InboxDatabase) -> Value {
    let text = world.succeed(["status", "--output", "json"]).await;
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Waits until the headline of `status` contains `words`.
async fn wait_headline(world: &InboxDatabase, words: &str) -> Value {
    wait_until(DEADLINE, &format!("{words:?} in the headline"), async || {
        let report = status(world).await;
        report["headline"].as_str().is_some_and(|it| it.contains(words)).then_some(report)
    })
    .await
}

#[tokio::test]
async fn a_dispatch_table_that_cannot_be_written_is_named_with_its_grant_everywhere() {
    let Some(world) = InboxDatabase::create().await else { return };
    let role = format!("{}_relay", world.name());
    let tables = "app_outbox_definition, app_outbox_dispatch, app_outbox_relay, app_outbox_hold,
        app_outbox_relay_time";
    world
        .execute(&format!(
            "CREATE ROLE {role} LOGIN REPLICATION; GRANT USAGE ON SCHEMA public TO {role};
             GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO {role};
             CREATE POLICY walrelay ON app_outbox_dispatch TO {role} USING (true) WITH CHECK (true);
             CREATE POLICY walrelay ON app_outbox_relay TO {role} USING (true) WITH CHECK (true);
             CREATE POLICY walrelay ON app_outbox_hold TO {role} USING (true) WITH CHECK (true);
             CREATE POLICY walrelay ON app_outbox_relay_time TO {role} USING (true) WITH CHECK (true)"
        ))
        .await;
    let url = world.url().replacen("postgres@", &format!("{role}@"), 1);
    let relay = world.relay(["--park-after", "300ms", "--database-url", &url]).start();
    relay.wait_for_http(DEADLINE, "/readyz", 200).await;

    world.execute(&format!("REVOKE INSERT ON app_outbox_dispatch FROM {role}")).await;
    // The row's topic is missing, so the row must be recorded.
    let missing = Workload { aggregate_type: "audio".into(), ..Workload::of_rows(1) };
    missing.insert(world.client()).await.unwrap();
    let grant = format!("GRANT SELECT, INSERT, UPDATE, DELETE ON app_outbox_dispatch TO {role}");
    wait_until(DEADLINE, "readiness to name table and grant", async || {
        let reasons = relay.wait_for_http(DEADLINE, "/readyz", 503).await;
        reasons.contains(&grant).then_some(())
    })
    .await;
    let unready = Instant::now();
    let report =
        wait_headline(&world, "lacks a privilege or a policy on app_outbox_dispatch").await;
    assert!(unready.elapsed() < SOON, "{:?}", unready.elapsed());
    assert!(report["next_step"]["text"].as_str().unwrap().contains(&grant), "{report:#}");
    assert!(!report["headline"].as_str().unwrap().contains("nothing further is settled"));

    world.execute(&format!("GRANT INSERT ON app_outbox_dispatch TO {role}")).await;
    world.wait_dispatch(DEADLINE, "retrying", 1).await;
    world.pubsub.create_topic("audio.events");
    world.pubsub.wait_stored(DEADLINE, 1).await;
    relay.wait_for_http(DEADLINE, "/readyz", 200).await;
    wait_until(DEADLINE, "the note to be cleared", async || {
        let cleared = status(&world).await;
        (cleared["condition"]["reasons"] == serde_json::json!([])).then_some(())
    })
    .await;
    drop(relay);
    world.wait_slot_free(DEADLINE).await;
    world.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

#[tokio::test]
async fn a_dropped_policy_and_a_revoked_grant_on_the_record_are_both_waited_for() {
    let Some(world) = InboxDatabase::create().await else { return };
    let role = format!("{}_relay", world.name());
    let tables = "app_outbox_definition, app_outbox_dispatch, app_outbox_relay, app_outbox_hold,
        app_outbox_relay_time";
    let policy = format!(
        "CREATE POLICY walrelay ON app_outbox_relay TO {role} USING (true) WITH CHECK (true)"
    );
    world
        .execute(&format!(
            "CREATE ROLE {role} LOGIN REPLICATION; GRANT USAGE ON SCHEMA public TO {role};
             GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO {role};
             CREATE POLICY walrelay ON app_outbox_dispatch TO {role} USING (true) WITH CHECK (true);
             CREATE POLICY walrelay ON app_outbox_hold TO {role} USING (true) WITH CHECK (true);
             CREATE POLICY walrelay ON app_outbox_relay_time TO {role} USING (true) WITH CHECK (true)"
        ))
        .await;
    let url = world.url().replacen("postgres@", &format!("{role}@"), 1);
    // The first start is more likely to be a mistake in the setup.
    let refused = world.run(["run", "--database-url", &url]).await;
    assert_eq!(refused.code, Some(3), "{}", refused.text);
    assert!(refused.text.contains("CREATE POLICY"), "{}", refused.text);
    world.execute(&policy).await;
    let relay = world.relay(["--database-url", &url]).start();
    relay.wait_for_http(DEADLINE, "/readyz", 200).await;

    let revoke = format!("REVOKE UPDATE ON app_outbox_relay FROM {role}");
    let grant = format!("GRANT UPDATE ON app_outbox_relay TO {role}");
    let steps = [
        ("DROP POLICY walrelay ON app_outbox_relay".to_owned(), &policy, "CREATE POLICY walrelay"),
        (revoke, &grant, "GRANT SELECT, INSERT, UPDATE, DELETE ON"),
    ];
    for (number, (take, give, fix)) in steps.into_iter().enumerate() {
        world.execute(&take).await;
        let first_number = u32::try_from(number).unwrap() * 10;
        let rows = Workload { first_number, ..Workload::of_rows(10) };
        rows.insert(world.client()).await.unwrap();
        wait_until(DEADLINE, "readiness to name the fix", async || {
            let reasons = relay.wait_for_http(DEADLINE, "/readyz", 503).await;
            reasons.contains(fix).then_some(())
        })
        .await;
        relay.wait_for_http(DEADLINE, "/livez", 200).await;
        world.execute(give).await;
        relay.wait_for_http(DEADLINE, "/readyz", 200).await;
        world.wait_confirmed(DEADLINE).await;
    }
    drop(relay);
    world.wait_slot_free(DEADLINE).await;
    assert!(world.check(&world.committed().await).lost.is_empty());
    world.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

#[tokio::test]
async fn status_names_a_refused_topic_as_soon_as_readiness_does_and_an_idle_relay_notes_nothing() {
    let Some(world) = InboxDatabase::create().await else { return };
    let relay = world.start_relay(["--park-after", "1h"]).await;
    relay.wait_for_http(DEADLINE, "/readyz", 200).await;
    let noted = "SELECT count(*) FROM app_outbox_relay WHERE condition ->> 'phase' = 'streaming'";
    wait_until(DEADLINE, "the session to note that it streams", async || {
        (world.number(noted).await == 1).then_some(())
    })
    .await;
    let at = "SELECT (extract(epoch FROM (condition ->> 'at')::timestamptz) * 1000)::int8 FROM app_outbox_relay";
    let first = world.number(at).await;
    Workload::of_rows(20).insert(world.client()).await.unwrap();
    world.wait_confirmed(DEADLINE).await;
    assert_eq!(world.number(at).await, first, "rows that flow are no change");

    let missing = Workload { aggregate_type: "audio".into(), ..Workload::of_rows(1) };
    missing.insert(world.client()).await.unwrap();
    relay.wait_for_http(DEADLINE, "/readyz", 503).await;
    let unready = Instant::now();
    let report = wait_headline(&world, "audio.events is refused").await;
    assert!(unready.elapsed() < SOON, "{:?}", unready.elapsed());
    assert!(report["next_step"]["text"].as_str().unwrap().contains("audio.events"), "{report:#}");
    assert!(world.number(at).await > first);
}

#[tokio::test]
async fn a_forgotten_anchor_near_its_loss_is_named_everywhere() {
    let Some(installation) = installation_or_skip() else { return };
    let settings =
        [("wal_level", "logical"), ("max_wal_size", "512MB"), ("max_slot_wal_keep_size", "128MB")];
    let server = PrivatePostgres::start(&installation, &settings).expect("a server");
    let Some(world) = InboxDatabase::create_at(&server.url("postgres")).await else { return };
    world.succeed(["anchor", "create", "daily"]).await;
    let relay = world.start_relay([]).await;
    relay.wait_for_http(DEADLINE, "/readyz", 200).await;
    for _ in 0..118 {
        world
            .execute("SELECT pg_logical_emit_message(false, 'foreign', repeat('x', 1 << 20))")
            .await;
    }
    wait_until(DEADLINE, "readiness to name the anchor", async || {
        let reasons = relay.wait_for_http(DEADLINE, "/readyz", 503).await;
        reasons.contains("anchor at risk: daily retains").then_some(())
    })
    .await;
    let report = wait_headline(&world, "anchor daily retains").await;
    assert!(report["next_step"]["text"].as_str().unwrap().contains("walrelay anchor drop daily"));
    assert_eq!(report["anchors"][0]["anchor"], "daily");
    assert!(report["anchors"][0]["retained_bytes"].as_u64() > Some(100 << 20), "{report:#}");
    let metrics = relay.wait_for_http(DEADLINE, "/metrics", 200).await;
    assert!(metrics.contains("walrelay_anchor_retained_bytes{anchor=\"daily\"}"), "{metrics}");
    let check = world.run(["check"]).await.text;
    let line = check.lines().find(|line| line.contains("anchor daily"));
    assert!(line.is_some_and(|line| line.contains("retains")), "{check}");
    assert!(check.contains("walrelay anchor drop daily"), "{check}");

    world.succeed(["anchor", "drop", "--yes", "daily"]).await;
    relay.wait_for_http(DEADLINE, "/readyz", 200).await;
}
