//! The front end of `dispatch` and `inbox`: lists, shows, retries, edits and discards events that
//! were not published, or not applied, at the first attempt. Each command is an adapter.

mod bulk;
mod changed;
mod list;
mod side;

use crate::config::{ChangeMode, ChangeOptions, EventAction, OutputFormat};
use crate::error::Error;
use crate::failed_events::detail_text;
use crate::output::json::json_text;
use walrelay_pg_client::SqlClient;
use walrelay_relay::shutdown::Shutdown;

use self::bulk::BulkAction;
use self::changed::ChangedEventsJson;
use super::shared::cancellable::run_until_shutdown;
use super::shared::operator::dry_run_text;

pub(super) use side::{Edited, EventChange, FailedEvents};

/// Carries out an action, and returns the text to print.
///
/// # Errors
///
/// The server refuses, or an event does not exist or has the wrong status. Also if a file cannot be
/// read, the user did not agree, or a signal came.
pub(super) async fn act<S: FailedEvents>(
    side: &S,
    client: &mut SqlClient,
    action: &EventAction<S::Query, S::Edit>,
    shutdown: &Shutdown,
) -> Result<String, Error> {
    match action {
        EventAction::List(asked) => {
            run_until_shutdown(list::list(side, client, asked), shutdown).await
        }
        EventAction::Show { id, format } => {
            let detail = run_until_shutdown(side.show(client, id), shutdown).await?;
            match format {
                OutputFormat::Json => json_text(&detail),
                OutputFormat::Text => Ok(detail_text(&detail)),
            }
        }
        EventAction::Retry(chosen) => {
            bulk::act(side, client, BulkAction::Retry, chosen, shutdown).await
        }
        EventAction::Edit { edit, options } => {
            let ChangeOptions { mode, format } = *options;
            let edited = run_until_shutdown(side.edit(client, edit, mode), shutdown).await?;
            let Edited { id, described } = edited;
            let changed = match described.as_slice() {
                [] => String::new(),
                names => {
                    format!(
                        "changed of the attributes that the relay writes: {}\n",
                        names.join(", ")
                    )
                }
            };
            match (mode, format) {
                (ChangeMode::DryRun, _) => {
                    let would = format!("edit {id} and make it due\n{changed}");
                    dry_run_text(would.trim_end(), format)
                }
                (ChangeMode::Ask | ChangeMode::Agreed, OutputFormat::Json) => {
                    let attributes = described;
                    json_text(&ChangedEventsJson {
                        attributes,
                        ..ChangedEventsJson::new("edited", 1)
                    })
                }
                (ChangeMode::Ask | ChangeMode::Agreed, OutputFormat::Text) => {
                    Ok(format!("{id} is edited and due now\n{changed}"))
                }
            }
        }
        EventAction::Discard { chosen, reason } => {
            bulk::act(side, client, BulkAction::Discard(reason), chosen, shutdown).await
        }
    }
}
