//! Bugs that the simulation adds on purpose to resets and replays.

/// A bug in a reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResetBug {
    /// Rows published from dispatch state behind the target still count as recorded.
    KeepsWhatWasPublished,
    /// The settled position does not change.
    KeepsWhatIsSettled,
    /// The settled position becomes the anchor's position instead of the target.
    BeginsAtTheAnchor,
    /// The slot is created new instead of as a copy of the anchor.
    BeginsAtTheEnd,
    /// No process checks whether a reset is on record.
    IsForgotten,
}

/// A bug in a replay to a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplayBug {
    /// Its messages have no mark.
    ForgetsItsMark,
    /// After a restart, it starts with the first row.
    ForgetsItsPlace,
    /// It ends before the last rows.
    LeavesOut,
    /// It records more progress than it has published.
    NotesTooMuch,
    /// It streams the slot of the relay instead of a copy of the anchor.
    StreamsTheLiveSlot,
    /// A refused batch is retried after the next batch of its key.
    RetriesBehindTheNext,
}
