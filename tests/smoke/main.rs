//! The smoke test against Google's Pub/Sub, with anyone's own credentials: `make smoke-gcp`.
//!
//! ```text
//! traffic ──▶ app_outbox ──▶ walrelay run ──▶ Pub/Sub ──┬──▶ walrelay consumer run ──▶ applied
//!    │                                                  └──▶ Google's client             │
//!    └─ committed rows ──────────────────────▶ compared by the checker ◀─────────────────┘
//! ```
//!
//! Everything has one random name: topics, subscriptions, schema, slot and publication. With
//! `PUBSUB_EMULATOR_HOST`, the same program runs against an emulator, as a test of itself.

mod google;
mod report;
mod smoke;
mod steps;

use std::io::Write as _;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::signal::unix::{SignalKind, signal};
use walrelay_private_postgres::PrivatePostgres;
use walrelay_testkit::postgres::default_installation;
use walrelay_testkit::variable;

use report::Failure;
use smoke::Smoke;

const CLEAN_UP: (&str, &str) =
    ("clean up", "topics, subscriptions, slot, publication and schema are deleted");

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match Box::pin(execute()).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("smoke-gcp: {failure}");
            ExitCode::from(2)
        }
    }
}

/// Runs all steps, cleans up, and prints the table. Returns whether every step is ok.
async fn execute() -> Result<bool, Failure> {
    let mut words = std::env::args().skip(1);
    let (Some(project), Some(seconds), None) = (words.next(), words.next(), words.next()) else {
        return Err("usage: smoke-gcp PROJECT SECONDS, as `make smoke-gcp PROJECT=…` does".into());
    };
    // Both are caught until the end, also during the clean-up.
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let (_server, url) = match variable("DATABASE_URL") {
        Some(url) => (None, url),
        None => {
            let installation =
                default_installation().ok_or("install Postgres or set DATABASE_URL")?;
            let server = PrivatePostgres::start(&installation, &[])?;
            let url = server.url("postgres");
            (Some(server), url)
        }
    };
    let smoke = Smoke::connect(&project, Duration::from_secs(seconds.parse()?), url).await?;
    eprintln!("Everything of this run is called {}.", smoke.name);

    tokio::select! {
        biased;
        _ = interrupt.recv() => eprintln!("interrupted: cleaning up"),
        _ = terminate.recv() => eprintln!("terminated: cleaning up"),
        ended = AssertUnwindSafe(Box::pin(steps::run(&smoke))).catch_unwind() => {
            if ended.is_err() {
                eprintln!("a step panicked: cleaning up");
            }
        }
    }
    smoke.report.step(CLEAN_UP, smoke.clean_up()).await;
    write!(std::io::stdout(), "\n{}\n\n{}", smoke.about, smoke.report.table())?;
    Ok(smoke.report.is_ok())
}
