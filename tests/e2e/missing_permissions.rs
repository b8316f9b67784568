//! A consumer that temporarily lacks something: a permission for one event, a writable server, or
//! its own row.

use std::time::{Duration, Instant};

use walrelay_testkit::process::Signal;
use walrelay_testkit::relay::{Finished, Relay};
use walrelay_testkit::wait_until;
use walrelay_tests::{CONSUMER, DEADLINE, InboxDatabase};

/// Waits until `/readyz` reports this reason.
async fn told(consumer: &Relay, reason: &str) -> String {
    wait_until(DEADLINE, &format!("{reason:?} to be told"), async || {
        let body = consumer.wait_for_http(DEADLINE, "/readyz", 503).await;
        body.contains(reason).then_some(body)
    })
    .await
}

#[tokio::test]
async fn an_event_without_permission_is_named_and_other_keys_continue() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.set_up_consumer().await;
    world
        .execute(
            "CREATE FUNCTION effect.guarded(events app_inbox_event[]) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
               IF EXISTS (SELECT FROM unnest(events) AS e WHERE e.ordering_key = 'forbidden') THEN
                 RAISE EXCEPTION 'new row violates row-level security policy' USING ERRCODE = '42501';
               END IF;
               -- What a batch sets for its session is not there in the next one.
               IF current_setting('test.batch', true) NOT IN ('', pg_current_xact_id()::text) THEN
                 RAISE EXCEPTION 'another batch has left something';
               END IF;
               PERFORM set_config('test.batch', pg_current_xact_id()::text, false);
               PERFORM effect.add(events);
             END $$;
             INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             VALUES ('video', 'forbidden', 'made', 1, '{}')",
        )
        .await;
    let id = "SELECT id::text FROM app_outbox WHERE aggregateid = 'forbidden'";
    let id: String = world.client().query_one(id, &[]).await.expect("one row").get(0);
    world.catch_up().await;
    let consume = ["consumer", "run", CONSUMER, "--handler", "effect.guarded"];
    let consumer = world.command(consume).with_http().start();

    // No other event has arrived, so the failure may affect every event.
    told(&consumer, &format!("(event {id})")).await;
    assert_eq!(world.number("SELECT count(*) FROM app_inbox").await, 0);

    world.insert_events(50, 50).await;
    world.catch_up().await;
    world.wait_applied(50).await;
    world.insert_events(50, 50).await;
    world.catch_up().await;
    world.wait_applied(100).await;
    let left = "SELECT count(*) FROM app_inbox WHERE last_error LIKE '%another batch%'";
    assert_eq!(world.number(left).await, 0);
    let why = told(&consumer, "discard it in the inbox of").await;
    assert!(why.contains("row-level security"), "{why}");
    assert_eq!(why.matches("42501").count(), 1, "{why}");
    world.succeed(["inbox", "discard", "--yes", &id, "--reason", "not ours"]).await;
    consumer.wait_for_http(DEADLINE, "/readyz", 200).await;
}

#[tokio::test]
async fn a_read_only_server_and_a_row_that_is_gone_are_waited_for() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.set_up_consumer().await;
    let consumer = world.start_consumer([]).await;

    let row = "SELECT subscription FROM app_inbox_consumer";
    let subscription: String = world.client().query_one(row, &[]).await.expect("one row").get(0);
    world.execute("DELETE FROM app_inbox_consumer").await;
    told(&consumer, "not known in this database any more").await;
    world.insert_events(5, 20).await;
    world.catch_up().await;
    world
        .execute(&format!(
            "INSERT INTO app_inbox_consumer (consumer, subscription) VALUES ('{CONSUMER}', '{subscription}')"
        ))
        .await;
    world.wait_applied(20).await;
    consumer.wait_for_http(DEADLINE, "/readyz", 200).await;

    world.execute("UPDATE app_inbox_consumer SET paused = true").await;
    told(&consumer, "until it is resumed").await;
    world.insert_events(5, 20).await;
    world.catch_up().await;
    let name = world.name();
    world
        .execute(&format!(
            "ALTER DATABASE \"{name}\" SET default_transaction_read_only = on;
             SELECT pg_terminate_backend(pid) FROM pg_stat_activity
              WHERE datname = current_database() AND pid <> pg_backend_pid();
             UPDATE app_inbox_consumer SET paused = false"
        ))
        .await;
    let why = told(&consumer, "25006").await;
    assert!(why.contains("RESET default_transaction_read_only"), "{why}");
    world.execute(&format!("ALTER DATABASE \"{name}\" RESET default_transaction_read_only")).await;
    world.wait_applied(40).await;
    consumer.wait_for_http(DEADLINE, "/readyz", 200).await;
    world.assert_applied_exactly_once().await;
}

#[tokio::test]
async fn a_lock_that_somebody_keeps_is_a_reason_and_no_attempt_of_any_event() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.set_up_consumer().await;
    let somebody = world.connect().await;
    let lock = "BEGIN; LOCK TABLE effect.balance IN ACCESS EXCLUSIVE MODE";
    somebody.batch_execute(lock).await.expect("it is free");
    world.insert_events(5, 20).await;
    world.catch_up().await;
    let consumer = world.consumer(["--handler-timeout", "1s"]).with_http().start();
    let why = told(&consumer, "others are in the way of every batch").await;
    assert!(why.contains("55P03"), "{why}");
    let status = consumer.wait_for_http(DEADLINE, "/status", 200).await;
    assert!(status.contains("others are in the way") && status.contains("55P03"), "{status}");
    consumer.wait_for_line(DEADLINE, "others are in the way of every batch").await;
    assert_eq!(world.number("SELECT count(*) FROM app_inbox").await, 0);

    somebody.batch_execute("ROLLBACK").await.expect("it ends");
    world.wait_applied(20).await;
    consumer.wait_for_http(DEADLINE, "/readyz", 200).await;
    let tried = "SELECT count(*) FROM app_inbox WHERE status <> 'done' OR attempts <> 1";
    assert_eq!(world.number(tried).await, 0);
    world.assert_applied_exactly_once().await;
}

/// A handler that fails on events whose key is in a table, with the error code from that table.
const FAILING: &str = "
CREATE TABLE effect.failing (key text PRIMARY KEY, code text NOT NULL);
CREATE FUNCTION effect.guarded(events app_inbox_event[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  code text;
BEGIN
  SELECT f.code INTO code FROM effect.failing AS f JOIN unnest(events) AS e ON e.ordering_key = f.key LIMIT 1;
  IF code = 'gone' THEN
    PERFORM pg_terminate_backend(pg_backend_pid());
  ELSIF code IS NOT NULL THEN
    RAISE EXCEPTION 'this one lacks something' USING ERRCODE = code;
  END IF;
  PERFORM effect.add(events);
END $$";

async fn insert(world: &InboxDatabase, keys: u32, prefix: &str, events: u32) {
    world
        .execute(&format!(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             SELECT 'video', '{prefix}-' || n % {keys}, 'made', n + (SELECT count(*) FROM app_outbox), '{{}}' FROM generate_series(1, {events}) AS n"
        ))
        .await;
}

async fn lack(world: &InboxDatabase, prefix: &str, code: &str) {
    world
        .execute(&format!(
            "INSERT INTO effect.failing SELECT DISTINCT aggregateid, '{code}' FROM app_outbox
              WHERE aggregateid LIKE '{prefix}-%'"
        ))
        .await;
}

#[tokio::test]
async fn hundreds_of_keys_without_permission_block_no_other_key() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.set_up_consumer().await;
    world.execute(FAILING).await;
    // More events than the consumer can hold, of many keys and of one key. The healthy keys are
    // queued behind them.
    insert(&world, 400, "sick", 1_600).await;
    insert(&world, 1, "long", 2_500).await;
    // The code of an unreachable server looks like an outage, but only these events cause it.
    lack(&world, "sick", "08001").await;
    lack(&world, "long", "42501").await;
    insert(&world, 100, "well", 300).await;
    world.catch_up().await;
    let consumer = world
        .command(["consumer", "run", CONSUMER, "--handler", "effect.guarded"])
        .with_http()
        .start();
    world.wait_applied(300).await;
    let why = told(&consumer, "discard it in the inbox of").await;
    assert!(why.contains("lacks something"), "{why}");

    world.execute("DELETE FROM effect.failing").await;
    world.wait_applied(4_400).await;
    consumer.wait_for_http(DEADLINE, "/readyz", 200).await;
    let counted = "SELECT count(*) FROM app_inbox WHERE status <> 'done' OR attempts > 1";
    assert_eq!(world.number(counted).await, 0, "no attempt was counted");
    world.assert_applied_exactly_once().await;
}

async fn many_keys_fail_their_batches(code: &str) {
    let Some(world) = InboxDatabase::create().await else { return };
    world.set_up_consumer().await;
    world.execute(FAILING).await;
    insert(&world, 300, "sick", 300).await;
    lack(&world, "sick", code).await;
    insert(&world, 20, "well", 20).await;
    world.catch_up().await;
    let consume = ["consumer", "run", CONSUMER, "--handler", "effect.guarded", "--workers", "1"];
    let _consumer = world.command(consume).start();
    let began = Instant::now();
    // No other event arrives that could show whether the failure is global.
    world.wait_applied(20).await;
    let took = began.elapsed();
    assert!(
        took < Duration::from_secs(45),
        "{took:?}: each is tried once before any is tried again"
    );

    world.execute("DELETE FROM effect.failing").await;
    world.wait_applied(320).await;
    world.assert_applied_exactly_once().await;
}

#[tokio::test]
async fn hundreds_of_keys_that_meet_others_keep_those_behind_them_seconds() {
    many_keys_fail_their_batches("55P03").await;
}

#[tokio::test]
async fn hundreds_of_keys_that_end_their_session_keep_those_behind_them_seconds() {
    many_keys_fail_their_batches("gone").await;
}

#[tokio::test]
async fn hundreds_of_keys_that_may_not_write_keep_those_behind_them_seconds() {
    many_keys_fail_their_batches("25006").await;
}

#[tokio::test]
async fn storing_events_for_capacity_is_no_progress_and_keeps_the_reason() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.set_up_consumer().await;
    world.execute(FAILING).await;
    // More events than the consumer can hold.
    insert(&world, 1, "sick", 1_500).await;
    lack(&world, "sick", "42501").await;
    world.catch_up().await;
    let consume = ["consumer", "run", CONSUMER, "--handler", "effect.guarded", "--workers", "1"];
    let consumer = world.command(consume).with_http().start();
    let stored = "SELECT count(*) FROM app_inbox WHERE status = 'retrying'";
    wait_until(DEADLINE, "all of them to be stored, with nothing left to hold", async || {
        (world.number(stored).await == 1_500).then_some(())
    })
    .await;
    wait_until(DEADLINE, "the time without progress to grow", async || {
        let status = consumer.wait_for_http(DEADLINE, "/status", 200).await;
        let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
        (status["seconds_since_progress"].as_f64() > Some(3.0)).then_some(())
    })
    .await;
    told(&consumer, "this one lacks something").await;
    let said = consumer.lines().join("\n");
    assert!(!said.contains("events are applied again"), "{said}");

    world.execute("DELETE FROM effect.failing").await;
    world.wait_applied(1_500).await;
    consumer.wait_for_http(DEADLINE, "/readyz", 200).await;
    world.assert_applied_exactly_once().await;
}

#[tokio::test]
async fn keys_whose_events_fail_slowly_keep_nobody_else_waiting_for_all_of_them() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.set_up_consumer().await;
    world.execute(FAILING).await;
    // Simulates a remote server that does not reply: the handler waits and then fails.
    world
        .execute(
            "CREATE FUNCTION effect.slowly(events app_inbox_event[]) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
               IF EXISTS (SELECT FROM unnest(events) AS e JOIN effect.failing AS f ON f.key = e.ordering_key) THEN
                 PERFORM pg_sleep(1);
               END IF;
               PERFORM effect.guarded(events);
             END $$",
        )
        .await;
    insert(&world, 12, "sick", 36).await;
    lack(&world, "sick", "08001").await;
    insert(&world, 100, "well", 300).await;
    world.catch_up().await;
    let consume = ["consumer", "run", CONSUMER, "--handler", "effect.slowly", "--workers", "1"];
    let _consumer = world.command(consume).start();
    // One attempt of each event alone takes 12 s, and twice as long in batches with others. A
    // search by halving for each would take minutes.
    world.wait_applied(300).await;
    world.execute("DELETE FROM effect.failing").await;
    world.wait_applied(336).await;
    world.assert_applied_exactly_once().await;
}

async fn one_event_fails_its_batch(code: &str) {
    let Some(world) = InboxDatabase::create().await else { return };
    world.set_up_consumer().await;
    world.execute(FAILING).await;
    insert(&world, 3, "sick", 6).await;
    lack(&world, "sick", code).await;
    insert(&world, 100, "well", 1_000).await;
    let _relay = world.start_relay([]).await;
    let consume = ["consumer", "run", CONSUMER, "--handler", "effect.guarded"];
    let consumer = world.command(consume).with_http().start();
    let stored =
        "SELECT count(*) FROM app_inbox WHERE status = 'retrying' AND next_attempt_at IS NOT NULL";
    wait_until(DEADLINE, "those that fail to be stored", async || {
        insert(&world, 10, "more", 10).await;
        (world.number(stored).await == 3).then_some(())
    })
    .await;
    let well = "SELECT count(*) FROM effect.applied WHERE key LIKE 'well-%'";
    wait_until(DEADLINE, "the others to be applied", async || {
        (world.number(well).await == 1_000).then_some(())
    })
    .await;
    told(&consumer, "discard it in the inbox of").await;

    // Two keys are fixed. The third key is due repeatedly, but does not keep the fixed keys in the
    // inbox.
    world.execute("DELETE FROM effect.failing WHERE key <> 'sick-0'").await;
    let sick = "SELECT count(*) FROM effect.applied WHERE key LIKE 'sick-%'";
    wait_until(DEADLINE, "those that are mended to be applied", async || {
        (world.number(sick).await == 4).then_some(())
    })
    .await;
    world.execute("DELETE FROM effect.failing").await;
    world.wait_applied(world.number("SELECT count(*) FROM app_outbox").await).await;
    world.assert_applied_exactly_once().await;
}

#[tokio::test]
async fn one_that_never_serializes_is_stored_and_named_and_the_others_go_on() {
    one_event_fails_its_batch("40001").await;
}

#[tokio::test]
async fn one_that_may_not_write_is_stored_and_named_and_the_others_go_on() {
    one_event_fails_its_batch("25006").await;
}

#[tokio::test]
async fn one_that_ends_its_session_is_stored_and_named_and_the_others_go_on() {
    one_event_fails_its_batch("gone").await;
}

#[tokio::test]
async fn events_received_while_draining_are_redelivered_before_their_lease_ends() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.set_up_consumer().await;
    world
        .execute(
            "CREATE FUNCTION effect.slow(events app_inbox_event[]) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
               PERFORM pg_advisory_lock_shared(7);
               PERFORM pg_advisory_unlock_shared(7);
               PERFORM effect.add(events);
             END $$",
        )
        .await;
    let _relay = world.start_relay([]).await;
    let somebody = world.connect().await;
    somebody.batch_execute("SELECT pg_advisory_lock(7)").await.expect("it is free");
    let consume = ["consumer", "run", CONSUMER, "--handler", "effect.slow"];
    let mut consumer = world.command(consume).start();
    insert(&world, 1, "out", 1).await;
    wait_until(DEADLINE, "the handler to wait", async || {
        let waiting = "SELECT count(*) FROM pg_stat_activity \
                        WHERE datname = current_database() AND wait_event_type = 'Lock'";
        (world.number(waiting).await > 0).then_some(())
    })
    .await;
    consumer.signal(Signal::Terminate);
    consumer.wait_for_line(DEADLINE, "draining").await;
    insert(&world, 20, "during", 20).await;
    wait_until(DEADLINE, "the relay to publish them", async || {
        (world.pubsub.stored_count() >= 21).then_some(())
    })
    .await;
    somebody.batch_execute("SELECT pg_advisory_unlock(7)").await.expect("it ends");
    consumer.wait_ended(DEADLINE).await;
    let began = Instant::now();
    let _next = world.command(consume).start();
    world.wait_applied(21).await;
    assert!(
        began.elapsed() < Duration::from_secs(12),
        "{:?}: a lease is 20 s long",
        began.elapsed()
    );
}

/// Creates a role with the manual's grants and the handler's grants. Returns the role and its
/// connection URL.
async fn reader(world: &InboxDatabase) -> (String, String) {
    let role = format!("{}_reader", world.name());
    let manual = include_str!("../../docs/how-to/deploy/roles.md");
    let (_, section) = manual.split_once("## A role for a consumer").expect("the section");
    let (_, sql) = section.split_once("PASSWORD '...';\n").expect("the role");
    let (grants, _) = sql.split_once("```").expect("its end");
    let grants = grants.replace("walrelay_consumer", &role);
    world
        .execute(&format!(
            "CREATE ROLE {role} LOGIN; {grants}
             GRANT USAGE ON SCHEMA effect TO {role};
             GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA effect TO {role}"
        ))
        .await;
    let url = world.url().replacen("postgres@", &format!("{role}@"), 1);
    (role, url)
}

async fn catches_up(world: &InboxDatabase, url: &str) -> Finished {
    world.consumer(["--until-caught-up", "--database-url", url]).finish(DEADLINE * 2).await
}

#[tokio::test]
async fn a_missing_permission_is_reported_at_start_with_its_grant() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.set_up_consumer().await;
    let (role, url) = reader(&world).await;
    let redeliver = "EXECUTE ON FUNCTION public.app_inbox_redeliver";
    let handler = "EXECUTE ON FUNCTION effect.add(public.app_inbox_event[])";
    // By default, every role may execute a function.
    world.execute("REVOKE EXECUTE ON FUNCTION effect.add FROM PUBLIC").await;
    world.execute(&format!("GRANT {handler} TO {role}")).await;
    let mut said = Vec::new();
    for right in
        [redeliver, handler, "INSERT, DELETE ON public.app_inbox", "USAGE ON SCHEMA effect"]
    {
        world.execute(&format!("REVOKE {right} FROM {role}")).await;
        said.push((right, catches_up(&world, &url).await));
        world.execute(&format!("GRANT {right} TO {role}")).await;
    }
    let granted = catches_up(&world, &url).await;
    world.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
    for (right, done) in &said {
        assert_eq!(done.code, Some(3), "{right}: {}", done.text);
        let statement = format!("GRANT {right} TO {role}");
        assert!(done.text.contains(&statement), "{statement}: {}", done.text);
    }
    assert_eq!(granted.code, Some(0), "{}", granted.text);
}

#[tokio::test]
async fn until_caught_up_exits_when_the_server_refuses_every_statement_of_the_handler() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.set_up_consumer().await;
    let (role, url) = reader(&world).await;
    world.execute(&format!("REVOKE INSERT ON effect.applied FROM {role}")).await;
    world.insert_events(5, 20).await;
    world.catch_up().await;
    let refused = catches_up(&world, &url).await;
    world.execute(&format!("GRANT INSERT ON effect.applied TO {role}")).await;
    let granted = catches_up(&world, &url).await;
    world.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
    assert_eq!(refused.code, Some(3), "{}", refused.text);
    for word in
        ["nothing could be applied", "permission denied for table applied", "grant the role"]
    {
        assert!(refused.text.contains(word), "{word}: {}", refused.text);
    }
    assert_eq!(granted.code, Some(0), "{}", granted.text);
    world.assert_applied_exactly_once().await;
}

#[tokio::test]
async fn a_dead_event_of_an_earlier_run_is_reported_at_start_and_in_every_metric() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.set_up_consumer().await;
    world
        .execute(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             VALUES ('video', 'key-1', 'made', 1, '{\"fails\": true}'), ('video', 'key-1', 'made', 2, '{}'),
                    ('video', 'key-2', 'made', 1, '{}')",
        )
        .await;
    world.catch_up().await;
    let once = ["--max-attempts", "1", "--until-caught-up"];
    assert_eq!(world.consumer(once).finish(DEADLINE).await.code, Some(0));

    let consumer = world.start_consumer([]).await;
    let line = consumer
        .wait_for_line(DEADLINE, "has events of an earlier run that are retried or dead")
        .await;
    assert!(line.contains("\"dead\":1") && line.contains("\"retrying\":1"), "{line}");
    let metrics = consumer.wait_for_http(DEADLINE, "/metrics", 200).await;
    for sample in [
        "rows{consumer=\"ledger\",status=\"dead\"} 1",
        "rows{consumer=\"ledger\",status=\"retrying\"} 1",
        "keys_held{consumer=\"ledger\"} 1",
    ] {
        let sample = format!("walrelay_inbox_{sample}");
        assert!(metrics.lines().any(|found| found == sample), "{sample} is not in\n{metrics}");
    }
    assert!(
        !metrics.contains("walrelay_inbox_oldest_waiting_seconds{consumer=\"ledger\"} 0.0\n"),
        "{metrics}"
    );
    let status = consumer.wait_for_http(DEADLINE, "/status", 200).await;
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    assert_eq!(
        (&status["waiting"]["dead"], &status["waiting"]["keys_held"]),
        (&1.into(), &1.into())
    );

    let id = "SELECT event_id FROM app_inbox WHERE status = 'dead'";
    let id: String = world.client().query_one(id, &[]).await.expect("one row").get(0);
    world.succeed(["inbox", "discard", "--yes", &id, "--reason", "poison"]).await;
    wait_until(DEADLINE, "the figures to fall", async || {
        let now = consumer.wait_for_http(DEADLINE, "/metrics", 200).await;
        let none = [
            "rows{consumer=\"ledger\",status=\"dead\"} 0",
            "rows{consumer=\"ledger\",status=\"retrying\"} 0",
            "keys_held{consumer=\"ledger\"} 0",
        ];
        none.iter().all(|it| now.contains(&format!("walrelay_inbox_{it}\n"))).then_some(())
    })
    .await;
}
