//! `walrelay dispatch`: lists and changes rows that were not published at the first attempt.

pub(super) mod attributes;
pub(super) mod edit;
mod message;

use crate::config::{ChangeMode, DispatchConfig, DispatchEdit, EventAction};
use crate::error::Error;
use walrelay_core::Fault;
use walrelay_outbox_admin::protocols::refuse_other_shards;
use walrelay_outbox_replay::AdminError;
use walrelay_outbox_store::{
    DispatchQuery, DispatchStatus, DispatchStore, PageStart, RetrySelection, StateFilter,
    StoreError, relay_tables,
};
use walrelay_pg_client::{SqlClient, TableAccess, connect_sql, refuse_hidden_rows};
use walrelay_relay::shutdown::Shutdown;

use super::failed_events::{self, Edited, EventChange, FailedEvents};
use super::shared::cancellable::run_until_shutdown;
use crate::failed_events::{EventDetail, EventGroup, FailedEvent, PageBegin};
use crate::output::print;

/// Carries out the action and prints the result.
///
/// # Errors
///
/// Postgres cannot be reached, the row does not exist or has the wrong status, or a file cannot be
/// read.
pub(crate) async fn execute(config: DispatchConfig, shutdown: &Shutdown) -> Result<(), Error> {
    let connecting = async { Ok(connect_sql(&config.database.connect).await?) };
    let mut client = run_until_shutdown(connecting, shutdown).await?;
    let rows = DispatchRows { store: DispatchStore::new(config.database.outbox.slot.clone()) };
    let is_read = matches!(config.action, EventAction::List(_) | EventAction::Show { .. });
    let fits = async {
        refuse_other_shards(&client, &config.database.outbox).await?;
        if !is_read {
            // Rows that row level security hides from UPDATE would silently stay unchanged.
            refuse_hidden_rows(&client, &relay_tables()[..1], TableAccess::Update).await?;
        }
        Ok(())
    };
    let done = match run_until_shutdown(fits, shutdown).await {
        Ok(()) => failed_events::act(&rows, &mut client, &config.action, shutdown).await,
        Err(error) => Err(error),
    };
    client.close().await;
    let role = config.database.connect.user();
    print(&done.map_err(|error| if is_read { error.for_read_only_command(role) } else { error })?)
}

/// The rows of dispatch state of one slot.
struct DispatchRows {
    store: DispatchStore,
}

impl FailedEvents for DispatchRows {
    type Query = DispatchQuery;
    type Edit = DispatchEdit;

    const COMMAND: &'static str = "walrelay dispatch";
    const NOUN: &'static str = "row";
    const GROUP: EventGroup = EventGroup::Topic;
    const NEED_EDIT: &'static str = "they were recorded without headers that could not be read, or without a value that is too large; `walrelay \
         dispatch list` with `--error BAD_HEADERS` or `--error TOO_LARGE` has them, and `walrelay dispatch edit ID` with \
         `--attributes-file FILE` or `--payload-file FILE` completes one";

    async fn page(
        &self,
        client: &SqlClient,
        query: &DispatchQuery,
        behind: Option<&PageBegin>,
        limit: u32,
    ) -> Result<Vec<FailedEvent>, Error> {
        let behind = behind.and_then(|begin| {
            Some(PageStart { position: begin.position?, event_id: begin.event_id.clone() })
        });
        let rows = self.store.page(client, query, behind.as_ref(), limit).await?;
        Ok(rows.into_iter().map(message::event_of).collect())
    }

    async fn count(&self, client: &SqlClient, query: &DispatchQuery) -> Result<u64, Error> {
        Ok(self.store.count(client, query).await?)
    }

    async fn until_now(
        &self,
        client: &SqlClient,
        query: &DispatchQuery,
    ) -> Result<DispatchQuery, Error> {
        let until = Some(self.store.moment(client).await?);
        Ok(DispatchQuery { until, ..query.clone() })
    }

    fn retrying_instead(&self, query: &DispatchQuery) -> Option<DispatchQuery> {
        let state = StateFilter::Only(DispatchStatus::Retrying);
        (query.state == StateFilter::Only(DispatchStatus::Dead))
            .then(|| DispatchQuery { state, ..query.clone() })
    }

    fn none(&self, query: &DispatchQuery) -> &'static str {
        match query.state {
            StateFilter::NeedsPerson => "no row needs a person",
            StateFilter::Open | StateFilter::Queued | StateFilter::Only(_) | StateFilter::Any => {
                "no row matches"
            }
        }
    }

    /// Counts the rows that are not listed because nobody has to act on them.
    async fn not_listed(&self, client: &SqlClient, query: &DispatchQuery) -> Result<String, Error> {
        let mut text = String::new();
        if query.state != StateFilter::NeedsPerson {
            return Ok(text);
        }
        let count =
            async |state| self.store.count(client, &DispatchQuery { state, ..query.clone() }).await;
        let open = count(StateFilter::Only(DispatchStatus::Retrying)).await?
            + count(StateFilter::Only(DispatchStatus::Dead)).await?;
        let queued = count(StateFilter::Queued).await?;
        let needs_person = count(StateFilter::NeedsPerson).await?;
        let retried = open.saturating_sub(needs_person + queued);
        if retried > 0 {
            text.push_str(&format!(
                "{retried} row(s) are tried again by themselves: --status retrying\n"
            ));
        }
        if queued > 0 {
            text.push_str(&format!(
                "{queued} row(s) are queued behind other rows of their keys: --status retrying\n"
            ));
        }
        Ok(text)
    }

    async fn show(&self, client: &SqlClient, id: &str) -> Result<EventDetail, Error> {
        Ok(message::detail_of(self.store.show(client, id).await?))
    }

    async fn retry(&self, client: &mut SqlClient, ids: &[String]) -> Result<u64, Error> {
        Ok(self.store.retry(client, &RetrySelection::Events(ids.to_vec())).await?)
    }

    async fn discard_one(
        &self,
        client: &mut SqlClient,
        id: &str,
        reason: &str,
    ) -> Result<(), Error> {
        Ok(self.store.discard(client, id, reason).await?)
    }

    async fn discard(
        &self,
        client: &mut SqlClient,
        ids: &[String],
        reason: &str,
    ) -> Result<u64, Error> {
        Ok(self.store.discard_all(client, ids, reason).await?)
    }

    fn refusal(event: &FailedEvent, change: EventChange) -> Option<Error> {
        let id = || event.event_id.clone();
        let finished = |action| {
            let status = event.status.clone();
            StoreError::AlreadyFinished { event_id: id(), status, action }
        };
        let refusal = match (change, event.status.as_str()) {
            (EventChange::Retry, "published") => finished("retried"),
            (EventChange::Discard, "published" | "discarded") => finished("discarded"),
            (EventChange::Retry, _) if event.needs_edit => match event.error_code.as_deref() {
                Some(Fault::HEADERS_CODE) => StoreError::WithoutHeaders { event_id: id() },
                _ => StoreError::WithoutValue { event_id: id() },
            },
            (EventChange::Retry | EventChange::Discard, _) => return None,
        };
        Some(refusal.into())
    }

    fn is_finished(error: &Error) -> bool {
        matches!(
            error,
            Error::Store(AdminError::Store(
                StoreError::AlreadyFinished { .. }
                    | StoreError::UnknownEvent { .. }
                    | StoreError::WithoutHeaders { .. }
                    | StoreError::WithoutValue { .. }
            ))
        )
    }

    async fn edit(
        &self,
        client: &mut SqlClient,
        edit: &DispatchEdit,
        mode: ChangeMode,
    ) -> Result<Edited, Error> {
        edit::edit(&self.store, client, edit, mode).await
    }
}
