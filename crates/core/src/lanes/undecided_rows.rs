//! The rows of a topic that Pub/Sub has refused as invalid, until it is known whether the row or the
//! topic is at fault.

use std::time::{Duration, Instant};

use crate::failure::PublishFailure;
use crate::lanes::lane::{Batch, Row};

#[derive(Debug)]
pub(crate) struct UndecidedRows {
    pub(crate) rows: Vec<Undecided>,
    /// The time at which the rows are dead without further evidence: `--park-after` after the last
    /// refusal of the topic.
    pub(crate) dead_at: Instant,
}

impl UndecidedRows {
    /// The longest time without a refusal of the topic. A row of dispatch state is decided before
    /// its claim ends.
    pub(crate) const QUIET_MAX: Duration = Duration::from_secs(30);
}

#[derive(Debug)]
pub(crate) struct Undecided {
    pub(crate) row: Held,
    pub(crate) failure: PublishFailure,
}

#[derive(Debug)]
pub(crate) enum Held {
    /// The lane of the batch waits, as if the reply were still out.
    Batch(Batch),
    /// The lane sends the rows behind it, because a dead row does not hold its key.
    PassedOver(Row),
}

impl Undecided {
    pub(crate) fn is_of_key(&self, ordering_key: &str) -> bool {
        match &self.row {
            Held::Batch(_) => false,
            Held::PassedOver(row) => row.message.ordering_key() == ordering_key,
        }
    }

    pub(crate) fn into_row(self) -> Option<Row> {
        match self.row {
            Held::PassedOver(row) => Some(row),
            Held::Batch(_) => None,
        }
    }
}
