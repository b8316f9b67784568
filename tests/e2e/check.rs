//! `check` inspects everything within its reach, and reports honestly.

use std::time::{Duration, Instant};

use walrelay_testkit::collector::Collector;
use walrelay_testkit::wait_until;
use walrelay_tests::{CONSUMER, InboxDatabase};

#[tokio::test]
async fn a_dead_pubsub_is_found_although_the_outbox_is_empty_and_without_a_long_wait() {
    let Some(world) = InboxDatabase::create().await else { return };
    // One port without a listener, and one port whose listener never replies.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap().to_string();
    for address in ["127.0.0.1:1", &silent] {
        let began = Instant::now();
        let command = world.command(["check"]).env("PUBSUB_EMULATOR_HOST", address);
        let done = command.finish(walrelay_tests::DEADLINE).await;
        assert_eq!(done.code, Some(4), "{}", done.text);
        assert!(began.elapsed() < Duration::from_secs(25), "{:?}", began.elapsed());
    }
}

#[tokio::test]
async fn pubsub_is_checked_although_postgres_cannot_be_reached() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    let dead = "postgresql://postgres@127.0.0.1:1/app";
    let done = world.run(["check", "-v", "--database-url", dead]).await;
    assert_eq!(done.code, Some(3), "{}", done.text);
    assert!(
        done.text.contains("127.0.0.1") && done.text.contains("Pub/Sub: answers"),
        "{}",
        done.text
    );
    assert!(done.text.contains("those could not be read"), "not told as fine: {}", done.text);
    let named = world
        .run(["check", "-v", "--database-url", dead, "--topic-template", "video.events"])
        .await;
    assert!(named.text.contains("video.events: exists"), "no row is needed: {}", named.text);
}

#[tokio::test]
async fn consumers_are_checked_in_the_outbox_database_and_in_named_databases() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.set_up_consumer().await;
    let well = world.succeed(["check", "-v"]).await;
    let reads = format!("consumer {CONSUMER}: reads ");
    assert!(well.contains(&reads) && well.contains("in order"), "{well}");

    world.execute("UPDATE app_inbox_consumer SET pruned_before = now() - interval '1 day'").await;
    let place = format!("{CONSUMER}={}", world.url());
    let forgetful = world.succeed(["check", "--inbox", &place]).await;
    assert!(forgetful.contains("is applied again"), "{forgetful}");

    world.execute("ALTER TABLE app_inbox_key SET UNLOGGED").await;
    for options in [vec![], vec!["--inbox", &place]] {
        let checked = world.succeed(["check"].into_iter().chain(options)).await;
        for part in ["inbox-table-unlogged", "ALTER TABLE public.app_inbox_key SET LOGGED"] {
            assert!(checked.contains(part), "{part}: {checked}");
        }
    }
    let refused = world.consumer(["--until-caught-up"]).finish(walrelay_tests::DEADLINE).await;
    assert_eq!(refused.code, Some(3), "{}", refused.text);
    assert!(refused.text.contains("app_inbox_key SET LOGGED"), "{}", refused.text);
    world.execute("ALTER TABLE app_inbox_key SET LOGGED").await;

    let unknown = world.succeed(["check", "--inbox", &place.replace(CONSUMER, "nobody")]).await;
    assert!(unknown.contains("consumer nobody: cannot be checked"), "{unknown}");
}

#[tokio::test]
async fn addresses_that_swallow_everything_cost_their_patience_once() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    // A listener that accepts connections and never replies.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let dead = format!("postgresql://postgres@{address}/app");
    let began = Instant::now();
    let command = world
        .command(["check", "--output", "json", "--database-url", &dead])
        .env("PUBSUB_EMULATOR_HOST", &address);
    let done = command.finish(walrelay_tests::DEADLINE).await;
    // `run` would wait for the database, but it exits if Pub/Sub does not reply.
    assert_eq!(done.code, Some(4), "{}", done.text);
    let told: Vec<&str> = ["replication connection", "Pub/Sub"]
        .into_iter()
        .filter(|subject| done.text.contains(subject))
        .collect();
    assert_eq!(told.len(), 2, "{}", done.text);
    // Five seconds for Postgres, ten seconds for the topic, and slack for a busy machine.
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_collector_is_tried_out_and_never_more_than_a_warning() {
    let Some(world) = InboxDatabase::create().await else { return };
    let collector = Collector::start();
    // One port without a listener, and one port whose listener never replies.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("http://{}", silent.local_addr().unwrap());
    for (endpoint, told) in [
        (&*collector.endpoint(), "takes telemetry"),
        ("http://127.0.0.1:1", "does not answer (no connection)"),
        (&*silent, "does not answer (in time)"),
    ] {
        let began = Instant::now();
        let command = world
            .command(["check", "-v"])
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
            .env("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20hunter2");
        let done = command.finish(walrelay_tests::DEADLINE).await;
        assert_eq!(done.code, Some(0), "{}", done.text);
        let line = format!("collector {endpoint}: {told}");
        assert!(done.text.contains(&line) && !done.text.contains("hunter2"), "{}", done.text);
        let has_fix = done.text.contains("or correct OTEL_EXPORTER_OTLP_ENDPOINT");
        assert_eq!(has_fix, told != "takes telemetry", "{}", done.text);
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    }
    let kept = collector.kept();
    assert_eq!(kept.authorizations, [Some("Bearer hunter2".to_owned())]);
    assert!(kept.spans.is_empty() && kept.metrics.is_empty(), "{kept:?}");
    let without = world.succeed(["check"]).await;
    assert!(!without.contains("collector"), "{without}");
}

#[tokio::test]
async fn status_begins_with_a_summary_and_queries_the_named_relay() {
    let Some(world) = InboxDatabase::create().await else { return };
    let stopped = world.succeed(["status"]).await;
    assert!(stopped.starts_with("nothing streams, "), "{stopped}");
    assert!(stopped.contains("walrelay run"), "{stopped}");
    assert!(stopped.contains("  published        nothing yet\n"), "{stopped}");

    let relay = world.start_relay([]).await;
    world.insert_events(3, 3).await;
    walrelay_testkit::wait_until(walrelay_tests::DEADLINE, "three rows in status", async || {
        let text = world.succeed(["status"]).await;
        let lines = [
            "published        3 rows since the slot is on record, 3 of them today (UTC), the last ",
            "nothing waits",
        ];
        lines.iter().all(|line| text.contains(line)).then_some(())
    })
    .await;
    let told = world.succeed(["status", "--relay", relay.http_address()]).await;
    assert!(told.starts_with("streaming, ") && told.contains("nothing parked"), "{told}");
    assert!(told.contains("phase            streaming"), "{told}");
    let json = world.succeed(["status", "--output", "json", "--relay", relay.http_address()]).await;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["relay"]["phase"], "streaming");
    assert_eq!(json["next_step"], serde_json::Value::Null);
    assert!(json["headline"].as_str().unwrap().starts_with("streaming"), "{json}");

    // `status` waits for a table that another transaction has locked, and reports the wait.
    world.execute("BEGIN; LOCK TABLE app_outbox_hold").await;
    let mut waiting = world.command(["status"]).start();
    waiting.wait_for_line(walrelay_tests::DEADLINE, "waiting for a transaction to end").await;
    world.execute("COMMIT").await;
    assert_eq!(waiting.wait_ended(walrelay_tests::DEADLINE).await.code(), Some(0));

    let mut watching = world.command(["status", "--watch=100ms"]).start();
    watching.wait_for_line(walrelay_tests::DEADLINE, "nothing parked").await;
    watching.signal(walrelay_testkit::process::Signal::Interrupt);
    assert_eq!(watching.wait_ended(walrelay_tests::DEADLINE).await.code(), Some(0));
    assert!(!watching.lines().iter().any(|line| line.contains("asked to stop")), "it just ends");
}

#[tokio::test]
async fn a_watched_status_ends_when_nobody_reads_it_any_more() {
    let Some(world) = InboxDatabase::create().await else { return };
    let binary = walrelay_testkit::relay::binary().expect("the binary was there before");
    let status = std::process::Command::new(binary)
        .args(["status", "--watch=100ms", "--database-url", world.url(), "--slot", world.name()])
        .stdout(std::process::Stdio::piped())
        .spawn();
    let mut status = status.expect("the binary starts");
    let mut output = std::io::BufReader::new(status.stdout.take().expect("it is piped"));
    let mut line = || {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut output, &mut line).expect("there is a line");
        line
    };
    let (time, headline) = (line(), line());
    assert!(time.starts_with("--- 20"), "{time}");
    assert!(headline.starts_with("nothing streams, "), "{headline}");
    drop(output);
    let ended = async || status.try_wait().expect("it is our child");
    let ended = wait_until(walrelay_tests::DEADLINE, "the command ends", ended).await;
    assert_eq!(ended.code(), Some(0));
}

#[tokio::test]
async fn a_check_of_a_consumers_database_asks_for_the_outboxs() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    world.set_up_consumer().await;
    let checked = world.run(["check"]).await;
    assert_eq!(checked.code, Some(3), "{}", checked.text);
    assert!(checked.text.contains("this looks like a consumer's database"), "{}", checked.text);
    assert!(checked.text.contains("--database-url"), "{}", checked.text);
    assert!(!checked.text.contains("--outbox-table public.app_inbox"), "{}", checked.text);
}
