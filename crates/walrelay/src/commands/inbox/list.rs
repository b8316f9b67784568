//! `walrelay inbox list`.

use clap::Args;
use walrelay_inbox_admin::event_commands::InboxState;

use super::events::{InboxEventsArgs, InboxPlace, in_session};
use crate::commands::failed_events::{EventList, list};
use crate::commands::shared::cancellable::run_until_shutdown;
use crate::config::Checks;
use crate::options::{ARGUMENTS, OutputOptions, PageArgs};
use crate::plan::Plan;

/// List events in the order in which keys drain; by default waiting and dead ones.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Example:\n  walrelay inbox list --status dead --older-than 1h"
)]
pub(crate) struct List {
    #[command(flatten)]
    events: InboxEventsArgs,
    #[command(flatten)]
    page: PageArgs,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    place: InboxPlace,
}

impl List {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        // With `--error`, events in every state are listed.
        let state = match self.events.filters.error {
            Some(_) => InboxState::Any,
            None => InboxState::Open,
        };
        let asked = EventList::new(self.events.query(state), &self.page, self.output.output);
        let address = self.place.address(checks)?;
        Some(Plan::new(async move |shutdown| {
            in_session(&address, shutdown, async |events, client| {
                run_until_shutdown(list(events, client, &asked), shutdown).await
            })
            .await
        }))
    }
}
