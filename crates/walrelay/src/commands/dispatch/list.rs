//! `walrelay dispatch list`.

use clap::Args;
use walrelay_outbox_store::{DispatchQuery, StateFilter};
use walrelay_pg_client::TableAccess;

use super::rows::{DispatchRowsArgs, in_session};
use crate::commands::failed_events::{EventList, list};
use crate::commands::shared::cancellable::run_until_shutdown;
use crate::config::Checks;
use crate::options::{ARGUMENTS, DatabaseOptions, OutputOptions, PageArgs, ProjectOption};
use crate::plan::Plan;

/// List rows, oldest position first; by default those that need a person.
///
/// Dead rows need a person, and rows that wait for a missing topic or right.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Examples:\n  walrelay dispatch list\n  \
    walrelay dispatch list --status all --all --output json\n  \
    walrelay dispatch list --error NOT_FOUND --older-than 1h"
)]
pub(crate) struct List {
    #[command(flatten)]
    rows: DispatchRowsArgs,
    #[command(flatten)]
    page: PageArgs,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    project: ProjectOption,
    #[command(flatten)]
    database: DatabaseOptions,
}

impl List {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let asked = self.asked(checks);
        let database = checks.database(&self.database)?;
        Some(Plan::new(async move |shutdown| {
            in_session(&database, TableAccess::Read, shutdown, async |rows, client| {
                run_until_shutdown(list(rows, client, &asked), shutdown).await
            })
            .await
        }))
    }

    pub(crate) fn asked(&self, checks: &mut Checks<'_>) -> EventList<DispatchQuery> {
        // With `--error`, rows in every state are listed: rows with the error may need no person.
        let state = match self.rows.filters.error {
            Some(_) => StateFilter::Any,
            None => StateFilter::NeedsPerson,
        };
        let query = self.rows.query(checks, &self.project, state);
        EventList::new(query, &self.page, self.output.output)
    }
}
