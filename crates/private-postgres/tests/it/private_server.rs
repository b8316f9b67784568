//! Tests a private server on the real binaries: start, crash, restart, and removal in every case.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tokio_postgres::{NoTls, SimpleQueryMessage};
use walrelay_private_postgres::{Installation, PrivatePostgres, StartError, installations};

#[test]
fn a_server_starts_ready_for_logical_replication_and_obeys_the_callers_settings() {
    let Some(installation) = installation() else { return };
    let server = PrivatePostgres::start(&installation, &[("wal_sender_timeout", "3s")]).unwrap();

    assert_eq!(query(&server, "SHOW wal_level"), "logical");
    assert_eq!(query(&server, "SHOW wal_sender_timeout"), "3s");
    assert_eq!(query(&server, "SHOW fsync"), "off");
    let version = query(&server, "SHOW server_version_num");
    assert!(version.starts_with(&installation.major.to_string()), "{version}");
}

#[test]
fn dropping_a_server_frees_its_port_and_removes_its_folder() {
    let Some(installation) = installation() else { return };
    let server = PrivatePostgres::start(&installation, &[]).unwrap();
    let (port, folder) = (server.port(), server.socket_dir().to_path_buf());

    drop(server);

    assert_gone(port, &folder);
}

#[test]
fn committed_rows_survive_a_crash_and_a_restart_on_the_same_port() {
    let Some(installation) = installation() else { return };
    let mut server = PrivatePostgres::start(&installation, &[]).unwrap();
    let port = server.port();
    query(&server, "CREATE TABLE kept AS SELECT 'before' AS value; SELECT 1");

    server.crash().unwrap();
    assert!(!server.is_running());
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    server.restart().unwrap();

    assert_eq!(server.port(), port);
    assert_eq!(query(&server, "SELECT value FROM kept"), "before");
    server.stop_fast().unwrap();
    server.restart().unwrap();
    assert_eq!(query(&server, "SELECT value FROM kept"), "before");
}

#[test]
fn two_servers_run_side_by_side_and_only_one_made_by_initdb_has_its_own_identity() {
    let Some(installation) = installation() else { return };
    let identity = "SELECT system_identifier::text FROM pg_control_system()";
    let first = PrivatePostgres::start(&installation, &[]).unwrap();
    let second = PrivatePostgres::start(&installation, &[]).unwrap();
    let other = PrivatePostgres::start_with_own_identity(&installation, &[]).unwrap();

    assert_ne!(first.port(), second.port());
    assert_eq!(query(&first, identity), query(&second, identity));
    assert_ne!(query(&first, identity), query(&other, identity));
}

#[test]
fn a_server_that_cannot_start_says_why() {
    let Some(installation) = installation() else { return };
    let error = PrivatePostgres::start(&installation, &[("wal_level", "nonsense")]).unwrap_err();
    assert!(matches!(error, StartError::Ended { .. }), "{error:?}");
    assert!(error.to_string().contains("wal_level"), "{error}");
}

#[test]
fn every_installation_on_the_machine_starts() {
    for installation in installations() {
        let server = PrivatePostgres::start(&installation, &[]).unwrap();
        assert_eq!(query(&server, "SELECT 'up'"), "up");
    }
}

#[test]
fn the_server_ends_when_its_owner_is_killed() {
    if installation().is_none() {
        return;
    }
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "private_server::owner_of_a_server", "--ignored", "--nocapture"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let announcement = BufReader::new(owner.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok)
        .find_map(|line| line.split_once("owns ").map(|(_, rest)| rest.to_owned()))
        .expect("the owner announces its server");
    let (port, folder) = announcement.split_once(' ').unwrap();
    let (port, folder) = (port.parse().unwrap(), PathBuf::from(folder));
    TcpStream::connect(("127.0.0.1", port)).unwrap();

    // After SIGKILL no destructor runs.
    owner.kill().unwrap();
    owner.wait().unwrap();

    assert_gone(port, &folder);
}

/// The process that the test above kills, not a test of its own.
#[test]
#[ignore = "run by the_server_ends_when_its_owner_is_killed"]
fn owner_of_a_server() {
    let Some(installation) = installation() else { return };
    let server = PrivatePostgres::start(&installation, &[]).unwrap();
    let announcement = format!("owns {} {}\n", server.port(), server.socket_dir().display());
    std::io::stdout().write_all(announcement.as_bytes()).unwrap();
    // Ends at the latest with its parent.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

fn installation() -> Option<Installation> {
    let found = installations().into_iter().next();
    if found.is_none() {
        eprintln!("skipped: no Postgres server binaries on this machine");
    }
    found
}

fn query(server: &PrivatePostgres, sql: &str) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let (client, connection) =
            tokio_postgres::connect(&server.url("postgres"), NoTls).await.expect("a connection");
        let messages = tokio::select! {
            messages = client.simple_query(sql) => messages.expect("the query succeeds"),
            ended = connection => panic!("the connection ended: {ended:?}"),
        };
        let value = messages.iter().find_map(|message| {
            if let SimpleQueryMessage::Row(row) = message { row.get(0) } else { None }
        });
        value.expect("a row with a value").to_owned()
    })
}

#[expect(clippy::disallowed_methods, reason = "there is no runtime to block")]
fn assert_gone(port: u16, folder: &Path) {
    let started = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_ok() || folder.exists() {
        assert!(started.elapsed() < Duration::from_secs(20), "{port} or {folder:?} is still there");
        std::thread::sleep(Duration::from_millis(10));
    }
}
