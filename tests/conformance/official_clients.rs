//! The official Go and Java clients against the embedded Pub/Sub. Their programs are in `clients`,
//! and `scripts/install-clients.sh` builds them.

use std::path::{Path, PathBuf};
use std::process::Command;

use walrelay_testkit::process::clean_command;
use walrelay_testkit::skip;
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

/// Runs a program. It limits its own time, so this call returns.
async fn every_check_passes(mut program: Command) {
    let service = PubSub::start();
    program.env("PUBSUB_EMULATOR_HOST", service.address());
    let output = tokio::task::spawn_blocking(move || program.output()).await;
    let output = output.expect("no panic").expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let passed: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("ok: ")).collect();
    assert_eq!(passed, CHECKS, "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}");
}

#[tokio::test]
async fn the_official_go_client_passes_every_check() {
    let Some(program) = installed("go/conformance") else { return };
    every_check_passes(clean_command(program)).await;
}

#[tokio::test]
async fn the_official_java_client_passes_every_check() {
    if installed("java/conformance/built").is_none() {
        return;
    }
    let Some(libraries) = installed("java/conformance/lib") else { return };
    let classes = libraries.with_file_name("classes");
    let mut java = clean_command("java");
    java.arg("-cp").arg(format!("{}:{}/*", classes.display(), libraries.display()));
    java.arg("Conformance");
    every_check_passes(java).await;
}
