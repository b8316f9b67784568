//! `walrelay dispatch show`.

use clap::Args;
use walrelay_pg_client::TableAccess;

use super::rows::in_session;
use crate::commands::failed_events::show;
use crate::commands::shared::cancellable::run_until_shutdown;
use crate::config::Checks;
use crate::options::values::event_id;
use crate::options::{ARGUMENTS, DatabaseOptions, OutputOptions};
use crate::plan::Plan;

/// Show one row: the decoded message and its history of errors.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Example:\n  walrelay dispatch show 6f1c9a9e-…"
)]
pub(crate) struct Show {
    /// Event id of the row.
    #[arg(value_name = "ID", value_parser = event_id)]
    id: String,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    database: DatabaseOptions,
}

impl Show {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let database = checks.database(&self.database)?;
        Some(Plan::new(async move |shutdown| {
            in_session(&database, TableAccess::Read, shutdown, async |rows, client| {
                let shown = show(rows, client, &self.id, self.output.output);
                run_until_shutdown(shown, shutdown).await
            })
            .await
        }))
    }
}
