//! `walrelay dispatch discard`.

use clap::Args;
use walrelay_outbox_store::{DispatchStatus, StateFilter};
use walrelay_pg_client::TableAccess;

use super::rows::{DispatchRowsArgs, in_session};
use crate::commands::failed_events::{BulkAction, EventSelection, act};
use crate::config::Checks;
use crate::options::values::{event_id, reason};
use crate::options::{ARGUMENTS, ChangeArgs, DatabaseOptions, ProjectOption};
use crate::plan::Plan;

/// Discard rows for good; the reason stays in the table.
///
/// Name rows by their ids, or select all dead rows that match filters. The command asks first.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Examples:\n  \
    walrelay dispatch discard 6f1c9a9e-… --reason 'test order, agreed with billing'\n  \
    walrelay dispatch discard --topic test.events --reason 'load test' --yes"
)]
pub(crate) struct Discard {
    /// Event ids.
    #[arg(value_name = "ID", value_parser = event_id)]
    ids: Vec<String>,
    /// Why; kept in the table.
    #[arg(long, value_name = "TEXT", required = true, value_parser = reason)]
    reason: String,
    #[command(flatten)]
    rows: DispatchRowsArgs,
    #[command(flatten)]
    change: ChangeArgs,
    #[command(flatten)]
    project: ProjectOption,
    #[command(flatten)]
    database: DatabaseOptions,
}

impl Discard {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let state = StateFilter::Only(DispatchStatus::Dead);
        let query = self.rows.query(checks, &self.project, state);
        let (query, options) = (self.rows.is_given().then_some(query), self.change.options());
        let chosen = EventSelection::new(checks, self.ids, query, options)?;
        let (database, reason) = (checks.database(&self.database)?, self.reason);
        Some(Plan::new(async move |shutdown| {
            in_session(&database, TableAccess::Update, shutdown, async |rows, client| {
                act(rows, client, BulkAction::Discard(&reason), &chosen, shutdown).await
            })
            .await
        }))
    }
}
