//! The publishers of a replay in place: rows go into dispatch state instead of Pub/Sub. They are
//! inserted before the pending rows of their keys.
//!
//! The loop runs twice. The first run collects the keys of the rows, so that these keys can be
//! held. The second run inserts the rows of each held key.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use walrelay_outbox_store::StoreError;

use pgoutput_parser::Position;
use walrelay_core::{Batch, FailureClass, FailureCode, Message, PublishFailure, Topic};
use walrelay_outbox_store::{DispatchStore, History, HistoryRow, HistorySource, Key};
use walrelay_pg_client::{ConnectConfig, SqlClient, connect_sql};
use walrelay_pg_replication::{ServerIdentity, read_server_identity};

use walrelay_relay::stream::publisher::Publisher;

/// The maximum number of keys that one replay holds. The relay has a lane for each of them
/// meanwhile.
pub const HELD_KEYS_MAX: usize = 10_000;

/// Publishes nothing, and collects the keys of all batches, up to one more than the maximum.
#[derive(Debug, Clone, Default)]
pub(super) struct KeysSeen(Arc<Mutex<BTreeSet<(Topic, String)>>>);

impl KeysSeen {
    /// Returns topic and ordering key of each key, in order.
    #[must_use]
    pub(super) fn keys(&self) -> Vec<(Topic, String)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

impl Publisher for KeysSeen {
    fn publish(
        &self,
        batch: &Batch,
    ) -> impl Future<Output = Result<Vec<String>, PublishFailure>> + Send + 'static {
        let mut keys = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if keys.len() <= HELD_KEYS_MAX {
            keys.insert((Topic::clone(batch.topic()), batch.ordering_key().to_owned()));
        }
        let ids = vec![String::new(); batch.messages().len()];
        std::future::ready(Ok(ids))
    }
}

/// Writes rows into dispatch state instead of Pub/Sub, if the replay holds their keys.
#[derive(Debug, Clone)]
pub(super) struct HistoryWriter(Arc<Writing>);

#[derive(Debug)]
struct Writing {
    connect: ConnectConfig,
    /// The server with the holds and the history (I11).
    server: ServerIdentity,
    store: DispatchStore,
    replay_id: String,
    source: HistorySource,
    /// One statement at a time, because a statement checks whether an id is taken.
    client: tokio::sync::Mutex<Option<SqlClient>>,
}

/// The rows of one batch, which are inserted together.
struct Rows {
    topic: Topic,
    ordering_key: String,
    messages: Vec<OwnedRow>,
}

struct OwnedRow {
    position: Position,
    event_id: String,
    event_type: Option<String>,
    message: Vec<u8>,
}

impl From<&Message> for OwnedRow {
    fn from(message: &Message) -> Self {
        Self {
            position: message.position(),
            event_id: message.event_id().to_owned(),
            event_type: message.event_type().map(ToOwned::to_owned),
            message: message.body().to_vec(),
        }
    }
}

impl HistoryWriter {
    #[must_use]
    pub(super) fn new(
        connect: ConnectConfig,
        server: ServerIdentity,
        store: DispatchStore,
        (replay_id, source): (String, HistorySource),
    ) -> Self {
        let client = tokio::sync::Mutex::new(None);
        Self(Arc::new(Writing { connect, server, store, replay_id, source, client }))
    }

    /// Adds a row that can never be published, as dead. Its key is held, so it is in its place
    /// before the key continues. Returns false if the replay does not hold the key.
    pub(super) async fn add_dead(
        &self,
        message: &Message,
        failure: &PublishFailure,
    ) -> Result<bool, PublishFailure> {
        let rows = Rows {
            topic: Topic::clone(message.topic()),
            ordering_key: message.ordering_key().to_owned(),
            messages: vec![OwnedRow::from(message)],
        };
        self.0.add(&rows).await?;
        self.0.mark_dead(message.position(), failure).await
    }
}

impl Publisher for HistoryWriter {
    fn publish(
        &self,
        batch: &Batch,
    ) -> impl Future<Output = Result<Vec<String>, PublishFailure>> + Send + 'static {
        let rows = Rows {
            topic: Topic::clone(batch.topic()),
            ordering_key: batch.ordering_key().to_owned(),
            messages: batch.messages().map(OwnedRow::from).collect(),
        };
        let writing = Arc::clone(&self.0);
        async move {
            match Box::pin(writing.add(&rows)).await {
                Ok(()) => Ok(vec![String::new(); rows.messages.len()]),
                Err(failure) => Err(failure),
            }
        }
    }
}

impl Writing {
    async fn mark_dead(
        &self,
        position: Position,
        failure: &PublishFailure,
    ) -> Result<bool, PublishFailure> {
        let mut place = self.client.lock().await;
        let client = self.session(&mut place).await?;
        let marked =
            self.store.mark_history_dead(&client, &self.replay_id, position, failure).await;
        *place = Some(client);
        marked.map_err(|error| not_added(&error))
    }

    async fn session(&self, place: &mut Option<SqlClient>) -> Result<SqlClient, PublishFailure> {
        match place.take().filter(|client| !client.is_closed()) {
            Some(client) => Ok(client),
            None => self.connect().await,
        }
    }

    async fn add(&self, rows: &Rows) -> Result<(), PublishFailure> {
        let mut place = self.client.lock().await;
        let client = self.session(&mut place).await?;
        let of_key: Vec<_> = rows
            .messages
            .iter()
            .map(|row| HistoryRow {
                position: row.position,
                event_id: &row.event_id,
                event_type: row.event_type.as_deref(),
                message: &row.message,
            })
            .collect();
        let key = Key { topic: &rows.topic, ordering_key: &rows.ordering_key };
        let history = History { key, rows: &of_key, source: self.source };
        let added = self.store.add_history(&client, &self.replay_id, history).await;
        *place = Some(client);
        added.map(drop).map_err(|error| not_added(&error))
    }

    async fn connect(&self) -> Result<SqlClient, PublishFailure> {
        let unavailable = |error: &dyn std::error::Error| {
            PublishFailure::new(
                FailureClass::Transient,
                FailureCode::DispatchState,
                error.to_string(),
            )
        };
        let client = connect_sql(&self.connect).await.map_err(|error| unavailable(&error))?;
        let here = read_server_identity(&client).await.map_err(|error| unavailable(&error))?;
        // A restart alone changes nothing, because holds and history are in the table.
        let expected =
            ServerIdentity { started_at: here.started_at.clone(), ..self.server.clone() };
        match here.is_same(&expected) {
            true => Ok(client),
            false => {
                let what = "the connection leads to another server than the holds are on";
                Err(PublishFailure::new(FailureClass::Operator, FailureCode::OtherServer, what))
            }
        }
    }
}

fn not_added(error: &StoreError) -> PublishFailure {
    let class = match error.is_disconnected() {
        true => FailureClass::Transient,
        false => FailureClass::Operator,
    };
    PublishFailure::new(
        class,
        FailureCode::DispatchState,
        walrelay_errors::Chain(error).to_string(),
    )
}
