//! The official Go and Java clients against the embedded Pub/Sub. Their programs are in `clients`,
//! and `scripts/install-clients.sh` builds them.

use std::path::{Path, PathBuf};
use std::process::Command;

use walrelay_testkit::process::clean_command;
use walrelay_testkit::{long_run_or_skip, skip};
use walrelay_tests::PubSub;

/// The checks that both programs make, in their order.
const CHECKS: [&str; 11] = [
    "messages arrive as they were published",
    "a rejected message is redelivered",
    "messages of a key arrive in order",
    "a refused key waits until it is resumed",
    "the subscriber bounds unacknowledged messages",
    "the publisher bounds outstanding messages",
    "exactly-once acknowledgements are confirmed",
    "compressed requests are accepted",
    "topics and subscriptions are administered",
    "settings that production refuses are refused",
    "a subscription returns to a snapshot",
];

/// Returns the path of a file that `scripts/install-clients.sh` builds, or reports the test as
/// skipped.
fn installed(file: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.servers/clients").join(file);
    match path.exists() {
        true => Some(path),
        false => skip(&format!("{file} is not built; scripts/install-clients.sh shows the reason")),
    }
}

/// The check that takes more than a minute.
const IDLE: [&str; 1] = ["an idle subscriber receives after 70 s"];

/// Returns the official Go client.
fn go() -> Option<Command> {
    installed("go/conformance").map(clean_command)
}

/// Returns the official Java client.
fn java() -> Option<Command> {
    installed("java/conformance/built")?;
    let libraries = installed("java/conformance/lib")?;
    let classes = libraries.with_file_name("classes");
    let mut java = clean_command("java");
    java.arg("-cp").arg(format!("{}:{}/*", classes.display(), libraries.display()));
    java.arg("Conformance");
    Some(java)
}

/// Runs a program. It limits its own time, so this call returns.
async fn every_check_passes(mut program: Command, service: &PubSub, checks: &[&str]) {
    program.env("PUBSUB_EMULATOR_HOST", service.address());
    let output = tokio::task::spawn_blocking(move || program.output()).await;
    let output = output.expect("no panic").expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let passed: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("ok: ")).collect();
    assert_eq!(passed, checks, "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}");
}

#[tokio::test]
async fn the_official_go_client_passes_every_check() {
    let Some(program) = go() else { return };
    every_check_passes(program, &PubSub::start(), &CHECKS).await;
}

#[tokio::test]
async fn the_official_java_client_passes_every_check() {
    let Some(program) = java() else { return };
    every_check_passes(program, &PubSub::start(), &CHECKS).await;
}

/// A client whose pings are not answered opens its stream again after 20 s.
async fn an_idle_client_keeps_its_stream(program: Option<Command>) {
    let (Some(()), Some(mut program)) = (long_run_or_skip(), program) else { return };
    let service = PubSub::start();
    // This fault only counts the streams.
    service.fault("on=streaming-pull,delay=0ms");
    program.arg("idle");
    every_check_passes(program, &service, &IDLE).await;
    let opened: Vec<u64> = service.emulator().faults().iter().map(|fault| fault.hits).collect();
    assert_eq!(opened, [1], "the client has opened its stream again");
}

#[tokio::test]
async fn an_idle_official_go_client_keeps_its_stream() {
    an_idle_client_keeps_its_stream(go()).await;
}

#[tokio::test]
async fn an_idle_official_java_client_keeps_its_stream() {
    an_idle_client_keeps_its_stream(java()).await;
}
