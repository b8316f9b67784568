//! `walrelay inbox discard`.

use clap::Args;
use walrelay_inbox_admin::event_commands::InboxState;

use super::events::{InboxEventsArgs, InboxPlace, in_session};
use crate::commands::failed_events::{BulkAction, EventSelection, act};
use crate::config::Checks;
use crate::options::values::reason;
use crate::options::{ARGUMENTS, ChangeArgs};
use crate::plan::Plan;

/// Discard events for good: their keys continue, the reason stays in the table.
///
/// Name events by their ids, or select all dead events that match filters. The command asks first.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Example:\n  \
    walrelay inbox discard 6f1c9a9e-… --reason 'test order, agreed with billing'"
)]
pub(crate) struct Discard {
    /// Event ids.
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// Why; kept in the table.
    #[arg(long, value_name = "TEXT", required = true, value_parser = reason)]
    reason: String,
    #[command(flatten)]
    events: InboxEventsArgs,
    #[command(flatten)]
    change: ChangeArgs,
    #[command(flatten)]
    place: InboxPlace,
}

impl Discard {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let query = self.events.is_given().then(|| self.events.query(InboxState::Only("dead")));
        let chosen = EventSelection::new(checks, self.ids, query, self.change.options())?;
        let (address, reason) = (self.place.address(checks)?, self.reason);
        Some(Plan::new(async move |shutdown| {
            in_session(&address, shutdown, async |events, client| {
                act(events, client, BulkAction::Discard(&reason), &chosen, shutdown).await
            })
            .await
        }))
    }
}
