//! The state of a replay to a separate topic.

use std::collections::{BTreeMap, BTreeSet};

use super::facts::RowNumber;

/// A replay to a separate topic.
#[derive(Debug, Default)]
pub(super) struct TopicReplay {
    /// The mark of its messages.
    pub(super) id: String,
    /// The indices of its rows, by the numbers of the original rows.
    pub(super) rows: BTreeMap<RowNumber, usize>,
    /// Everything before this position is on record as published.
    pub(super) noted: u64,
    /// The processes that have run it, one after the other.
    pub(super) processes: BTreeSet<u64>,
    /// The last of these processes.
    pub(super) process: u64,
}

impl TopicReplay {
    /// Returns whether another process has taken the replay over.
    pub(super) fn is_over_for(&self, process: u64) -> bool {
        self.process != process
    }
}
