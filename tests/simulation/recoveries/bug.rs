//! Bugs that are planted into a recovery, so that the judge has something to find.

/// What is wrong with a recovery, on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bug {
    /// Each process begins with the first row.
    ForgetsItsPlace,
    /// The place of a recovery is used for another slot, which does not stream other rows.
    KeepsThePlaceOfAnotherSlot,
    /// The place is behind rows that were read and are not settled.
    NotesWhatIsOnlyRead,
    /// Rows are numbered from zero again where a recovery continues.
    NumbersFromZero,
}
