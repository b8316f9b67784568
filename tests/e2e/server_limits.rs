//! Limits of the server, servers that wait, and connections that fall silent.

use std::process::Command;
use std::time::Duration;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use walrelay_private_postgres::PrivatePostgres;
use walrelay_testkit::outbox::Workload;
use walrelay_testkit::pooler::{HandOut, Pooler};
use walrelay_testkit::postgres::{TestClient, installation_or_skip};
use walrelay_testkit::proxy::{Network, Proxy};
use walrelay_testkit::relay::Relay;
use walrelay_testkit::{http_get, wait_until};
use walrelay_tests::{DEADLINE, InboxDatabase};

/// A step that includes a limit of half a minute.
const SLOW: Duration = Duration::from_secs(120);

/// Gives every new session of the database short limits.
async fn limit(world: &InboxDatabase) {
    let name = world.name();
    let limits = [
        ("statement_timeout", "100ms"),
        ("idle_session_timeout", "300ms"),
        ("idle_in_transaction_session_timeout", "300ms"),
    ];
    for (setting, value) in limits {
        world.execute(&format!("ALTER DATABASE \"{name}\" SET {setting} = '{value}'")).await;
    }
    if world.major() >= 17 {
        world.execute(&format!("ALTER DATABASE \"{name}\" SET transaction_timeout = '1s'")).await;
    }
}

async fn rows_from(world: &InboxDatabase, first_number: u32, count: u32) {
    let rows = Workload { first_number, ..Workload::of_rows(count) };
    rows.insert(world.client()).await.expect("rows");
}

async fn wait_for_reason(relay: &Relay, reason: &str) -> String {
    wait_until(SLOW, &format!("{reason:?} in /readyz"), async || {
        let (code, body) = http_get(relay.http_address(), "/readyz").await.ok()?;
        (code == 503 && body.contains(reason)).then_some(body)
    })
    .await
}

/// Splits the connection string into the address and the database.
fn parts(world: &InboxDatabase) -> (&str, &str) {
    let (_, address) = world.url().split_once('@').expect("a user");
    address.split_once('/').expect("a database")
}

#[tokio::test]
async fn a_transaction_that_takes_longer_than_the_limits_of_the_database_is_published_once() {
    let Some(world) = InboxDatabase::create().await else { return };
    limit(&world).await;
    let relay = world.start_relay(["--rate", "1000"]).await;
    // One statement, and so one transaction, of three seconds.
    world
        .execute(
            "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
             SELECT 'video', 'k' || n % 50, 'made', n, '{}' FROM generate_series(1, 3000) AS n",
        )
        .await;
    world.wait_confirmed(DEADLINE).await;
    assert_eq!(world.pubsub.stored_count(), 3_000);
    let lines = relay.lines();
    assert!(!lines.iter().any(|line| line.contains("broke off")), "{}", lines.join("\n"));
}

#[tokio::test]
async fn a_recovery_ends_under_the_limits_of_the_database() {
    let Some(world) = InboxDatabase::create().await else { return };
    rows_from(&world, 0, 10).await;
    world.catch_up().await;
    limit(&world).await;
    world.execute(&format!("SELECT pg_drop_replication_slot('{}')", world.name())).await;
    rows_from(&world, 10, 2_000).await;
    world.succeed(["slot", "recover", "--yes"]).await;
    let relay = world.start_relay(["--rate", "1000"]).await;
    world.wait_confirmed(DEADLINE).await;
    let verdict = world.check(&world.committed().await);
    assert!(verdict.lost.is_empty() && verdict.reordered.is_empty(), "{verdict}");
    drop(relay);
}

#[tokio::test]
async fn shards_are_made_and_streamed_whatever_the_database_says_about_locks_and_names() {
    let Some(world) = InboxDatabase::create_empty().await else { return };
    for setting in ["lock_timeout = '200ms'", "quote_all_identifiers = on"] {
        world.execute(&format!("ALTER DATABASE \"{}\" SET {setting}", world.name())).await;
    }
    world.succeed(["init", "--shards", "2"]).await;
    world.succeed(["check", "--shard", "0/2"]).await;
    // Slot creation waits for the end of this transaction, beyond the limit.
    let writer = world.connect().await;
    writer.batch_execute("BEGIN; CREATE TABLE open_transaction ()").await.expect("a transaction");
    let resharding = world.command(["reshard", "--yes", "--shards", "4"]).start();
    resharding.wait_for_line(DEADLINE, "waiting for a transaction to end").await;
    writer.batch_execute("ROLLBACK").await.expect("its end");
    assert_eq!(resharding.finish(DEADLINE).await.code, Some(0));
    rows_from(&world, 0, 20).await;
    for shard in ["0/4", "1/4", "2/4", "3/4"] {
        world.succeed(["run", "--until-caught-up", "--shard", shard]).await;
    }
    let verdict = world.check(&world.committed().await);
    let is_kept = verdict.lost.is_empty() && verdict.reordered.is_empty();
    assert!(is_kept && verdict.duplicates_count == 0, "{verdict}");
}

#[tokio::test]
async fn a_handler_may_take_longer_than_the_limits_of_the_database() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.set_up_consumer().await;
    world.execute("CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(1.5); RETURN NULL; END'").await;
    world
        .execute("CREATE TRIGGER slow AFTER INSERT ON app_inbox_key EXECUTE FUNCTION slow()")
        .await;
    limit(&world).await;
    world.insert_events(1, 3).await;
    world.catch_up().await;
    world.consume_all().await;
    world.assert_applied_exactly_once().await;
}

#[tokio::test]
async fn a_relay_or_a_command_behind_a_pooler_that_replicates_ends_with_exit_3() {
    let Some(world) = InboxDatabase::create().await else { return };
    rows_from(&world, 0, 10).await;
    let (upstream, database) = parts(&world);
    let pooler = Pooler::start(upstream, 4, HandOut::LastReleased).await;
    let url = format!("postgresql://postgres@127.0.0.1:{}/{database}", pooler.port());
    for command in [
        &["run"][..],
        &["check"],
        &["status"],
        &["dispatch", "list"],
        &["slot", "recover", "--yes"],
    ] {
        let arguments = [command, &["--database-url", &url]].concat();
        let done = world.run(arguments.iter().copied()).await;
        assert_eq!(done.code, Some(3), "{command:?}: {}", done.text);
        assert!(done.text.contains("connection-pooler"), "{command:?}: {}", done.text);
    }
    assert_eq!(world.pubsub.stored_count(), 0);
    let other = TestClient::connect(&url).await;
    let set = "SELECT coalesce(string_agg(name, ' '), '') FROM pg_settings
                WHERE source = 'session' AND name <> 'client_encoding'";
    assert_eq!(other.text(set).await, "");
}

#[tokio::test]
async fn a_relay_whose_connection_falls_silent_while_the_relay_starts_connects_again() {
    let Some(world) = InboxDatabase::create().await else { return };
    let (upstream, database) = parts(&world);
    for (first_row, answers) in [(0, 1), (5, 5)] {
        rows_from(&world, first_row, 5).await;
        let proxy = Proxy::start(upstream).await;
        proxy.set(Network::SilentAfter { answers });
        let url = format!("postgresql://postgres@{}/{database}?connect_timeout=3", proxy.address());
        let relay = world.relay(["--database-url", &url]).start();
        relay.wait_for_line(SLOW, "connecting again").await;
        assert_eq!(http_get(relay.http_address(), "/readyz").await.map(|it| it.0).ok(), Some(503));
        proxy.set(Network::Fine);
        relay.wait_for_http(SLOW, "/readyz", 200).await;
        world.wait_confirmed(DEADLINE).await;
    }
    assert_eq!(world.pubsub.stored_count(), 10);
}

/// Passes each connection on to `upstream`.
async fn forward(listener: TcpListener, upstream: String) {
    let mut connections = JoinSet::new();
    while let Ok((mut client, _)) = listener.accept().await {
        let upstream = upstream.clone();
        connections.spawn(async move {
            let mut server = TcpStream::connect(&upstream).await?;
            copy_bidirectional(&mut client, &mut server).await
        });
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_at_first_is_awaited() {
    let Some(world) = InboxDatabase::create().await else { return };
    world.set_up_consumer().await;
    world.insert_events(1, 5).await;
    let (upstream, database) = parts(&world);
    let upstream = upstream.to_owned();
    let address = {
        let free = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        free.local_addr().expect("its address")
    };
    let url = format!("postgresql://postgres@{address}/{database}");
    let relay = world.relay(["--database-url", &url]).start();
    let consumer = world.consumer(["--database-url", &url]).with_http().start();
    relay.wait_for_line(DEADLINE, "cannot start yet").await;
    consumer.wait_for_line(DEADLINE, "cannot start yet").await;
    let listener = TcpListener::bind(address).await.expect("the port is still free");
    let mut tasks = JoinSet::new();
    tasks.spawn(forward(listener, upstream));
    world.wait_applied(5).await;
    world.assert_applied_exactly_once().await;
}

/// Limits the descriptors of a process to those below its first free one.
fn take_descriptors(pid: u32) -> Option<()> {
    let open: Vec<u32> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    let free = (0..).find(|number| !open.contains(number))?;
    let limit = format!("--nofile={free}");
    let done = Command::new("prlimit").args(["--pid", &pid.to_string(), &limit]).status();
    done.is_ok_and(|status| status.success()).then_some(())
}

#[tokio::test]
async fn a_relay_without_free_descriptors_is_not_ready_and_says_so() {
    let Some(world) = InboxDatabase::create().await else { return };
    let relay = world.start_relay([]).await;
    let body = wait_until(SLOW, "no free file descriptor in /readyz", async || {
        take_descriptors(relay.pid())?;
        let (code, body) = http_get(relay.http_address(), "/readyz").await.ok()?;
        (code == 503 && body.contains("no free file descriptor")).then_some(body)
    })
    .await;
    assert!(body.contains("ulimit -n"), "{body}");
    relay.wait_for_http(DEADLINE, "/livez", 200).await;
}

/// Starts a server with these settings, and an outbox with a failover slot.
async fn server_with(settings: &[(&str, &str)]) -> Option<(PrivatePostgres, InboxDatabase)> {
    let installation = installation_or_skip()?;
    if installation.major < 17 {
        return walrelay_testkit::skip("failover slots need Postgres 17");
    }
    let settings = [&[("wal_level", "logical")][..], settings].concat();
    let server = PrivatePostgres::start(&installation, &settings).expect("a server");
    let world = InboxDatabase::create_empty_at(&server.url("postgres")).await?;
    world.succeed(["init", "--failover"]).await;
    Some((server, world))
}

#[tokio::test]
async fn a_server_that_does_not_send_is_named_with_its_notice_and_no_topic_is_blamed() {
    let missing = [("synchronized_standby_slots", "missing")];
    let Some((_server, world)) = server_with(&missing).await else { return };
    let relay = world.start_relay([]).await;
    rows_from(&world, 0, 10).await;
    let reason = wait_for_reason(&relay, "has not sent").await;
    assert!(reason.contains("synchronized_standby_slots"), "{reason}");
    assert!(reason.contains("missing"), "the notice of the server: {reason}");
    relay
        .wait_for_metrics(DEADLINE, |text| {
            let line =
                text.lines().find(|line| line.starts_with("walrelay_unsent_wal_age_seconds"));
            let age = line.and_then(|line| line.split(' ').next_back()?.parse::<f64>().ok());
            age.is_some_and(|age| age > 20.0)
        })
        .await;
    let status = wait_until(DEADLINE, "status to name the stall", async || {
        let status = world.run(["status", "--output", "json"]).await.text;
        let status: serde_json::Value = serde_json::from_str(&status).ok()?;
        status["headline"].as_str()?.contains("has not sent").then_some(status)
    })
    .await;
    assert_eq!(status["next_step"]["code"], "server-stalled", "{status:#}");
    world.execute("ALTER SYSTEM RESET synchronized_standby_slots").await;
    world.execute("ALTER SYSTEM SET synchronized_standby_slots = ''").await;
    world.execute("SELECT pg_reload_conf()").await;
    world.pubsub.wait_stored(DEADLINE, 10).await;
    relay.wait_for_http(DEADLINE, "/readyz", 200).await;
}

#[tokio::test]
async fn commits_that_wait_for_a_missing_standby_are_named_and_no_topic_is_blamed() {
    let Some((_server, world)) = server_with(&[]).await else { return };
    let relay = world.start_relay([]).await;
    rows_from(&world, 0, 10).await;
    world.pubsub.wait_stored(DEADLINE, 10).await;
    let watching = world.connect().await;
    watching.run("ALTER SYSTEM SET synchronous_standby_names = 'missing'").await;
    watching.run("SELECT pg_reload_conf()").await;
    let producer = world.connect().await;
    let (_, reason) = tokio::join!(
        async {
            let sql =
                "INSERT INTO app_outbox (aggregatetype, aggregateid, event_type, version, payload)
                       VALUES ('video', 'k', 'made', 1, '{}')";
            // It waits until the setting is corrected.
            producer.run(sql).await;
        },
        async {
            let reason = wait_for_reason(&relay, "synchronous standby").await;
            let status = world.run(["status"]).await.text;
            assert!(status.contains("synchronous standby"), "{status}");
            assert!(!status.contains("topic answers"), "{status}");
            watching.run("ALTER SYSTEM SET synchronous_standby_names = ''").await;
            watching.run("SELECT pg_reload_conf()").await;
            reason
        }
    );
    assert!(reason.contains("synchronous_standby_names"), "{reason}");
    relay.wait_for_http(DEADLINE, "/readyz", 200).await;
    world.pubsub.wait_stored(DEADLINE, 11).await;
}

#[tokio::test]
async fn the_text_of_a_server_that_ends_sessions_reaches_the_log_and_the_reasons() {
    let Some(world) = InboxDatabase::create().await else { return };
    let relay = world.start_relay(["--rate", "10"]).await;
    // More than the relay reads ahead, so that the text is behind rows that it does not read yet. The
    // rows and the text fit into the buffer of the socket, because TCP loses the rest.
    rows_from(&world, 0, 200).await;
    let end = format!(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{}'",
        world.name()
    );
    world.execute(&end).await;
    relay.wait_for_line(DEADLINE, "terminating connection due to administrator command").await;
}
