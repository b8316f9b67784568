//! A running relay does not exit: it waits for an operation of another command to end, or for a
//! changed password.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use walrelay_private_postgres::PrivatePostgres;
use walrelay_testkit::outbox::Workload;
use walrelay_testkit::postgres::{TestClient, installation_or_skip};
use walrelay_testkit::relay::Relay;
use walrelay_testkit::{http_get, wait_until};
use walrelay_tests::{DEADLINE, InboxDatabase};

/// Waits until `/readyz` reports this reason.
async fn wait_for_reason(relay: &Relay, reason: &str) -> String {
    wait_until(DEADLINE, &format!("{reason:?} in /readyz"), async || {
        let body = relay.wait_for_http(DEADLINE, "/readyz", 503).await;
        body.contains(reason).then_some(body)
    })
    .await
}

async fn rows_from(world: &InboxDatabase, first_number: u32, count: u32) {
    let rows = Workload { first_number, ..Workload::of_rows(count) };
    rows.insert(world.client()).await.expect("rows");
}

#[tokio::test]
async fn a_relay_waits_for_the_recovery_of_a_lost_slot_and_then_streams() {
    let Some(world) = InboxDatabase::create().await else { return };
    rows_from(&world, 0, 10).await;
    world.catch_up().await;
    world.execute(&format!("SELECT pg_drop_replication_slot('{}')", world.name())).await;
    rows_from(&world, 10, 10).await;

    let relay = world.relay([]).start();
    let reason = wait_for_reason(&relay, "waiting:").await;
    assert!(reason.contains("Run `walrelay slot recover`"), "{reason}");
    relay.wait_for_http(DEADLINE, "/livez", 200).await;
    let phase = "walrelay_phase{phase=\"waiting\"} 1";
    assert!(relay.wait_for_http(DEADLINE, "/metrics", 200).await.contains(phase));
    // A run with `--until-caught-up` reports the lost slot by its exit code.
    let ends = world.run(["run", "--until-caught-up"]).await;
    assert_eq!(ends.code, Some(5), "{}", ends.text);

    world.succeed(["slot", "recover", "--yes"]).await;
    rows_from(&world, 20, 10).await;
    relay.wait_for_line(DEADLINE, "the slot is recovered").await;
    world.wait_confirmed(DEADLINE).await;
    let verdict = world.check(&world.committed().await);
    assert!(verdict.lost.is_empty() && verdict.reordered.is_empty(), "{verdict}");
    let lines = relay.lines();
    let waits = lines.iter().filter(|line| line.contains("waiting: nothing is published"));
    // One line per minute, and one more for each cause.
    assert!((1..=3).contains(&waits.count()), "{}", lines.join("\n"));
}

#[tokio::test]
async fn status_names_the_wait_of_a_running_relay_instead_of_advising_to_start_one() {
    let Some(world) = InboxDatabase::create().await else { return };
    let relay = world.start_relay([]).await;
    world.execute("ALTER TABLE app_outbox_dispatch SET UNLOGGED").await;
    wait_for_reason(&relay, "app_outbox_dispatch is unlogged").await;
    let name = world.name();
    world
        .execute(&format!(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{name}'"
        ))
        .await;
    wait_for_reason(&relay, "waiting:").await;
    let status = wait_until(DEADLINE, "status to name the wait", async || {
        let status = world.run(["status", "--output", "json"]).await.text;
        let status: serde_json::Value = serde_json::from_str(&status).ok()?;
        status["headline"].as_str()?.contains("a running relay waits: ").then_some(status)
    })
    .await;
    assert_eq!(status["next_step"]["code"], "dispatch-table-unlogged", "{status:#}");
    let text = world.run(["status"]).await.text;
    assert!(!text.contains("start the relay"), "{text}");

    world.execute("ALTER TABLE app_outbox_dispatch SET LOGGED").await;
    relay.wait_for_http(DEADLINE, "/readyz", 200).await;
    let streaming = world.succeed(["status"]).await;
    assert!(streaming.starts_with("streaming"), "{streaming}");
}

#[tokio::test]
async fn a_relay_that_was_started_to_wait_for_an_upgrade_survives_the_restart_of_the_server() {
    let Some(installation) = installation_or_skip() else { return };
    let settings = [("wal_level", "logical")];
    let mut server = PrivatePostgres::start(&installation, &settings).expect("a server");
    let Some(mut world) = InboxDatabase::create_at(&server.url("postgres")).await else { return };
    rows_from(&world, 0, 10).await;
    world.catch_up().await;
    world.succeed(["slot", "release", "--yes"]).await;
    let relay = world.relay([]).start();
    wait_for_reason(&relay, "a release").await;

    server.stop_fast().expect("it stops");
    relay.wait_for_line(DEADLINE, "session broke off").await;
    server.restart().expect("it comes back");
    world.reconnect().await;
    // Simulates `pg_upgrade`: the same database, and another system identifier.
    world
        .execute(
            "UPDATE app_outbox_relay SET system_identifier = '1',
               operation = jsonb_set(operation, '{system_identifier}', '\"1\"')",
        )
        .await;
    rows_from(&world, 10, 10).await;
    wait_for_reason(&relay, "walrelay slot recover").await;
    world.succeed(["slot", "recover", "--yes"]).await;
    world.wait_confirmed(DEADLINE).await;
    let verdict = world.check(&world.committed().await);
    assert!(verdict.lost.is_empty() && verdict.reordered.is_empty(), "{verdict}");
    drop(relay);
    drop(world);
}

/// Long enough for the check of the consumer's row, and for two failures of it.
const NOTICED_WITHIN: Duration = Duration::from_secs(20);

/// A password file that is removed with the test.
struct PasswordFile(PathBuf);

impl PasswordFile {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("walrelay-passfile-{name}")))
    }

    fn write(&self, password: &str) {
        fs::write(&self.0, format!("*:*:*:rotating:{password}\n")).expect("a file");
    }
}

impl Drop for PasswordFile {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.0));
    }
}

/// Starts a server that requires a password from the role `rotating`, with an outbox.
async fn server_with_passwords() -> Option<(PrivatePostgres, InboxDatabase)> {
    let installation = installation_or_skip()?;
    let settings = [("wal_level", "logical"), ("password_encryption", "scram-sha-256")];
    let server = PrivatePostgres::start(&installation, &settings).expect("a server");
    let world = InboxDatabase::create_at(&server.url("postgres")).await?;
    world.execute("CREATE ROLE rotating SUPERUSER LOGIN PASSWORD 'first'").await;
    world
        .execute(
            "COPY (SELECT 'host all rotating 127.0.0.1/32 scram-sha-256' UNION ALL
                   SELECT 'host replication rotating 127.0.0.1/32 scram-sha-256' UNION ALL
                   SELECT 'host all all 127.0.0.1/32 trust' UNION ALL
                   SELECT 'local all all trust') TO PROGRAM 'cat > pg_hba.conf'",
        )
        .await;
    world.execute("SELECT pg_reload_conf()").await;
    Some((server, world))
}

/// Changes the password, and ends the sessions of the role until a service notices. A session that
/// was authenticated with the old password a moment ago is not listed yet, so one round is not
/// enough.
async fn rotate_until_noticed(world: &InboxDatabase, service: &Relay) {
    world.execute("ALTER ROLE rotating PASSWORD 'second'").await;
    let sessions =
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'rotating'";
    wait_until(NOTICED_WITHIN, "a refused password in /readyz", async || {
        world.execute(sessions).await;
        let (code, body) = http_get(service.http_address(), "/readyz").await.ok()?;
        (code == 503 && body.contains("password authentication failed")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_rotated_password_is_read_from_the_file_before_the_next_connection() {
    let Some((server, world)) = server_with_passwords().await else { return };
    let (port, name) = (server.port(), world.name());
    let url = format!("postgresql://rotating@127.0.0.1:{port}/{name}?sslmode=disable");
    let file = PasswordFile::new(name);
    file.write("first");
    let path = file.0.to_str().expect("a path");
    world.set_up_consumer().await;
    let with_file = |command: walrelay_testkit::relay::RelayCommand| {
        command.env("DATABASE_URL", &url).env("PGPASSFILE", path).start()
    };
    let relay = with_file(world.relay([]));
    relay.wait_for_line(DEADLINE, "\"streaming\"").await;
    let consumer = with_file(world.consumer([]).with_http());
    consumer.wait_for_http(DEADLINE, "/readyz", 200).await;

    rotate_until_noticed(&world, &relay).await;
    // The session that ends may have met the refusal first.
    wait_until(NOTICED_WITHIN, "the relay to wait", async || {
        let (_, body) = http_get(relay.http_address(), "/readyz").await.ok()?;
        body.contains("waiting:").then_some(())
    })
    .await;
    world.insert_events(5, 20).await;

    file.write("second");
    world.wait_applied(20).await;
    relay.wait_for_http(DEADLINE, "/readyz", 200).await;
    consumer.wait_for_http(DEADLINE, "/readyz", 200).await;
    drop((relay, consumer));
    drop(world);
}

#[tokio::test]
async fn an_idle_consumer_with_a_wrong_password_or_without_its_database_is_soon_not_ready() {
    let Some((server, world)) = server_with_passwords().await else { return };
    let (port, name) = (server.port(), world.name().to_owned());
    world.set_up_consumer().await;
    let start = |password: &str| {
        let url =
            format!("postgresql://rotating:{password}@127.0.0.1:{port}/{name}?sslmode=disable");
        world.consumer([]).with_http().env("DATABASE_URL", &url).start()
    };
    let refused = start("first");
    refused.wait_for_http(DEADLINE, "/readyz", 200).await;
    rotate_until_noticed(&world, &refused).await;
    drop(refused);

    let consumer = start("second");
    consumer.wait_for_http(DEADLINE, "/readyz", 200).await;
    let elsewhere = TestClient::connect(&server.url("postgres")).await;
    world.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots").await;
    elsewhere.run(&format!("DROP DATABASE \"{name}\" WITH (FORCE)")).await;
    let reason = consumer.wait_for_http(NOTICED_WITHIN, "/readyz", 503).await;
    assert!(reason.contains("does not exist"), "{reason}");
    drop((consumer, elsewhere, world));
}

#[tokio::test]
async fn relay_and_commands_write_for_a_role_whose_transactions_are_read_only() {
    let Some(world) = InboxDatabase::create().await else { return };
    let name = world.name();
    let alter = format!("ALTER DATABASE \"{name}\" SET default_transaction_read_only = on");
    world.execute(&alter).await;
    let checked = world.run(["check"]).await;
    assert!(
        checked.text.contains("ALTER ROLE … RESET default_transaction_read_only"),
        "{}",
        checked.text
    );
    rows_from(&world, 0, 10).await;
    world.catch_up().await;
    assert_eq!(world.pubsub.stored_count(), 10);
    // It also recovers its slot.
    world.execute(&format!("SELECT pg_drop_replication_slot('{name}')")).await;
    rows_from(&world, 10, 10).await;
    let relay = world.start_relay(["--on-slot-lost", "recover"]).await;
    relay.wait_for_line(DEADLINE, "the slot is recovered").await;
    world.pubsub.wait_stored(DEADLINE, 20).await;
    drop(relay);
    // Commands write, too, and leave nothing half done.
    for command in [
        &["anchor", "create", "a"][..],
        &["anchor", "drop", "a", "--yes"],
        &["slot", "release", "--yes"],
        &["slot", "recover", "--yes"],
        &["run", "--until-caught-up"],
        &["slot", "drop", "--yes"],
        &["init", "--skip-existing-rows"],
    ] {
        world.succeed(command.iter().copied()).await;
    }
    world.execute(&format!("ALTER DATABASE \"{name}\" RESET default_transaction_read_only")).await;
}
