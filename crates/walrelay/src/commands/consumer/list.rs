//! `walrelay consumer list`.

use clap::Args;
use serde::Serialize;
use walrelay_inbox_admin::admin::{self, RegisteredConsumer};
use walrelay_pg_client::{ConnectConfig, SqlClient};
use walrelay_relay::shutdown::Shutdown;

use crate::commands::shared::cancellable::run_until_shutdown;
use crate::commands::shared::session::in_shared_session;
use crate::config::{Checks, OutputFormat};
use crate::error::Error;
use crate::options::{ConnectionOptions, OutputOptions};
use crate::output::print_result;
use crate::output::table::columns;
use crate::output::text::visible;
use crate::plan::Plan;

/// List the consumers of the database.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  walrelay consumer list")]
pub(crate) struct List {
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    connection: ConnectionOptions,
}

impl List {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let connect = checks.connect(&self.connection)?;
        Some(Plan::new(async move |shutdown| self.run(&connect, shutdown).await))
    }

    async fn run(&self, connect: &ConnectConfig, shutdown: &Shutdown) -> Result<(), Error> {
        in_shared_session(connect, shutdown, async |client| {
            run_until_shutdown(list(client, self.output.output), shutdown).await
        })
        .await
    }
}

#[derive(Debug, Serialize)]
struct ListedConsumer<'a> {
    consumer: &'a str,
    subscription: &'a str,
    is_rebuilding: bool,
}

impl<'a> ListedConsumer<'a> {
    fn of(it: &'a RegisteredConsumer) -> Self {
        let is_rebuilding = it.rebuild.is_some();
        Self { consumer: &it.consumer, subscription: &it.subscription, is_rebuilding }
    }
}

async fn list(client: &SqlClient, format: OutputFormat) -> Result<(), Error> {
    let found = admin::registered(client, None).await.map_err(Error::Inbox)?;
    let listed: Vec<_> = found.iter().map(ListedConsumer::of).collect();
    print_result(format, &listed, || {
        let cells = |it: &RegisteredConsumer| {
            let rebuild = if it.rebuild.is_some() { "unfinished" } else { "-" };
            [visible(&it.consumer), visible(&it.subscription), rebuild.to_owned()]
        };
        if found.is_empty() {
            return "there is no consumer\n".to_owned();
        }
        let rows: Vec<_> = found.iter().map(cells).collect();
        columns(["CONSUMER", "SUBSCRIPTION", "REBUILD"], &rows)
    })
}

#[cfg(test)]
mod tests {
    use walrelay_testkit::json_page::assert_documented;

    use super::*;

    #[test]
    fn the_json_is_documented() {
        let listed = ListedConsumer { consumer: "c", subscription: "s", is_rebuilding: true };
        assert_documented("consumer list", &[listed]);
    }
}
