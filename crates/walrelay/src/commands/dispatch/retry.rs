//! `walrelay dispatch retry`.

use clap::Args;
use walrelay_outbox_store::{DispatchStatus, StateFilter};
use walrelay_pg_client::TableAccess;

use super::rows::{DispatchRowsArgs, in_session};
use crate::commands::failed_events::{BulkAction, EventSelection, act};
use crate::config::Checks;
use crate::options::values::event_id;
use crate::options::{ARGUMENTS, ChangeArgs, DatabaseOptions, ProjectOption};
use crate::plan::Plan;

/// Make rows due at once; dead rows get a new round of attempts.
///
/// Not rows with BAD_HEADERS or TOO_LARGE: they were recorded without a part, and edit completes them.
///
/// Name rows by their ids, or select all dead and retrying rows that match filters. A selection asks first.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Examples:\n  walrelay dispatch retry 6f1c9a9e-…\n  \
    walrelay dispatch retry --all-dead\n  walrelay dispatch retry --topic order.events"
)]
pub(crate) struct Retry {
    /// Event ids.
    #[arg(value_name = "ID", value_parser = event_id)]
    ids: Vec<String>,
    /// Every dead row of this slot.
    #[arg(long, conflicts_with = "status")]
    all_dead: bool,
    #[command(flatten)]
    rows: DispatchRowsArgs,
    #[command(flatten)]
    change: ChangeArgs,
    #[command(flatten)]
    project: ProjectOption,
    #[command(flatten)]
    database: DatabaseOptions,
}

impl Retry {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let state = match self.all_dead {
            true => StateFilter::Only(DispatchStatus::Dead),
            false => StateFilter::Open,
        };
        let is_given = self.rows.is_given() || self.all_dead;
        let query = self.rows.query(checks, &self.project, state);
        let (query, options) = (is_given.then_some(query), self.change.options());
        let chosen = EventSelection::new(checks, self.ids, query, options)?;
        let database = checks.database(&self.database)?;
        Some(Plan::new(async move |shutdown| {
            in_session(&database, TableAccess::Update, shutdown, async |rows, client| {
                act(rows, client, BulkAction::Retry, &chosen, shutdown).await
            })
            .await
        }))
    }
}
