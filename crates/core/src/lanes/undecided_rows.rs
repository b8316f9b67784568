//! The rows of a topic that Pub/Sub has refused as invalid, until it is known whether the row or the
//! topic is at fault.

use std::time::{Duration, Instant};

use crate::failure::PublishFailure;
use crate::lanes::lane::{Batch, Row};

#[derive(Debug)]
pub(crate) struct UndecidedRows {
    /// Single rows whose lane waits, as if the reply were still out.
    pub(crate) batches: Vec<(Batch, PublishFailure)>,
    /// Rows whose lane sends the rows behind them, because a dead row does not hold its key. The rows
    /// of a key are in order.
    pub(crate) passed_over: Vec<(Row, PublishFailure)>,
    /// The time of the second try without further evidence: `--park-after` after the last refusal of
    /// the topic.
    pub(crate) again_at: Instant,
}

impl UndecidedRows {
    /// The longest time without a refusal of the topic. A row of dispatch state is decided before
    /// its claim ends.
    pub(crate) const QUIET_MAX: Duration = Duration::from_secs(30);

    pub(crate) fn is_empty(&self) -> bool {
        self.batches.is_empty() && self.passed_over.is_empty()
    }

    /// Takes the rows of a key that its lane has passed over, in order.
    pub(crate) fn take_key(&mut self, ordering_key: &str) -> Vec<(Row, PublishFailure)> {
        let is_of_key = |(row, _): &mut (Row, _)| row.message.ordering_key() == ordering_key;
        self.passed_over.extract_if(.., is_of_key).collect()
    }

    /// Makes the next refusal of each row the last one.
    pub(crate) fn mark_last_try(&mut self) {
        let held = self.batches.iter_mut().flat_map(|(batch, _)| &mut batch.rows);
        let passed_over = self.passed_over.iter_mut().map(|(row, _)| row);
        held.chain(passed_over).for_each(|row| row.is_last_try = true);
    }
}
