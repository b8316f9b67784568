//! What can be wrong, on purpose, with what the simulation has resets and replays do.

/// What is wrong with a reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResetBug {
    /// Rows that were published from dispatch state behind the target still count as recorded.
    KeepsWhatWasPublished,
    /// What is settled stays where it was.
    KeepsWhatIsSettled,
    /// What is settled becomes where the anchor stands, not the target.
    BeginsAtTheAnchor,
    /// The slot is made anew, not a copy of the anchor.
    BeginsAtTheEnd,
    /// Nobody looks whether one is on record.
    IsForgotten,
}

/// What is wrong with a replay to a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplayBug {
    /// Its messages are not marked.
    ForgetsItsMark,
    /// Taken up again, it begins with the first row.
    ForgetsItsPlace,
    /// It ends before the last rows.
    LeavesOut,
    /// It notes more than is published.
    NotesTooMuch,
    /// It streams the slot of the relay, not a copy of the anchor.
    StreamsTheLiveSlot,
    /// A batch that is refused goes out again behind the next one of its key.
    RetriesBehindTheNext,
}
