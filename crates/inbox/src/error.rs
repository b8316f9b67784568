//! Why a consumer does not start, or ends without being asked.

use walrelay_pg_client::{PgError, SqlError};
use walrelay_pubsub::PubsubError;

use crate::course::REFUSED_LASTS;

/// Something a person has to put right.
#[derive(Debug, thiserror::Error)]
pub enum InboxError {
    /// The database cannot be reached.
    #[error("no connection to the consumer's database")]
    Connect(#[source] PgError),
    /// A statement failed.
    #[error(transparent)]
    Store(#[from] SqlError),
    /// The event is finished, so it can neither be retried, nor edited, nor discarded.
    #[error("event {event_id:?} is already finished; it can no longer be {action}")]
    AlreadyFinished {
        /// The event's id.
        event_id: String,
        /// The refused action, as a participle.
        action: &'static str,
    },
    /// The same, in the outbox's database.
    #[error(transparent)]
    Outbox(SqlError),
    /// The database has no inbox, or one that this version does not know.
    #[error("the inbox cannot be used: {problem}")]
    Inbox {
        /// What the server said.
        problem: String,
    },
    /// The role may not do what a consumer does.
    #[error("role {role:?} lacks {lacks}")]
    Rights {
        /// Who is connected.
        role: String,
        /// Each right with its object.
        lacks: String,
        /// The statements that give them.
        hint: String,
    },
    /// It was to catch up.
    #[error("nothing could be applied for {} s: {problem}", REFUSED_LASTS.as_secs())]
    Refused {
        /// What the server said last.
        problem: String,
    },
    /// There is no such consumer.
    #[error("consumer {consumer:?} is not known in this database")]
    Unregistered {
        /// Its name.
        consumer: String,
    },
    /// It was to catch up.
    #[error(
        "consumer {consumer:?} is paused, and will not catch up before it is resumed: \"walrelay consumer resume {consumer}\""
    )]
    Paused {
        /// Its name.
        consumer: String,
    },
    /// There is no such handler, or several.
    #[error("handler {handler:?}: {problem}")]
    Handler {
        /// As it was given.
        handler: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The consumer's name is taken.
    #[error(
        "consumer {consumer:?} reads {subscription} already, and has applied events from it: give that as --subscription \
         to set the same consumer up again; one of another name would apply every event by itself"
    )]
    OtherSubscription {
        /// Its name.
        consumer: String,
        /// What it reads.
        subscription: String,
    },
    /// The inbox does not hold the event.
    #[error(
        "consumer {consumer:?} holds no event {event_id:?}; \"walrelay inbox list\" shows what it holds"
    )]
    UnknownEvent {
        /// Its name.
        consumer: String,
        /// The id asked for.
        event_id: String,
    },
    /// The consumer has applied nothing of the ordering key.
    #[error("consumer {consumer:?} has no ordering key {ordering_key:?}")]
    UnknownKey {
        /// The consumer's name.
        consumer: String,
        /// The key asked for.
        ordering_key: String,
    },
    /// Events of the ordering key have been applied meanwhile.
    #[error(
        "ordering key {ordering_key:?} has moved on since it was shown, and nothing has changed"
    )]
    KeyMoved {
        /// The key.
        ordering_key: String,
    },
    /// Nobody said which consumer.
    #[error("this database has several consumers: {names}; name one with --consumer")]
    SeveralConsumers {
        /// Theirs.
        names: String,
    },
    /// The SQL that empties a read model was refused, and nothing of it or of the rebuild has taken effect.
    #[error("the SQL of --reset-sql was refused, and nothing has changed")]
    Reset(#[source] tokio_postgres::Error),
    /// No handler can be printed for a table.
    #[error("table {table}: {problem}")]
    Table {
        /// Its name.
        table: String,
        /// Why not.
        problem: &'static str,
    },
    /// Pub/Sub cannot be used.
    #[error(transparent)]
    PubSub(#[from] PubsubError),
    /// A subscription cannot be read.
    #[error("cannot pull from {subscription}")]
    Pull {
        /// The full name.
        subscription: String,
        /// What the service said.
        #[source]
        source: Box<tonic::Status>,
    },
    /// There is one of this name, and it is not what was asked for.
    #[error("subscription {subscription} exists, and is another one: {differs}")]
    OtherKind {
        /// The full name.
        subscription: String,
        /// In what it differs.
        differs: String,
    },
    /// There is no such subscription.
    #[error("subscription {subscription} does not exist")]
    SubscriptionMissing {
        /// The full name.
        subscription: String,
    },
}

impl InboxError {
    /// Whether only others were in the way, so that the same may simply be tried again.
    #[must_use]
    pub fn is_in_the_way(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_transient_conflict())
    }
}
