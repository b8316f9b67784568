//! Why a rebuild refused to begin, or ended early.

use std::time::{Duration, SystemTime};

use crate::live_foreign_keys::ForeignKeyConflict;
use crate::side_by_side_rebuild::RebuildHolder;
use walrelay_envelope::ParseFilterError;
use walrelay_errors::{BoxedError, Code, Coded};
use walrelay_inbox::{InboxError, UnfinishedRebuild};
use walrelay_outbox_replay::AdminError;
use walrelay_pg_client::{PgError, SqlError};
use walrelay_pubsub::PubsubError;
use walrelay_relay::error::RelayError;
use walrelay_relay::observe::report::rfc3339;

#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each field is named after its value")]
pub enum RebuildError {
    /// The consumer's database refused, or the consumer does not allow the rebuild.
    #[error(transparent)]
    Inbox(#[from] InboxError),
    /// The database of the outbox refused.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// The rows cannot be read.
    #[error(transparent)]
    Relay(#[from] RelayError),
    /// A connection failed.
    #[error(transparent)]
    Postgres(#[from] PgError),
    /// Pub/Sub refused, or cannot be reached.
    #[error(transparent)]
    PubSub(#[from] PubsubError),
    /// The operator did not agree, or cannot be asked.
    #[error(transparent)]
    Operator(BoxedError),
    #[error("stopped by a signal before it was done")]
    Interrupted,

    /// A rebuild needs a subscription that nobody has pulled from.
    #[error("consumer {consumer:?} reads {subscription} already")]
    SubscriptionInUse { consumer: String, subscription: String },
    /// The subscription does not deliver the same messages in the same order.
    #[error("subscription {subscription} exists, and its topic, filter or ordering is another one")]
    SubscriptionDiffers { subscription: String },
    /// It is unknown which rows pass the filter.
    #[error("subscription {subscription}: its filter cannot be read")]
    FilterUnreadable { subscription: String, source: ParseFilterError },
    /// The filter depends on attributes that a row of the table does not have.
    #[error(
        "subscription {subscription}: its filter names {attribute}, which a row of the outbox table does not have"
    )]
    FilterOnPosition { subscription: String, attribute: &'static str },
    /// The consumer reads another topic than the relay publishes to.
    #[error(
        "no row of the outbox goes to topic {topic}, which the consumer reads{}",
        if *is_filtered { ", and passes the filter of its subscription" } else { "" }
    )]
    TopicWithoutRows { topic: String, is_filtered: bool },
    /// A new subscription would start empty.
    #[error("topic {topic} retains no messages for new subscriptions")]
    TopicRetainsNothing { consumer: String, topic: String },
    /// The topic has dropped messages since the time.
    #[error("topic {topic} retains messages for {}", in_words(*retention))]
    TopicRetainsLess { consumer: String, topic: String, retention: Duration },
    /// A seek to the future would skip messages.
    #[error("{} is in the future", rfc3339(*since))]
    TimeInFuture { since: SystemTime },
    /// Another process works on a rebuild of the consumer.
    #[error("another process rebuilds consumer {consumer:?}{}", holder.map(process).unwrap_or_default())]
    RebuildRunning { consumer: String, holder: Option<RebuildHolder> },
    /// Another rebuild of the consumer must end first.
    #[error("{}", rebuild.report())]
    RebuildUnfinished { consumer: String, rebuild: UnfinishedRebuild },
    /// Some rows are dead, or can never be published.
    #[error("{rows} row(s) of the outbox cannot be applied again; nothing has changed. {}", named.join("; "))]
    RowsUnusable { rows: u64, named: Vec<String> },
    #[error("schema {schema:?} has no tables to fill")]
    SchemaEmpty { schema: String },
    /// A table of the schema cannot replace a live table.
    #[error("{}", mismatch.describe(staged))]
    TableUnsuitable { staged: String, mismatch: TableMismatch },
    /// The rows of live tables cannot be replaced.
    #[error("the rows of the live tables cannot be replaced: {}", in_a_row(keys))]
    ForeignKeyConflicts { keys: Vec<ForeignKeyConflict> },
    /// The rows of the tables would count as rebuilt.
    #[error("not empty: {}; the rows there would count as rebuilt", tables.join(", "))]
    TablesNotEmpty { tables: Vec<String> },
    /// Applied events are missing in the schema.
    #[error(
        "the tables of schema {schema:?} were emptied or replaced during the fill; nothing was switched"
    )]
    TablesReplaced { schema: String },
    /// The rows of the schema cannot be moved into the live tables. Nothing was switched.
    #[error("the rows cannot be moved into the live tables: {problem}; nothing was switched")]
    RowsRefused {
        /// The server's message, and its detail.
        problem: String,
        hint: Option<String>,
    },
    /// The next generation lacks events of the live generation.
    #[error(
        "filled, but not switched to: {missing} event(s) that generation {generation} has applied are not among the rows \
         of the outbox. {unfinished} event(s) are retried or dead in generation {}",
        generation + 1
    )]
    EventsMissing { consumer: String, generation: i32, missing: i64, unfinished: i64 },
    /// The outbox may lack applied events that the inbox does not list any more.
    #[error(
        "nothing has changed. Events that consumer {consumer:?} received before {} were deleted from its inbox, so nothing \
         shows whether the outbox still has all that were applied",
        rfc3339(*before)
    )]
    HistoryPruned { consumer: String, before: SystemTime },
    /// The handler has written nothing to a table that has rows now.
    #[error(
        "filled, but not switched to: the handler wrote no row to {}, so the rows there now would be gone",
        tables.join(", ")
    )]
    TablesEmptied { consumer: String, tables: Vec<String> },
    #[error("the outbox has no published rows of these keys; nothing has changed")]
    KeysWithoutRows,
    /// Decisions about events of the keys, or events themselves, would be lost.
    #[error(
        "nothing has changed. {edited} edited and {discarded} discarded event(s) of these keys would be applied as they \
         were published. {lost} applied event(s) would not be applied again: {}",
        failure.as_deref().unwrap_or("they are not in the outbox any more")
    )]
    KeyEventsLost { edited: i64, discarded: i64, lost: i64, failure: Option<String> },
}

/// Why a table of the schema cannot replace a live table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TableMismatch {
    /// No table of this name is on the search path.
    NoLiveTable { name: String },
    /// The table is itself on the search path.
    IsLive,
    /// The live table has other columns.
    OtherColumns { live: String },
}

impl TableMismatch {
    fn describe(&self, staged: &str) -> String {
        match self {
            Self::NoLiveTable { name } => {
                format!("no table {name} is on the search path that {staged} could replace")
            }
            Self::IsLive => format!("{staged} is itself on the search path"),
            Self::OtherColumns { live } => format!("{staged} has other columns than {live}"),
        }
    }
}

/// Describes the session of another rebuild.
fn process(holder: RebuildHolder) -> String {
    let RebuildHolder { pid, since } = holder;
    let since = since.map(|since| format!(", connected since {}", rfc3339(since)));
    format!(": server process {pid}{}", since.unwrap_or_default())
}

fn in_a_row(keys: &[ForeignKeyConflict]) -> String {
    let each = keys.iter().map(|key| {
        let ForeignKeyConflict { name, table, referenced, effect, .. } = key;
        format!("foreign key {name} of {table} references {referenced}, and {effect}")
    });
    each.collect::<Vec<_>>().join("; ")
}

/// Returns a duration in the largest unit that divides it, as in `7d`.
fn in_words(duration: Duration) -> String {
    let millis = duration.as_millis();
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")];
    match units.iter().find(|(each, _)| millis > 0 && millis.is_multiple_of(*each)) {
        Some((each, unit)) => format!("{}{unit}", millis / each),
        None => format!("{millis}ms"),
    }
}

impl From<SqlError> for RebuildError {
    fn from(error: SqlError) -> Self {
        Self::Admin(AdminError::from(error))
    }
}

impl Coded for RebuildError {
    fn code(&self) -> Code {
        match self {
            Self::Inbox(error) => error.code(),
            Self::Admin(error) => error.code(),
            Self::Relay(error) => error.code(),
            Self::Postgres(error) => error.code(),
            Self::PubSub(error) => error.code(),
            Self::Operator(error) => error.code(),
            Self::Interrupted => Code::Interrupted,
            Self::TimeInFuture { .. } => Code::ArgumentInvalid,
            Self::SubscriptionInUse { .. } | Self::SubscriptionDiffers { .. } => {
                Code::RebuildSubscriptionUnsuitable
            }
            Self::FilterUnreadable { .. } | Self::FilterOnPosition { .. } => {
                Code::RebuildSubscriptionFiltered
            }
            Self::TopicRetainsNothing { .. } | Self::TopicRetainsLess { .. } => {
                Code::RebuildBeyondRetention
            }
            Self::RebuildRunning { .. } | Self::RebuildUnfinished { .. } => Code::RebuildConflict,
            Self::TopicWithoutRows { .. } => Code::OutboxEmpty,
            Self::RowsUnusable { .. } => Code::RebuildRowsUnusable,
            Self::SchemaEmpty { .. }
            | Self::TableUnsuitable { .. }
            | Self::TablesNotEmpty { .. }
            | Self::RowsRefused { .. }
            | Self::TablesReplaced { .. } => Code::RebuildTablesUnsuitable,
            Self::ForeignKeyConflicts { .. } => Code::RebuildForeignKeyUnsuitable,
            Self::EventsMissing { .. }
            | Self::HistoryPruned { .. }
            | Self::TablesEmptied { .. }
            | Self::KeyEventsLost { .. } => Code::RebuildLosesEvents,
            Self::KeysWithoutRows => Code::OrderingKeyWithoutRows,
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "the shell has the fix of the others")]
    fn fix(&self) -> Option<String> {
        match self {
            Self::Operator(error) => error.fix(),
            Self::Inbox(error) => error.fix(),
            _ => None,
        }
    }
}
