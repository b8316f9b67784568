//! The events of a consumer's inbox, and the filters that select them.

use clap::Args;
use walrelay_inbox::InboxError;
use walrelay_inbox_admin::event_commands::{
    ConsumerGeneration, InboxEvent, InboxPage, InboxQuery, InboxState, StoredMessage,
};
use walrelay_pg_client::{ConnectConfig, SqlClient};
use walrelay_relay::observe::report::rfc3339;
use walrelay_relay::shutdown::Shutdown;

use crate::commands::failed_events::{
    EventChange, EventDetail, EventGroup, EventMessage, FailedEvent, FailedEvents, PageBegin,
};
use crate::commands::shared::cancellable::run_until_shutdown;
use crate::commands::shared::session::in_shared_session;
use crate::config::Checks;
use crate::error::Error;
use crate::options::values::word;
use crate::options::{ARGUMENTS, ConnectionOptions, EventFilterArgs};
use crate::output::exact_json::data_json;
use crate::output::print;

/// Which consumer, and where it is.
#[derive(Debug, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(super) struct InboxPlace {
    /// Name of the consumer; needed where the database has several.
    #[arg(long, value_name = "NAME")]
    pub(super) consumer: Option<String>,
    #[command(flatten)]
    pub(super) connection: ConnectionOptions,
}

/// The values of `inbox --status`.
const STATES: &[(&str, InboxState)] = &[
    ("done", InboxState::Only("done")),
    ("late", InboxState::Only("late")),
    ("retrying", InboxState::Only("retrying")),
    ("dead", InboxState::Only("dead")),
    ("discarded", InboxState::Only("discarded")),
    ("all", InboxState::Any),
];

/// Which events of the inbox.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = ARGUMENTS)]
pub(super) struct InboxEventsArgs {
    /// Only events in this state.
    #[arg(long, value_name = "STATUS", value_parser = word(STATES))]
    pub(super) status: Option<InboxState>,
    #[command(flatten)]
    pub(super) filters: EventFilterArgs,
}

impl InboxEventsArgs {
    pub(super) fn is_given(&self) -> bool {
        self.status.is_some() || self.filters.is_given()
    }

    /// Returns the query for the filters. `state` applies if no status is given.
    pub(super) fn query(&self, state: InboxState) -> InboxQuery {
        InboxQuery {
            state: self.status.unwrap_or(state),
            ordering_key: self.filters.key.clone(),
            event_type: self.filters.event_type.clone(),
            error_code: self.filters.error.clone(),
            older_than: self.filters.older_than,
            until: None,
        }
    }
}

pub(super) struct InboxAddress {
    connect: ConnectConfig,
    /// Name of the consumer. `None` means the only one in the database.
    consumer: Option<String>,
}

impl InboxPlace {
    pub(super) fn address(self, checks: &mut Checks<'_>) -> Option<InboxAddress> {
        let connect = checks.connect(&self.connection)?;
        Some(InboxAddress { connect, consumer: self.consumer })
    }
}

pub(super) struct InboxEvents {
    pub(super) place: ConsumerGeneration,
}

fn event_of(event: InboxEvent) -> FailedEvent {
    FailedEvent {
        event_id: event.event_id,
        status: event.status,
        attempts: event.attempts,
        commit_lsn: event.commit_lsn,
        tx_index: event.tx_index,
        topic: None,
        ordering_key: event.ordering_key,
        event_type: event.event_type,
        version: event.version,
        holds_its_key: Some(event.holds_its_key),
        next_attempt_at: event.next_attempt_at.map(rfc3339),
        error_code: event.error_code,
        last_error: event.last_error,
        message_id: None,
        message_bytes: event.message_bytes,
        occurred_at: event.occurred_at.map(rfc3339),
        recorded_at: rfc3339(event.received_at),
        updated_at: None,
        done_at: event.done_at.map(rfc3339),
        needs_edit: false,
    }
}

impl FailedEvents for InboxEvents {
    type Query = InboxQuery;

    const COMMAND: &'static str = "walrelay inbox";
    const NOUN: &'static str = "event";
    const GROUP: EventGroup = EventGroup::EventType;
    const NEED_EDIT: &'static str = "";

    async fn page(
        &self,
        client: &SqlClient,
        query: &InboxQuery,
        behind: Option<&PageBegin>,
        limit: u32,
    ) -> Result<Vec<FailedEvent>, Error> {
        let (position, event_id) = match behind {
            None => (None, None),
            Some(PageBegin { event_id: Some(id), .. }) => (None, Some(id.as_str())),
            Some(PageBegin { position, event_id: None }) => (*position, None),
        };
        let page = InboxPage { position, event_id, limit };
        let events = self.place.page(client, query, page).await?;
        Ok(events.into_iter().map(event_of).collect())
    }

    async fn count(&self, client: &SqlClient, query: &InboxQuery) -> Result<u64, Error> {
        Ok(self.place.count(client, query).await?)
    }

    async fn until_now(&self, client: &SqlClient, query: &InboxQuery) -> Result<InboxQuery, Error> {
        let until = Some(self.place.moment(client).await?);
        Ok(InboxQuery { until, ..query.clone() })
    }

    fn retrying_instead(&self, query: &InboxQuery) -> Option<InboxQuery> {
        (query.state == InboxState::Only("dead"))
            .then(|| InboxQuery { state: InboxState::Only("retrying"), ..query.clone() })
    }

    fn none(&self, query: &InboxQuery) -> &'static str {
        match query.state {
            InboxState::Open => "no event is waiting or dead",
            InboxState::Only(_) | InboxState::Any => "no event matches",
        }
    }

    async fn not_listed(&self, _: &SqlClient, _: &InboxQuery) -> Result<String, Error> {
        Ok(String::new())
    }

    async fn ids_like(&self, client: &SqlClient, start: &str) -> Result<Vec<String>, Error> {
        Ok(self.place.ids_like(client, start).await?)
    }

    async fn show(&self, client: &SqlClient, id: &str) -> Result<EventDetail, Error> {
        let (event, message) = self.place.show(client, id).await?;
        let ordering_key = event.ordering_key.clone();
        let message = message.map(|StoredMessage { attributes, data }| EventMessage {
            attributes,
            ordering_key,
            data: data_json(&data),
            lacks: Vec::new(),
        });
        Ok(EventDetail { event: event_of(event), message })
    }

    async fn retry(&self, client: &mut SqlClient, ids: &[String]) -> Result<u64, Error> {
        Ok(self.place.retry(client, ids).await?)
    }

    async fn discard_one(
        &self,
        client: &mut SqlClient,
        id: &str,
        reason: &str,
    ) -> Result<(), Error> {
        Ok(self.place.discard(client, id, reason).await?)
    }

    async fn discard(
        &self,
        client: &mut SqlClient,
        ids: &[String],
        reason: &str,
    ) -> Result<u64, Error> {
        let mut discarded = 0;
        for id in ids {
            match self.place.discard(client, id, reason).await.map_err(Error::from) {
                Ok(()) => discarded += 1,
                Err(error) if Self::is_finished(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(discarded)
    }

    fn refusal(event: &FailedEvent, change: EventChange) -> Option<Error> {
        let action = match change {
            EventChange::Retry => "tried again",
            EventChange::Discard => "discarded",
        };
        let is_open = ["retrying", "dead"].contains(&event.status.as_str());
        let event_id = event.event_id.clone();
        (!is_open).then(|| InboxError::AlreadyFinished { event_id, action }.into())
    }

    fn is_finished(error: &Error) -> bool {
        matches!(
            error,
            Error::Inbox(InboxError::AlreadyFinished { .. } | InboxError::UnknownEvent { .. })
        )
    }
}

/// Runs `work` on the events in a session of the database, and prints its text.
pub(super) async fn in_session(
    InboxAddress { connect, consumer }: &InboxAddress,
    shutdown: &Shutdown,
    work: impl AsyncFnOnce(&InboxEvents, &mut SqlClient) -> Result<String, Error>,
) -> Result<(), Error> {
    in_shared_session(connect, shutdown, async |client| {
        let finding = async {
            let found = ConsumerGeneration::find(client, consumer.as_deref()).await;
            found.map_err(Error::from)
        };
        let events = InboxEvents { place: run_until_shutdown(finding, shutdown).await? };
        print(&Box::pin(work(&events, client)).await?)
    })
    .await
}
