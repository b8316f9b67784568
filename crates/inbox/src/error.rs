//! The reasons why a consumer does not start, or stops unasked.

use std::time::Duration;

use walrelay_errors::{Code, Coded};
use walrelay_pg_client::{PgError, SCHEMA, SqlError};
use walrelay_pubsub::PubsubError;

use crate::apply::loop_state::REFUSED_LASTS;

/// A problem that a person has to fix.
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
    /// A statement failed in the outbox's database.
    #[error(transparent)]
    Outbox(SqlError),
    /// The database has no inbox, or one that this version does not know.
    #[error("the inbox cannot be used: {problem}")]
    Inbox {
        /// The server's error, or the difference in the inbox.
        problem: String,
    },
    /// The role lacks privileges that a consumer needs.
    #[error("role {role:?} lacks {lacks}")]
    Rights {
        /// The connected role.
        role: String,
        /// Each missing privilege with its object.
        lacks: String,
        /// The statements that grant the privileges.
        hint: String,
    },
    /// The consumer should catch up, and the server refuses every event.
    #[error("nothing could be applied for {} s: {problem}", REFUSED_LASTS.as_secs())]
    Refused {
        /// The server's last error.
        problem: String,
    },
    /// The consumer does not exist.
    #[error("consumer {consumer:?} is not known in this database")]
    Unregistered {
        /// The consumer's name.
        consumer: String,
    },
    /// The consumer should catch up, and is paused.
    #[error("consumer {consumer:?} is paused, and does not catch up before it is resumed")]
    Paused {
        /// The consumer's name.
        consumer: String,
    },
    /// There is no function of this name that resets keys.
    #[error("reset function {function}: there is no {function}(text[]) or {function}(text)")]
    ResetFunctionMissing {
        /// The name as given.
        function: String,
    },
    /// No handler or several handlers match the name.
    #[error("handler {handler:?}: {problem}")]
    Handler {
        /// The name as given.
        handler: String,
        /// The problem with the name.
        problem: String,
    },
    /// During a rebuild in a schema the handler writes other tables.
    #[error(
        "handler {handler:?}: it writes {tables}, which is not in schema {schema}, and nothing of that has taken effect"
    )]
    WritesElsewhere {
        /// The name as given.
        handler: String,
        /// The tables.
        tables: String,
        /// The schema.
        schema: String,
    },
    /// The consumer exists with another subscription.
    #[error(
        "consumer {consumer:?} reads {subscription} already, and has applied events from it; a consumer of another \
         name applies every event again"
    )]
    OtherSubscription {
        /// The consumer's name.
        consumer: String,
        /// The subscription that the consumer reads.
        subscription: String,
    },
    /// The inbox does not have the event.
    #[error("the inbox of consumer {consumer:?} has no event {event_id:?}")]
    UnknownEvent {
        /// The consumer's name.
        consumer: String,
        /// The requested id.
        event_id: String,
    },
    /// The consumer has applied no event of the ordering key.
    #[error("consumer {consumer:?} has no ordering key {ordering_key:?}")]
    UnknownKey {
        /// The consumer's name.
        consumer: String,
        /// The requested key.
        ordering_key: String,
    },
    /// Events of the ordering key were applied meanwhile.
    #[error(
        "ordering key {ordering_key:?} has moved on since it was shown, and nothing has changed"
    )]
    KeyMoved {
        /// The key.
        ordering_key: String,
    },
    /// A crash of the server would empty tables of the inbox.
    #[error("unlogged tables of the inbox: {}; a crash of the server would empty them", .tables.join(", "))]
    Unlogged {
        /// The tables.
        tables: Vec<String>,
    },
    /// The consumer's database cannot store every text of an event.
    #[error(
        "database {database} has the encoding {encoding}: texts of events are UTF-8, and it cannot store them all"
    )]
    Encoding {
        /// The database.
        database: String,
        /// Its encoding.
        encoding: String,
    },
    /// The database has several consumers, and the command named none.
    #[error("this database has several consumers: {names}")]
    SeveralConsumers {
        /// The names of the consumers.
        names: String,
    },
    /// The server refused the SQL that empties a read model. Neither the SQL nor the rebuild has
    /// changed anything.
    #[error("the SQL that empties the read model was refused, and nothing has changed")]
    Reset(#[source] tokio_postgres::Error),
    /// No handler can be printed for a table.
    #[error("table {table}: {problem}")]
    Table {
        /// The table's name.
        table: String,
        /// The reason.
        problem: &'static str,
    },
    /// A call to Pub/Sub failed.
    #[error(transparent)]
    PubSub(#[from] PubsubError),
    /// A subscription cannot be read.
    #[error("cannot pull from {subscription}")]
    Pull {
        /// The full name of the subscription.
        subscription: String,
        /// The service's error.
        #[source]
        source: Box<tonic::Status>,
    },
    /// A subscription of this name exists with other settings.
    #[error("subscription {subscription} exists, and is another one: {differs}")]
    OtherKind {
        /// The full name of the subscription.
        subscription: String,
        /// The settings that differ.
        differs: String,
    },
    /// The consumer needs the positions of keys that would be deleted.
    #[error(
        "the positions of idle keys cannot be deleted: the consumer skips events by position, or waits for missing versions"
    )]
    KeysNeeded,
    /// Pub/Sub may deliver events again whose rows retention would have deleted.
    #[error(
        "Pub/Sub may deliver messages of {subscription} again after {} s, dead letters included; rows of the inbox must stay \
         for at least {} s",
        older_than.as_secs(),
        least.as_secs()
    )]
    RetentionTooShort {
        /// The full name of the subscription.
        subscription: String,
        /// The configured age.
        older_than: Duration,
        /// The shortest age that is safe.
        least: Duration,
    },
    /// The subscription does not exist.
    #[error("subscription {subscription} does not exist")]
    SubscriptionMissing {
        /// The full name of the subscription.
        subscription: String,
    },
}

impl InboxError {
    /// Returns whether another transaction was in the way, so that a retry may succeed.
    #[must_use]
    pub fn is_in_the_way(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_transient_conflict())
    }
}

impl Coded for InboxError {
    fn code(&self) -> Code {
        match self {
            Self::Connect(error) => error.code(),
            Self::Store(error) => code_in_inbox(error),
            Self::Outbox(error) => error.code(),
            Self::Rights { .. } => Code::PermissionMissing,
            Self::Inbox { .. } | Self::Encoding { .. } => Code::InboxUnsuitable,
            Self::Unlogged { .. } => Code::InboxTableUnlogged,
            Self::Paused { .. } => Code::ConsumerPaused,
            Self::Refused { .. } => Code::HandlerFailed,
            Self::Unregistered { .. } => Code::ConsumerNotFound,
            Self::SeveralConsumers { .. } => Code::ConsumerAmbiguous,
            Self::OtherSubscription { .. } => Code::ConsumerReadsAnotherSubscription,
            Self::Handler { .. }
            | Self::ResetFunctionMissing { .. }
            | Self::WritesElsewhere { .. } => Code::HandlerUnsuitable,
            Self::Reset(_) => Code::ResetSqlFailed,
            Self::AlreadyFinished { .. } => Code::EventAlreadyFinished,
            Self::UnknownEvent { .. } => Code::EventNotFound,
            Self::UnknownKey { .. } => Code::OrderingKeyNotFound,
            Self::KeyMoved { .. } => Code::OrderingKeyChanged,
            Self::Table { .. } => Code::ScaffoldTableUnsuitable,
            Self::PubSub(error) => error.code(),
            Self::Pull { .. } => Code::PubsubUnusable,
            Self::SubscriptionMissing { .. } => Code::SubscriptionNotFound,
            Self::RetentionTooShort { .. } => Code::RetentionTooShort,
            Self::KeysNeeded => Code::ConfigurationInvalid,
            Self::OtherKind { .. } => Code::SubscriptionDiffers,
        }
    }

    fn fix(&self) -> Option<String> {
        if let Self::Rights { hint, .. } = self {
            Some(hint.clone())
        } else if let Self::Unlogged { tables } = self {
            Some(format!("as their owner: {}", set_logged(tables)))
        } else if let Self::Encoding { .. } = self {
            Some("create another database, with ENCODING 'UTF8' TEMPLATE template0, and set the consumer up there".to_owned())
        } else if let Self::WritesElsewhere { tables, schema, .. } = self {
            Some(format!(
                "create each table that schema {schema} lacks, like the live one ({tables}). If it has them, the handler \
                 must name its tables without a schema, and not set search_path: name such a copy of it. A rebuild from the \
                 topic needs neither"
            ))
        } else {
            None
        }
    }
}

/// Returns the statements that make these tables durable.
fn set_logged(tables: &[String]) -> String {
    let statements = tables.iter().map(|table| format!("ALTER TABLE {SCHEMA}.{table} SET LOGGED"));
    statements.collect::<Vec<_>>().join("; ")
}

/// Returns the code of a statement's error in the consumer's database.
fn code_in_inbox(error: &SqlError) -> Code {
    let code = error.code();
    // An earlier check found the outbox's tables, so a missing table belongs to the inbox.
    if code == Code::TableMissing {
        Code::InboxUnsuitable
    } else if code == Code::PermissionMissing {
        Code::ConsumerPermissionMissing
    } else {
        code
    }
}
