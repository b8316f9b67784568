//! The steps of a rebuild, and the changes that need the operator's consent.

use std::time::SystemTime;

use walrelay_inbox::operator::event_commands::{EarlierEvents, OperatorDecisions};

/// A finished step of a rebuild, or a fact that the operator needs during it.
#[derive(Debug)]
#[expect(missing_docs, reason = "each field is named after its value")]
pub enum RebuildStep {
    /// A fact that is no result.
    Note(RebuildNote),
    /// A step of a rebuild that reads a subscription of its own.
    Subscription(SubscriptionStep),
    /// Messages that were published since then are applied again.
    ReachesBackTo(SystemTime),
    /// The next generation takes over none of these decisions.
    DecisionsForgotten { decided: OperatorDecisions, generation: i32 },
    /// The tables are emptied first, and readers miss rows meanwhile.
    TablesEmptied(UnreadRows),
    /// The operator did not agree, or this is a dry run.
    NothingChanged,
    /// A dry run found these rows.
    WouldFill { rows: u64, schema: String },
    /// An earlier rebuild of the schema continues.
    Continues,
    /// An earlier rebuild of the schema begins again, because its tables were emptied or replaced.
    BeginsAgain { schema: String },
    /// The next generation is filled in the schema.
    FillingBegins { generation: i32, schema: String, rows: u64 },
    /// The generation is live.
    Switched { generation: i32 },
    /// The keys are rebuilt, or would be.
    KeysRebuilt { events: u64, keys: usize, generation: i32, is_dry_run: bool },
    /// There is nothing to cancel.
    NoRebuild { consumer: String },
    /// The rebuild in the schema is cancelled.
    SchemaRebuildCancelled { schema: String },
    /// The refill is cancelled, and the consumer reads its usual subscription.
    RefillCancelled { consumer: String, subscription: String },
}

/// A fact that is no result. Most of them need attention.
#[derive(Debug)]
#[expect(missing_docs, reason = "each field is named after its value")]
pub enum RebuildNote {
    /// The number of rows that will be published.
    PublishesRows { rows: u64 },
    /// These events are out of reach, and a reset removes their effects.
    EventsOutOfReach { earlier: EarlierEvents, generation: i32 },
    /// The transaction has committed, although its reply was lost.
    ReplyLost,
    /// The replay of a failed refill could not be cancelled.
    ReplayLeft { id: String, error: String },
    /// No instance of the consumer seems to run.
    NothingApplied { count: u64, rows: u64 },
    /// The refill ended early. The consumer reads its subscription until the next attempt.
    RefillInterrupted { consumer: String, subscription: String },
    /// These rows can never be published, and are left out.
    RowsLeftOut { rows: u64, named: Vec<String> },
}

/// A step of a rebuild that reads a subscription of its own.
#[derive(Debug)]
#[expect(missing_docs, reason = "each field is named after its value")]
pub enum SubscriptionStep {
    /// The new subscription exists.
    SubscriptionReady { name: String, is_new: bool },
    /// The subscription was sought, and the rebuild waits until this is in effect.
    SubscriptionSought,
    /// The new generation reads the messages since then.
    BegunFromTopic { generation: i32, since: SystemTime },
    /// The consumer was paused before the rebuild.
    ConsumerPaused { consumer: String },
    /// Running instances read the new subscription soon.
    InstancesFollow { consumer: String, old: String },
    /// A dry run found these rows.
    WouldPublish { rows: u64, topic: String },
    /// The new generation reads the subscription of the refill.
    BegunFromOutbox { generation: i32, subscription: String },
    /// The rows are in the topic of the refill.
    RowsPublished { rows: u64, topic: String, left_out: u64 },
    /// Every row is in the inbox, and instances read the usual subscription again.
    RowsInInbox { consumer: String, unfinished: i64, usual: String, refill: String },
}

impl From<RebuildNote> for RebuildStep {
    fn from(note: RebuildNote) -> Self {
        Self::Note(note)
    }
}

impl From<SubscriptionStep> for RebuildStep {
    fn from(step: SubscriptionStep) -> Self {
        Self::Subscription(step)
    }
}

/// The rows that readers of emptied tables miss until they are applied again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnreadRows {
    /// The events since a time. Older events are gone.
    Since(SystemTime),
    /// This number of outbox rows.
    Rows(u64),
}

/// A change of a rebuild that needs the operator's consent.
#[derive(Debug)]
#[expect(missing_docs, reason = "each field is named after its value")]
pub enum RebuildChange {
    /// Empties the live tables, and fills them again.
    InPlace { consumer: String },
    /// Applies events as they were published, without the operators' decisions about them.
    WithoutDecisions { consumer: String, events: i64 },
    /// Cancels an unfinished rebuild.
    Cancel { consumer: String, generation: i64 },
}
