//! `walrelay inbox`: lists and changes events that a consumer could not apply.

use crate::config::{ChangeMode, EditFiles, InboxConfig, InboxEdit};
use crate::error::Error;
use crate::output::exact_json::data_json;
use walrelay_inbox::InboxError;
use walrelay_inbox_admin::event_commands::{
    ConsumerGeneration, InboxEvent, InboxPage, InboxQuery, InboxState, Replacement, StoredMessage,
};
use walrelay_pg_client::{SqlClient, connect_shared};
use walrelay_relay::observe::report::rfc3339;
use walrelay_relay::shutdown::Shutdown;

use super::dispatch::attributes::replace;
use super::dispatch::edit::{read, read_attributes};
use super::failed_events::{self, Edited, EventChange, FailedEvents};
use super::shared::cancellable::run_until_shutdown;
use crate::failed_events::{EventDetail, EventGroup, EventMessage, FailedEvent, PageBegin};
use crate::output::print;

/// Carries out the action and prints the result.
///
/// # Errors
///
/// Postgres cannot be reached, the event does not exist or has the wrong status, or a file cannot
/// be read.
pub(crate) async fn execute(config: InboxConfig, shutdown: &Shutdown) -> Result<(), Error> {
    let connecting = async { Ok(connect_shared(&config.connect).await?) };
    let mut client = run_until_shutdown(connecting, shutdown).await?;
    let done = async {
        let place = ConsumerGeneration::find(&client, config.consumer.as_deref());
        let events = InboxEvents { place: run_until_shutdown(found(place), shutdown).await? };
        failed_events::act(&events, &mut client, &config.action, shutdown).await
    };
    let done = done.await;
    client.close().await;
    print(&done?)
}

async fn found<T>(place: impl Future<Output = Result<T, InboxError>>) -> Result<T, Error> {
    Ok(place.await?)
}

/// The events of a consumer's inbox.
struct InboxEvents {
    place: ConsumerGeneration,
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
    type Edit = InboxEdit;

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

    async fn edit(
        &self,
        client: &mut SqlClient,
        edit: &InboxEdit,
        mode: ChangeMode,
    ) -> Result<Edited, Error> {
        let InboxEdit { id, files: EditFiles { payload_file, attributes_file } } = edit;
        let (_, stored) = self.place.show(client, id).await?;
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
            self.place.edit(client, id, &Replacement { data, attributes }).await?;
        }
        Ok(Edited { id: id.clone(), described })
    }
}
