//! The rows of dispatch state, and the filters that select them.

use clap::Args;
use walrelay_core::Fault;
use walrelay_outbox_admin::protocols::refuse_other_shards;
use walrelay_outbox_admin::protocols::routes::full_name;
use walrelay_outbox_replay::AdminError;
use walrelay_outbox_store::{
    DispatchQuery, DispatchStatus, DispatchStore, PageStart, RetrySelection, StateFilter,
    StoreError, relay_tables,
};
use walrelay_pg_client::{SqlClient, TableAccess, connect_sql, refuse_hidden_rows};
use walrelay_relay::shutdown::Shutdown;

use super::message;
use crate::commands::failed_events::{
    EventChange, EventDetail, EventGroup, FailedEvent, FailedEvents, PageBegin,
};
use crate::commands::shared::cancellable::run_until_shutdown;
use crate::config::{Checks, DatabaseConfig};
use crate::error::Error;
use crate::options::values::word;
use crate::options::{ARGUMENTS, EventFilterArgs, ProjectOption};
use crate::output::print;

/// The values of `--status`.
const STATES: &[(&str, StateFilter)] = &[
    ("retrying", StateFilter::Only(DispatchStatus::Retrying)),
    ("dead", StateFilter::Only(DispatchStatus::Dead)),
    ("published", StateFilter::Only(DispatchStatus::Published)),
    ("discarded", StateFilter::Only(DispatchStatus::Discarded)),
    ("all", StateFilter::Any),
];

/// Which rows of dispatch state.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(super) struct DispatchRowsArgs {
    /// Only rows in this state.
    #[arg(long, value_name = "STATUS", value_parser = word(STATES))]
    pub(super) status: Option<StateFilter>,
    /// Only rows of this topic, short or full name.
    #[arg(long, value_name = "TOPIC")]
    pub(super) topic: Option<String>,
    #[command(flatten)]
    pub(super) filters: EventFilterArgs,
}

impl DispatchRowsArgs {
    pub(super) fn is_given(&self) -> bool {
        self.status.is_some() || self.topic.is_some() || self.filters.is_given()
    }

    /// Returns the query for the filters. `state` applies if no status is given.
    pub(super) fn query(
        &self,
        checks: &mut Checks<'_>,
        project: &ProjectOption,
        state: StateFilter,
    ) -> DispatchQuery {
        let topic = self.topic.as_deref();
        DispatchQuery {
            state: self.status.unwrap_or(state),
            topic: topic.map(|topic| full_topic(checks, "topic", topic, project)),
            ordering_key: self.filters.key.clone(),
            event_type: self.filters.event_type.clone(),
            error_code: self.filters.error.clone(),
            older_than: self.filters.older_than,
            until: None,
        }
    }
}

/// Returns the full name of the topic that an option has, as dispatch state stores it.
pub(super) fn full_topic(
    checks: &mut Checks<'_>,
    option: &str,
    topic: &str,
    project: &ProjectOption,
) -> String {
    let project = project.project.as_deref().unwrap_or_default();
    if project.is_empty() && !topic.starts_with("projects/") {
        checks.wrong(option, topic, "a full projects/…/topics/… name, or set --project");
    }
    full_name(project, topic)
}

/// The rows of dispatch state of one slot.
pub(super) struct DispatchRows {
    pub(super) store: DispatchStore,
}

impl FailedEvents for DispatchRows {
    type Query = DispatchQuery;

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

    async fn ids_like(&self, client: &SqlClient, start: &str) -> Result<Vec<String>, Error> {
        Ok(self.store.ids_like(client, start).await?)
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
}

/// Runs `work` on the rows in a session of the database, and prints its text. `access` is what the
/// command needs.
pub(super) async fn in_session(
    DatabaseConfig { connect, outbox }: &DatabaseConfig,
    access: TableAccess,
    shutdown: &Shutdown,
    work: impl AsyncFnOnce(&DispatchRows, &mut SqlClient) -> Result<String, Error>,
) -> Result<(), Error> {
    let connecting = async { Ok(connect_sql(connect).await?) };
    let mut client = run_until_shutdown(connecting, shutdown).await?;
    let rows = DispatchRows { store: DispatchStore::new(outbox.slot.clone()) };
    let is_read = access == TableAccess::Read;
    let fits = async {
        refuse_other_shards(&client, outbox).await?;
        if !is_read {
            // Rows that row level security hides from UPDATE would silently stay unchanged.
            refuse_hidden_rows(&client, &relay_tables()[..1], access).await?;
        }
        Ok(())
    };
    let done = match run_until_shutdown(fits, shutdown).await {
        Ok(()) => Box::pin(work(&rows, &mut client)).await,
        Err(error) => Err(error),
    };
    client.close().await;
    let role = connect.user();
    print(&done.map_err(|error| if is_read { error.for_read_only_command(role) } else { error })?)
}
