//! The steps of a rebuild, and the changes that need the operator's consent.

use std::time::SystemTime;

use crate::event_commands::{EarlierEvents, OperatorDecisions};

/// A finished step of a rebuild, or a fact that the operator needs during it.
#[derive(Debug)]
#[expect(missing_docs, reason = "each field is named after its value")]
pub enum RebuildStep {
    Note(RebuildNote),
    Subscription(SubscriptionStep),
    /// Messages that were published since then are applied again.
    ReachesBackTo(SystemTime),
    /// The next generation takes over none of these decisions.
    DecisionsForgotten {
        decided: OperatorDecisions,
        generation: i32,
    },
    /// The tables are emptied first. Readers miss the events since this time meanwhile, and the
    /// effects of older events are gone.
    TablesEmptied {
        since: SystemTime,
    },
    /// The operator did not agree, or this is a dry run.
    NothingChanged,
    /// A dry run found these rows.
    WouldFill {
        rows: u64,
        schema: String,
    },
    /// An earlier rebuild of the schema continues.
    Continues,
    /// An earlier rebuild of the schema begins again, because its tables were emptied or replaced.
    BeginsAgain {
        schema: String,
    },
    FillingBegins {
        generation: i32,
        schema: String,
        rows: u64,
    },
    Switched {
        generation: i32,
    },
    KeysRebuilt {
        events: u64,
        keys: usize,
        generation: i32,
        is_dry_run: bool,
    },
    /// There is nothing to cancel.
    NoRebuild {
        consumer: String,
    },
    Cancelled {
        schema: String,
    },
}

/// A fact that is no result. Most of them need attention.
#[derive(Debug)]
#[expect(missing_docs, reason = "each field is named after its value")]
pub enum RebuildNote {
    /// These events are out of reach, and a reset removes their effects.
    EventsOutOfReach { earlier: EarlierEvents, generation: i32 },
    /// The transaction has committed, although its reply was lost.
    ReplyLost,
    /// These rows can never be published, and are left out.
    RowsLeftOut { rows: u64, named: Vec<String> },
}

/// A step of a rebuild that reads a subscription of its own.
#[derive(Debug)]
#[expect(missing_docs, reason = "each field is named after its value")]
pub enum SubscriptionStep {
    SubscriptionReady {
        name: String,
        is_new: bool,
    },
    /// The subscription was sought, and the rebuild waits until this is in effect.
    SubscriptionSought,
    /// The new generation reads the messages since then.
    BegunFromTopic {
        generation: i32,
        since: SystemTime,
    },
    /// The consumer was paused before the rebuild.
    ConsumerPaused {
        consumer: String,
    },
    /// Running instances read the new subscription soon.
    InstancesFollow {
        consumer: String,
        old: String,
    },
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
