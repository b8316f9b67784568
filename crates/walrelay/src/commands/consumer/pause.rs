//! `walrelay consumer pause`.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tokio::time::{Instant, sleep};
use walrelay_errors::Code;
use walrelay_inbox_admin::admin;
use walrelay_pg_client::{ConnectConfig, SqlClient};
use walrelay_relay::shutdown::Shutdown;

use crate::commands::shared::cancellable::attended;
use crate::commands::shared::session::in_shared_session;
use crate::config::{Checks, OutputFormat};
use crate::error::Error;
use crate::options::units::show_duration;
use crate::options::values::consumer_name;
use crate::options::{ARGUMENTS, ConnectionOptions, OutputOptions};
use crate::output::print_result;
use crate::plan::Plan;

/// Longest time that a pause waits for running batches. By default a handler may run for a minute.
const PAUSE_WAIT_MAX: Duration = Duration::from_mins(2);
/// Pause between attempts to get the lock.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// Pause the consumer: no instance applies events until it is resumed.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Example:\n  walrelay consumer pause billing"
)]
pub(crate) struct Pause {
    /// Name of the consumer.
    #[arg(value_name = "NAME", value_parser = consumer_name)]
    name: String,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    connection: ConnectionOptions,
}

impl Pause {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let connect = checks.connect(&self.connection)?;
        Some(Plan::new(async move |shutdown| self.run(&connect, shutdown).await))
    }

    async fn run(&self, connect: &ConnectConfig, shutdown: &Shutdown) -> Result<(), Error> {
        in_shared_session(connect, shutdown, async |client| {
            let work = pause(client, &self.name, self.output.output);
            attended(connect, client, work, shutdown).await
        })
        .await
    }
}

#[derive(Debug, Serialize)]
pub(super) struct PausedJson<'a> {
    pub(super) consumer: &'a str,
    pub(super) is_paused: bool,
}

/// Pauses the consumer, and waits for batches that began before: they may still commit.
async fn pause(client: &SqlClient, name: &str, format: OutputFormat) -> Result<(), Error> {
    admin::pause(client, name).await.map_err(Error::Inbox)?;
    let deadline = Instant::now() + PAUSE_WAIT_MAX;
    loop {
        match admin::quiesce(client, name).await {
            Ok(()) => {
                let result = PausedJson { consumer: name, is_paused: true };
                return print_result(format, &result, || format!("paused: consumer {name}\n"));
            }
            Err(error) if error.is_in_the_way() && Instant::now() < deadline => {
                sleep(AGAIN_AFTER).await;
            }
            Err(error) if error.is_in_the_way() => {
                let what = format!(
                    "consumer {name} is paused, but a batch that began before has not ended within {}",
                    show_duration(PAUSE_WAIT_MAX)
                );
                return Err(Error::refused(Code::ConsumerBatchRunning, what));
            }
            Err(error) => return Err(Error::Inbox(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    #[test]
    fn the_json_is_documented() {
        let paused = PausedJson { consumer: "c", is_paused: true };
        assert_documented("consumer pause and resume", &paused);
    }
}
