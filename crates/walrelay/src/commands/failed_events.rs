//! The front end of `dispatch` and `inbox`: lists, shows, retries, edits and discards events that
//! were not published, or not applied, at the first attempt. Each command is an adapter.

mod bulk;
mod list;
mod page;

use walrelay_pg_client::SqlClient;
use walrelay_relay::shutdown::Shutdown;

use self::bulk::BulkAction;
use super::shared::cancellable::run_until_shutdown;
use crate::config::{ChangeMode, EventAction, OutputFormat};
use crate::error::Error;
use crate::json_output::json_text;
pub(super) use page::{EventDetail, EventMessage, FailedEvent, MissingPart, payload_json};

/// Where a page starts: behind this event.
#[derive(Debug, Clone)]
pub(super) struct PageBegin {
    /// Its position in the WAL. Only events that walrelay has published have one.
    pub(super) position: Option<pgoutput_parser::Position>,
    /// Its id. None starts the page after all events of the position.
    pub(super) event_id: Option<String>,
}

/// One side: the rows of dispatch state, or the events of a consumer's inbox.
pub(super) trait FailedEvents: Sync {
    /// Filters.
    type Query: Clone + Sync;
    /// The changes of an edit.
    type Edit: Sync;

    /// The noun of counts, as in `3 row(s)`.
    const NOUN: &'static str;
    /// Whether events have topics, or else event types.
    const HAS_TOPICS: bool;
    /// Why some events are not retried with the others, and the commands that fix them.
    const NEED_EDIT: &'static str;

    /// Returns a page of events in position order.
    fn page(
        &self,
        client: &SqlClient,
        query: &Self::Query,
        behind: Option<&PageBegin>,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<FailedEvent>, Error>>;

    /// Counts the matching events.
    fn count(
        &self,
        client: &SqlClient,
        query: &Self::Query,
    ) -> impl Future<Output = Result<u64, Error>>;

    /// Limits the query to events recorded before now. New events are recorded all the time, and an
    /// action must cover exactly those that the user agreed to.
    fn until_now(
        &self,
        client: &SqlClient,
        query: &Self::Query,
    ) -> impl Future<Output = Result<Self::Query, Error>>;

    /// Returns the query for retrying events in place of dead ones, if only dead ones match.
    fn retrying_instead(&self, query: &Self::Query) -> Option<Self::Query>;

    /// Returns the text for an empty page.
    fn none(&self, query: &Self::Query) -> &'static str;

    /// Returns lines about events that the query of `list` leaves out.
    fn not_listed(
        &self,
        client: &SqlClient,
        query: &Self::Query,
    ) -> impl Future<Output = Result<String, Error>>;

    /// Returns one event with its message.
    fn show(
        &self,
        client: &SqlClient,
        id: &str,
    ) -> impl Future<Output = Result<EventDetail, Error>>;

    /// Makes events due.
    fn retry(
        &self,
        client: &mut SqlClient,
        ids: &[String],
    ) -> impl Future<Output = Result<u64, Error>>;

    /// Discards one event.
    fn discard_one(
        &self,
        client: &mut SqlClient,
        id: &str,
        reason: &str,
    ) -> impl Future<Output = Result<(), Error>>;

    /// Discards the events that are not finished yet.
    fn discard(
        &self,
        client: &mut SqlClient,
        ids: &[String],
        reason: &str,
    ) -> impl Future<Output = Result<u64, Error>>;

    /// Returns whether an event is left as it is because it was finished meanwhile.
    fn is_finished(error: &Error) -> bool;

    /// Checks and makes an edit, and returns the changed attributes that describe the event. A dry
    /// run only checks.
    fn edit(
        &self,
        client: &mut SqlClient,
        edit: &Self::Edit,
        mode: ChangeMode,
    ) -> impl Future<Output = Result<Edited, Error>>;
}

/// A checked edit.
#[derive(Debug)]
pub(super) struct Edited {
    /// Id of the event.
    pub(super) id: String,
    /// The attributes that describe the event, and that the edit changes.
    pub(super) described: Vec<String>,
}

/// Carries out an action, and returns the text to print.
///
/// # Errors
///
/// The server refuses, an event does not exist or has the wrong status, a file cannot be read, the
/// user did not agree, or a signal came.
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
                OutputFormat::Text => Ok(page::text(&detail)),
            }
        }
        EventAction::Retry(chosen) => {
            bulk::act(side, client, BulkAction::Retry, chosen, shutdown).await
        }
        EventAction::Edit { edit, mode } => {
            let edited = run_until_shutdown(side.edit(client, edit, *mode), shutdown).await?;
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
            Ok(match mode {
                ChangeMode::DryRun => format!("would edit {id} and make it due\n{changed}"),
                ChangeMode::Ask | ChangeMode::Agreed => {
                    format!("{id} is edited and due now\n{changed}")
                }
            })
        }
        EventAction::Discard { chosen, reason } => {
            bulk::act(side, client, BulkAction::Discard(reason), chosen, shutdown).await
        }
    }
}
