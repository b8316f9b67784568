//! `walrelay consumer scaffold`.

use clap::Args;
use walrelay_inbox_admin::Scaffold as Scaffolded;
use walrelay_pg_client::{ConnectConfig, QualifiedName, SqlClient};
use walrelay_relay::shutdown::Shutdown;

use crate::commands::shared::cancellable::run_until_shutdown;
use crate::commands::shared::session::in_shared_session;
use crate::config::Checks;
use crate::error::Error;
use crate::options::values::text_form;
use crate::options::{ARGUMENTS, ConnectionOptions};
use crate::output::print;
use crate::plan::Plan;

/// Print a handler function to start from: a version-gated UPSERT for a table.
///
/// Where the database has the roles of a web API, anon and authenticated, it also takes the function from them, and
/// warns of a table that is open to them.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Example:\n  walrelay consumer scaffold shop.orders > handler.sql"
)]
pub(crate) struct Scaffold {
    /// The table that the handler is to keep up to date, `schema.table`.
    #[arg(value_name = "TABLE", value_parser = text_form::<QualifiedName>)]
    table: QualifiedName,
    #[command(flatten)]
    connection: ConnectionOptions,
}

impl Scaffold {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let connect = checks.connect(&self.connection)?;
        Some(Plan::new(async move |shutdown| self.run(&connect, shutdown).await))
    }

    async fn run(&self, connect: &ConnectConfig, shutdown: &Shutdown) -> Result<(), Error> {
        in_shared_session(connect, shutdown, async |client| {
            run_until_shutdown(scaffold(client, &self.table), shutdown).await
        })
        .await
    }
}

async fn scaffold(client: &SqlClient, table: &QualifiedName) -> Result<(), Error> {
    let Scaffolded { sql, closing } = walrelay_inbox_admin::scaffold(client, table).await?;
    print(&sql)?;
    if let Some(closing) = closing {
        // The printed SQL goes into a file, and may be run unread, so the warning goes to the log.
        tracing::warn!(
            "the table {table} is open to the roles of the web API, by default privileges; unless that is meant: {closing}"
        );
    }
    Ok(())
}
