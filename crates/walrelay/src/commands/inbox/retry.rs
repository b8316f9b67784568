//! `walrelay inbox retry`.

use clap::Args;
use walrelay_inbox_admin::event_commands::InboxState;

use super::events::{InboxEventsArgs, InboxPlace, in_session};
use crate::commands::failed_events::{BulkAction, EventSelection, act};
use crate::config::Checks;
use crate::options::{ARGUMENTS, ChangeArgs};
use crate::plan::Plan;

/// Make events due at once; dead ones get a new round of attempts.
///
/// Name events by their ids, or select all dead and retrying events that match filters. A selection asks first.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Examples:\n  walrelay inbox retry 6f1c9a9e-…\n  \
    walrelay inbox retry --all-dead"
)]
pub(crate) struct Retry {
    /// Event ids.
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// Every dead event of this consumer.
    #[arg(long, conflicts_with = "status")]
    all_dead: bool,
    #[command(flatten)]
    events: InboxEventsArgs,
    #[command(flatten)]
    change: ChangeArgs,
    #[command(flatten)]
    place: InboxPlace,
}

impl Retry {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let state = match self.all_dead {
            true => InboxState::Only("dead"),
            false => InboxState::Open,
        };
        let is_given = self.events.is_given() || self.all_dead;
        let query = is_given.then_some(self.events.query(state));
        let chosen = EventSelection::new(checks, self.ids, query, self.change.options())?;
        let address = self.place.address(checks)?;
        Some(Plan::new(async move |shutdown| {
            in_session(&address, shutdown, async |events, client| {
                act(events, client, BulkAction::Retry, &chosen, shutdown).await
            })
            .await
        }))
    }
}
