//! Bugs that are planted into a recovery, so that the judge must find them.

/// A planted bug of a recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bug {
    /// Each process starts with the first row.
    ForgetsItsPlace,
    /// The place of a recovery is used for another slot, which does not stream the same rows.
    KeepsThePlaceOfAnotherSlot,
    /// The recorded place is behind rows that were read but are not settled.
    NotesWhatIsOnlyRead,
    /// A resumed recovery numbers rows from zero again.
    NumbersFromZero,
    /// No session holds the slot while rows of the table are published.
    LeavesTheSlot,
    /// Recorded rows of the new slot are published before the rows of the table.
    SeesRowsOfTheSlot,
    /// The rows of a second slot are published together with the rows of the first.
    JoinsParts,
}
