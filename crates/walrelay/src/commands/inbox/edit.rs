//! `walrelay inbox edit`.

use clap::{ArgGroup, Args};
use walrelay_inbox_admin::event_commands::Replacement;
use walrelay_pg_client::SqlClient;

use super::events::{InboxEvents, InboxPlace, in_session};
use crate::commands::failed_events::attributes::replace;
use crate::commands::failed_events::files::{read, read_attributes};
use crate::commands::failed_events::{Edited, options_of_edit, whole_id};
use crate::commands::shared::cancellable::run_until_shutdown;
use crate::config::{ChangeMode, Checks};
use crate::error::Error;
use crate::options::{ARGUMENTS, ChangeArgs, EditFiles};
use crate::plan::Plan;

/// Replace payload or attributes of the stored copy from files, and retry the event.
#[derive(Debug, Args)]
#[command(
    next_help_heading = ARGUMENTS,
    after_help = "Example:\n  \
    walrelay inbox edit 6f1c9a9e-… --payload-file fixed.json",
    group(ArgGroup::new("new").args(["payload_file", "attributes_file"]).required(true).multiple(true))
)]
pub(crate) struct Edit {
    /// Event id.
    #[arg(value_name = "ID")]
    id: String,
    #[command(flatten)]
    files: EditFiles,
    #[command(flatten)]
    change: ChangeArgs,
    #[command(flatten)]
    place: InboxPlace,
}

impl Edit {
    pub(crate) fn plan(self, checks: &mut Checks<'_>) -> Option<Plan> {
        let (id, files) = (self.id, self.files);
        let options = options_of_edit(&self.change);
        let address = self.place.address(checks)?;
        Some(Plan::new(async move |shutdown| {
            in_session(&address, shutdown, async |events, client| {
                let edited = edit(events, client, &id, &files, options.mode);
                run_until_shutdown(edited, shutdown).await?.output(options)
            })
            .await
        }))
    }
}

/// Checks an edit, changes the event and makes it due. A dry run only checks.
async fn edit(
    events: &InboxEvents,
    client: &mut SqlClient,
    id: &str,
    EditFiles { payload_file, attributes_file }: &EditFiles,
    mode: ChangeMode,
) -> Result<Edited, Error> {
    let id = &whole_id(events, client, id).await?;
    let (_, stored) = events.place.show(client, id).await?;
    let data = payload_file.as_ref().map(|path| read(path)).transpose()?;
    let (attributes, described) = match attributes_file {
        None => (None, Vec::new()),
        Some(path) => {
            let mut attributes = stored.map(|stored| stored.attributes).unwrap_or_default();
            let described = replace(&mut attributes, read_attributes(path)?)?;
            (Some(attributes), described)
        }
    };
    if mode != ChangeMode::DryRun {
        events.place.edit(client, id, &Replacement { data, attributes }).await?;
    }
    Ok(Edited { id: id.to_owned(), described })
}
