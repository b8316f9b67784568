//! `walrelay inbox show`.

use clap::Args;

use super::events::{InboxPlace, in_session};
use crate::commands::failed_events::show;
use crate::commands::shared::cancellable::run_until_shutdown;
use crate::config::Checks;
use crate::options::{ARGUMENTS, OutputOptions};
use crate::plan::Plan;

/// Show one event: the message as it came and its history of errors.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Example:\n  walrelay inbox show 6f1c9a9e-…"
)]
pub(crate) struct Show {
    /// Event id.
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    place: InboxPlace,
}

impl Show {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let address = self.place.address(checks)?;
        Some(Plan::new(async move |shutdown| {
            in_session(&address, shutdown, async |events, client| {
                let shown = show(events, client, &self.id, self.output.output);
                run_until_shutdown(shown, shutdown).await
            })
            .await
        }))
    }
}
