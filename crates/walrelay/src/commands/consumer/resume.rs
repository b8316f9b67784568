//! `walrelay consumer resume`.

use clap::Args;
use walrelay_inbox_admin::admin;
use walrelay_pg_client::ConnectConfig;
use walrelay_relay::shutdown::Shutdown;

use super::pause::PausedJson;
use crate::commands::shared::cancellable::run_until_shutdown;
use crate::commands::shared::session::in_shared_session;
use crate::config::Checks;
use crate::error::Error;
use crate::options::values::consumer_name;
use crate::options::{ARGUMENTS, ConnectionOptions, OutputOptions};
use crate::output::print_result;
use crate::plan::Plan;

/// Resume a paused consumer; running instances notice within a second.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Example:\n  walrelay consumer resume billing"
)]
pub(crate) struct Resume {
    /// Name of the consumer.
    #[arg(value_name = "NAME", value_parser = consumer_name)]
    name: String,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    connection: ConnectionOptions,
}

impl Resume {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let connect = checks.connect(&self.connection)?;
        Some(Plan::new(async move |shutdown| self.run(&connect, shutdown).await))
    }

    async fn run(&self, connect: &ConnectConfig, shutdown: &Shutdown) -> Result<(), Error> {
        in_shared_session(connect, shutdown, async |client| {
            let name = &self.name;
            let resumed = async { admin::resume(client, name).await.map_err(Error::Inbox) };
            run_until_shutdown(resumed, shutdown).await?;
            let result = PausedJson { consumer: name, is_paused: false };
            print_result(self.output.output, &result, || format!("resumed: consumer {name}\n"))
        })
        .await
    }
}
