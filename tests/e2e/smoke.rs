//! The smoke test for Google's Pub/Sub (`make smoke-gcp`), against the embedded one.

use std::process::{Command, Output, Stdio};

use walrelay_private_postgres::PrivatePostgres;
use walrelay_testkit::postgres::{TestDatabase, installation_or_skip};
use walrelay_testkit::process::{Signal, clean_command, ended, send};
use walrelay_testkit::relay::{BINARY_VARIABLE, RelayCommand, binary};
use walrelay_tests::{DEADLINE, PubSub};

/// The topic to which nobody may publish. An emulator knows no permissions, so a fault refuses.
const FORBIDDEN: &str = "projects/pubsub-public-data/topics/taxirides-realtime";

fn smoke(pubsub: &PubSub, seconds: &str) -> Option<Command> {
    // Reports the test as skipped when the binary is not built.
    drop(RelayCommand::new(["--version"])?);
    let mut command = clean_command(env!("CARGO_BIN_EXE_smoke-gcp"));
    command.args(["my-project", seconds]).env("PUBSUB_EMULATOR_HOST", pubsub.address());
    command.env(BINARY_VARIABLE, binary()?).stdin(Stdio::null()).stdout(Stdio::piped());
    Some(command)
}

/// Waits until the program has ended. Checks that it left nothing in Pub/Sub, and returns its table.
async fn finish(
    pubsub: &PubSub,
    mut command: Command,
    interrupt: Option<Signal>,
) -> (Option<i32>, String) {
    let mut child = command.spawn().expect("the program starts");
    if let Some(signal) = interrupt {
        pubsub.wait_stored(DEADLINE, 1).await;
        send(&child, signal).expect("run kill");
    }
    let status = ended(&mut child, DEADLINE).await.expect("its state");
    let Output { stdout, .. } = child.wait_with_output().expect("its output");
    let emulator = pubsub.emulator();
    let mut left = emulator.topics();
    left.retain(|topic| topic != FORBIDDEN);
    left.extend(emulator.subscriptions());
    assert!(left.is_empty(), "{left:?}");
    let table = String::from_utf8_lossy(&stdout).into_owned();
    (status.and_then(|status| status.code()), table)
}

#[tokio::test]
async fn every_step_sees_what_is_expected_and_nothing_is_left() {
    let pubsub = PubSub::start();
    pubsub.emulator().create_topic(FORBIDDEN).expect("a new topic");
    pubsub.fault("topic=taxirides-realtime,reject=PERMISSION_DENIED");
    let Some(mut command) = smoke(&pubsub, "15") else { return };
    let Some(database) = TestDatabase::create_or_skip().await else { return };
    command.env("DATABASE_URL", database.url());

    let (code, table) = finish(&pubsub, command, None).await;

    assert_eq!(code, Some(0), "{table}");
    assert_eq!(table.matches("| ok |").count(), 14, "{table}");
    assert!(table.contains("an emulator of Pub/Sub") && !table.contains("my-project"), "{table}");
    let left = "SELECT (SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'walrelay_smoke%')
        + (SELECT count(*) FROM pg_publication)
        + (SELECT count(*) FROM pg_replication_slots WHERE database = current_database())";
    let left: i64 = database.connect().await.query_one(left, &[]).await.expect("counts").get(0);
    assert_eq!(left, 0);
}

#[tokio::test]
async fn an_interrupted_run_cleans_up_and_shows_where_it_was() {
    let pubsub = PubSub::start();
    let (Some(command), Some(_)) = (smoke(&pubsub, "600"), installation_or_skip()) else { return };
    let (code, table) = finish(&pubsub, command, Some(Signal::Interrupt)).await;
    assert_eq!(code, Some(1), "{table}");
    assert!(table.contains("**interrupted**") && table.contains("| clean up |"), "{table}");
    assert!(!table.contains("**failed**"), "{table}");
}

#[tokio::test]
async fn a_failed_step_is_shown_and_the_rest_is_cleaned_up() {
    let pubsub = PubSub::start();
    let (Some(mut command), Some(installation)) = (smoke(&pubsub, "600"), installation_or_skip())
    else {
        return;
    };
    let server =
        PrivatePostgres::start(&installation, &[("wal_level", "replica")]).expect("a server");
    command.env("DATABASE_URL", server.url("postgres"));
    let (code, table) = finish(&pubsub, command, None).await;
    assert_eq!(code, Some(1), "{table}");
    assert!(table.contains("wal-level-not-logical") && table.contains("**failed**"), "{table}");
    assert_eq!(table.matches("| ok |").count(), 1, "{table}");
}
