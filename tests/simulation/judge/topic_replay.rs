//! What is known of a replay to a topic of its own.

use std::collections::{BTreeMap, BTreeSet};

use super::facts::RowNumber;

/// A replay to a topic of its own.
#[derive(Debug, Default)]
pub(super) struct TopicReplay {
    /// What its messages are marked with.
    pub(super) id: String,
    /// Where the rows that it repeats stand, by the numbers of the first time.
    pub(super) rows: BTreeMap<RowNumber, usize>,
    /// Everything before is on record as published.
    pub(super) noted: u64,
    /// Those that have done it, one after the other.
    pub(super) processes: BTreeSet<u64>,
    /// The last of them.
    pub(super) process: u64,
}

impl TopicReplay {
    /// Whether another process does it by now.
    pub(super) fn is_over_for(&self, process: u64) -> bool {
        self.process != process
    }
}
