//! The steps of a run, in their order.

use std::collections::BTreeMap;
use std::future::pending;
use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval};
use walrelay_testkit::checker::{self, Committed, Stored};
use walrelay_testkit::process::Signal;
use walrelay_testkit::relay::Relay;
use walrelay_tests::applied_event;

use crate::report::Failure;
use crate::smoke::{Smoke, last_lines, poll};

// The steps: name and expectation.
const SET_UP: (&str, &str) = ("set up", "2 topics and 2 subscriptions");
const CHECK: (&str, &str) = ("check", "exit code 0");
const START: (&str, &str) = ("start", "`walrelay run` and `walrelay consumer run` are ready");
const TRAFFIC: (&str, &str) = ("traffic", "rows are committed, five in six with a key");
const KILL: (&str, &str) = ("kill", "the relay is ready again after SIGKILL");
const LARGEST_MESSAGE: (&str, &str) = ("largest message", "9,999,000 bytes are received");
const OVER_RELAYS_LIMIT: (&str, &str) =
    ("over the limit, relay", "a row of 10,000,001 bytes is dead");
const OVER_GOOGLES_LIMIT: (&str, &str) =
    ("over the limit, Google's client", "INVALID_ARGUMENT for 10,000,001 bytes");
const MISSING_PERMISSION: (&str, &str) =
    ("missing permission", "PERMISSION_DENIED, and the row waits");
const DELETED_TOPIC: (&str, &str) =
    ("deleted topic", "NOT_FOUND, and the row is published once the topic exists again");
const CROSS_CHECK: (&str, &str) =
    ("cross-check", "Google's client has every row, in order for each key");
const CONSUMER: (&str, &str) =
    ("consumer", "`walrelay consumer run` has applied every row once, in order for each key");
const STOP: (&str, &str) = ("stop", "exit code 0 after SIGTERM");

/// The time between two transactions. Each has five rows with a key and one without.
const TRANSACTION_INTERVAL: Duration = Duration::from_millis(200);

/// The largest payload that certainly fits into a message with its attributes.
const LARGEST: i32 = 9_999_000;

/// One byte more than a message may have.
const OVER_THE_LIMIT: u32 = 10_000_001;

/// The key of the row over the limit, which no reader gets.
const OVER_KEY: &str = "over";

/// A topic of Google's that everybody may read and nobody may publish to.
const FORBIDDEN_TOPIC: &str = "projects/pubsub-public-data/topics/taxirides-realtime";

/// Keeps the events as they were applied. A row that is applied twice is there twice.
const HANDLER: &str = "
CREATE TABLE SCHEMA.applied (
  n bigint GENERATED ALWAYS AS IDENTITY, event_id text, key text, lsn text, tx_index text, data bytea);
CREATE FUNCTION SCHEMA.apply(events SCHEMA.app_inbox_event[]) RETURNS void LANGUAGE sql AS $$
  INSERT INTO SCHEMA.applied (event_id, key, lsn, tx_index, data)
  SELECT event_id, ordering_key, commit_lsn::text, tx_index::text, data FROM unnest(events) WITH ORDINALITY
   ORDER BY ordinality
$$;";

/// When the producer saw the commit of each row.
type Commits = BTreeMap<String, Instant>;

/// Runs the steps. A step that everything else needs ends the run when it fails.
pub(crate) async fn run(smoke: &Smoke) {
    let receive = async {
        smoke.google.receive(&smoke.subscription("google"), &smoke.received).await;
        // Without the stream, the cross-check reports what is lost.
        pending::<()>().await;
    };
    let report = &smoke.report;
    if !report.step(SET_UP, set_up(smoke)).await || !report.step(CHECK, check(smoke)).await {
        return;
    }
    tokio::select! {
        () = receive => {}
        () = with_traffic(smoke) => {}
    }
}

async fn with_traffic(smoke: &Smoke) {
    let report = &smoke.report;
    let (mut services, mut commits) = (Vec::new(), Commits::new());
    let started = async {
        services.push(smoke.start(&["run"]).await?);
        let handler = format!("{}.apply", smoke.name);
        services.push(smoke.start(&["consumer", "run", "smoke", "--handler", &handler]).await?);
        Ok("ready".to_owned())
    };
    if !report.step(START, started).await {
        return;
    }
    let traffic = report.step(TRAFFIC, produce(smoke, &mut commits));
    tokio::join!(traffic, provoke(smoke, &mut services));

    report.step(CROSS_CHECK, cross_check(smoke, &commits)).await;
    report.step(CONSUMER, applied_once(smoke)).await;
    if !report.is_ok() {
        services.iter().for_each(|service| eprintln!("{}", service.lines().join("\n")));
    }
    report.step(STOP, stop(services)).await;
}

async fn set_up(smoke: &Smoke) -> Result<String, Failure> {
    let (events, deleted) = (format!("{}.events", smoke.name), smoke.deleted_type());
    smoke.succeed(&["init", &format!("--create-topics={events},{deleted}.events")]).await?;
    let subscription = smoke.subscription("consumer");
    let create = ["--create", "--topic", &events, "--subscription", &subscription];
    smoke.succeed(&[&["consumer", "init", "smoke"], &create[..]].concat()).await?;
    let topic = smoke.topic(&smoke.name);
    smoke.google.subscribe(&smoke.subscription("google"), &topic).await?;
    smoke.sql.batch_execute(&HANDLER.replace("SCHEMA", &smoke.name)).await?;
    Ok("created".to_owned())
}

async fn check(smoke: &Smoke) -> Result<String, Failure> {
    smoke.succeed(&["check"]).await?;
    Ok("exit code 0".to_owned())
}

/// Commits rows at a steady pace until the time is over.
async fn produce(smoke: &Smoke, commits: &mut Commits) -> Result<String, Failure> {
    let insert = format!(
        "INSERT INTO {0}.app_outbox (aggregatetype, aggregateid, event_type, version, payload)
         SELECT '{0}', CASE n WHEN 0 THEN '' ELSE 'key-' || n END, 'smoke', $1::bigint, jsonb_build_object('n', n, 'of', $1)
           FROM generate_series(0, 5) AS n RETURNING id::text",
        smoke.name
    );
    let insert = smoke.sql.prepare(&insert).await?;
    let mut pace = interval(TRANSACTION_INTERVAL);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (began, mut version) = (Instant::now(), 0_i64);
    while began.elapsed() < smoke.traffic {
        pace.tick().await;
        version += 1;
        let rows = smoke.sql.query(&insert, &[&version]).await?;
        let committed = Instant::now();
        commits.extend(rows.iter().map(|row| (row.get(0), committed)));
    }
    Ok(format!("{} rows", commits.len()))
}

/// Lets everything go wrong that can be provoked, beside the traffic.
async fn provoke(smoke: &Smoke, services: &mut [Relay]) {
    let report = &smoke.report;
    if let Some(relay) = services.first_mut() {
        report.step(KILL, kill(smoke, relay)).await;
    }
    report.step(LARGEST_MESSAGE, largest(smoke)).await;
    report.step(OVER_RELAYS_LIMIT, over_the_limit(smoke)).await;
    report.step(OVER_GOOGLES_LIMIT, refused_by_google(smoke)).await;
    report.step(MISSING_PERMISSION, missing_permission(smoke)).await;
    report.step(DELETED_TOPIC, deleted_topic(smoke)).await;
}

async fn kill(smoke: &Smoke, relay: &mut Relay) -> Result<String, Failure> {
    relay.kill();
    *relay = smoke.start(&["run"]).await?;
    Ok("ready".to_owned())
}

async fn largest(smoke: &Smoke) -> Result<String, Failure> {
    let id = smoke.insert(&smoke.name, "large", LARGEST).await?;
    poll("the largest message", async || {
        let received = smoke.received.borrow();
        Ok(received.messages.iter().any(|message| message.event_id == id).then_some(()))
    })
    .await?;
    Ok("received".to_owned())
}

async fn over_the_limit(smoke: &Smoke) -> Result<String, Failure> {
    let id = smoke.insert(&smoke.name, OVER_KEY, i32::try_from(OVER_THE_LIMIT)?).await?;
    smoke.wait_dispatch(&id, "dead TOO_LARGE").await
}

async fn refused_by_google(smoke: &Smoke) -> Result<String, Failure> {
    let topic = smoke.topic(&smoke.deleted_type());
    let code = smoke.google.publish(&topic, usize::try_from(OVER_THE_LIMIT)?).await?;
    if code == "INVALID_ARGUMENT" { Ok(code) } else { Err(code.into()) }
}

/// Only the template may name a project, so `dispatch edit` gives the row its topic.
async fn missing_permission(smoke: &Smoke) -> Result<String, Failure> {
    let id = smoke.insert(&format!("{}/denied", smoke.name), "denied", 10).await?;
    smoke.wait_dispatch(&id, "dead UNROUTABLE").await?;
    smoke.succeed(&["dispatch", "edit", &id, "--set-topic", FORBIDDEN_TOPIC, "--yes"]).await?;
    let seen = smoke.wait_dispatch(&id, "retrying PERMISSION_DENIED").await?;
    smoke.succeed(&["dispatch", "discard", &id, "--reason", "smoke test", "--yes"]).await?;
    Ok(seen)
}

async fn deleted_topic(smoke: &Smoke) -> Result<String, Failure> {
    let aggregate_type = smoke.deleted_type();
    smoke.google.delete_topic(&smoke.topic(&aggregate_type)).await?;
    let deleted = Instant::now();
    let select = format!(
        "SELECT event_id FROM {0}.app_outbox_dispatch JOIN {0}.app_outbox ON id::text = event_id
          WHERE aggregatetype = $1 AND status = 'retrying' AND error_code = 'NOT_FOUND' LIMIT 1",
        smoke.name
    );
    // The service may store rows for a moment after it has deleted the topic.
    let first = poll("a row to be refused with NOT_FOUND", async || {
        smoke.insert(&aggregate_type, "", 10).await?;
        let row = smoke.sql.query_opt(&select, &[&aggregate_type]).await?;
        Ok(row.map(|row| row.get(0)))
    });
    let id: String = first.await?;
    let (refused, created) = (deleted.elapsed().as_secs_f64(), Instant::now());
    smoke.succeed(&["init", &format!("--create-topics={aggregate_type}.events")]).await?;
    smoke.wait_dispatch(&id, "published").await?;
    let published = created.elapsed().as_secs_f64();
    Ok(format!("NOT_FOUND after {refused:.1} s, published after {published:.1} s"))
}

async fn cross_check(smoke: &Smoke, commits: &Commits) -> Result<String, Failure> {
    let committed = committed(smoke).await?;
    let arrived = || smoke.received.borrow().first.len() >= committed.len();
    // If a row is missing at the deadline, the comparison reports it.
    drop(poll("every row", async || Ok(arrived().then_some(()))).await);
    let received = smoke.received.borrow();
    let (seen, _) = compare(&committed, &received.messages)?;
    let first = received.first.iter();
    let latency =
        |(id, time): (&String, &Instant)| Some(time.saturating_duration_since(*commits.get(id)?));
    let mut latencies: Vec<u128> = first.filter_map(latency).map(|it| it.as_millis()).collect();
    latencies.sort_unstable();
    let percentile = |part| latencies.get(latencies.len() * part / 100).unwrap_or(&0);
    let (half, most) = (percentile(50), percentile(99));
    Ok(format!("{seen}, from commit to receipt p50 {half} ms, p99 {most} ms"))
}

async fn applied_once(smoke: &Smoke) -> Result<String, Failure> {
    let committed = committed(smoke).await?;
    let count = format!("SELECT count(DISTINCT event_id) FROM {}.applied", smoke.name);
    let applied = poll("every row", async || {
        let applied: i64 = smoke.sql.query_one(&count, &[]).await?.try_get(0)?;
        Ok((usize::try_from(applied)? >= committed.len()).then_some(()))
    });
    drop(applied.await);
    let columns = "SELECT event_id, key, lsn, tx_index, data FROM";
    let rows =
        smoke.sql.query(&format!("{columns} {}.applied ORDER BY n", smoke.name), &[]).await?;
    match compare(&committed, &rows.iter().map(applied_event).collect::<Vec<_>>())? {
        (seen, 0) => Ok(seen),
        (seen, _) => Err(seen.into()),
    }
}

/// Returns the numbers of rows and of repeated rows, or the violations.
fn compare(committed: &[Committed], stored: &[Stored]) -> Result<(String, usize), Failure> {
    let verdict = checker::check(committed, stored);
    let (rows, repeated) = (committed.len(), verdict.duplicates_count);
    match verdict.is_clean() {
        true => Ok((format!("{rows} rows, {repeated} repeated"), repeated)),
        false => Err(verdict.to_string().into()),
    }
}

/// Returns the rows that both readers get. The versions of a key are its order.
async fn committed(smoke: &Smoke) -> Result<Vec<Committed>, Failure> {
    let select = format!(
        "SELECT id::text, aggregateid, payload::text FROM {0}.app_outbox
          WHERE aggregatetype = '{0}' AND aggregateid <> '{OVER_KEY}' ORDER BY version",
        smoke.name
    );
    let rows = smoke.sql.query(&select, &[]).await?;
    let committed = rows.iter().map(|row| Committed {
        event_id: row.get(0),
        key: row.get(1),
        data: row.get::<_, String>(2).into_bytes(),
    });
    Ok(committed.collect())
}

async fn stop(services: Vec<Relay>) -> Result<String, Failure> {
    for mut service in services {
        service.signal(Signal::Terminate);
        poll("a service to end", async || Ok(service.has_ended().then_some(()))).await?;
        let log = last_lines(&service);
        let code = service.finish(Duration::from_secs(10)).await.code;
        if code != Some(0) {
            return Err(format!("exit code {code:?}: {log}").into());
        }
    }
    Ok("exit code 0".to_owned())
}
