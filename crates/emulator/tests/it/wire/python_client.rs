//! Runs `python_client.py` if a Python with `google-cloud-pubsub` exists. Otherwise reports the
//! test as skipped.
//!
//! `WALRELAY_TEST_PYTHON` selects the Python. The default is `python3`.
#![expect(clippy::disallowed_methods, reason = "a test is configured by its environment")]
#![expect(clippy::print_stdout, reason = "a test that is skipped has to say so")]

use std::process::{Command, Stdio};

use super::support::Server;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/wire/python_client.py");

#[tokio::test]
async fn the_official_python_client_publishes_and_receives() {
    let python = std::env::var("WALRELAY_TEST_PYTHON").unwrap_or("python3".to_owned());
    let mut probe = Command::new(&python);
    probe.args(["-c", "import google.cloud.pubsub_v1"]).stderr(Stdio::null());
    if !probe.status().is_ok_and(|status| status.success()) {
        println!("skipped: {python} has no google-cloud-pubsub");
        return;
    }
    let server = Server::start().await;

    let mut script = Command::new(&python);
    script.arg(SCRIPT).env("PUBSUB_EMULATOR_HOST", server.address.to_string());
    // The script has deadlines of its own, so this call returns.
    let output = tokio::task::spawn_blocking(move || script.output()).await.unwrap().unwrap();

    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.ends_with("ok\n"), "{text}\n{errors}");
    assert_eq!(server.emulator.stats().in_flight_per_key_max, 1);
}
