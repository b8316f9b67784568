//! The rows of a topic that Pub/Sub has refused as invalid, until it is known whether the row or the
//! topic is at fault.

use std::time::{Duration, Instant};

use crate::failure::PublishFailure;
use crate::lanes::lane::{Batch, Row};

/// The rows of one topic.
#[derive(Debug)]
pub(crate) struct UndecidedRows {
    pub(crate) rows: Vec<Undecided>,
    /// The time of the first refusal.
    pub(crate) first: Instant,
    /// The time at which the rows are dead without further evidence.
    pub(crate) dead_at: Instant,
}

impl UndecidedRows {
    /// The time after the last refusal of a topic after which its refused rows are dead without
    /// further evidence.
    pub(crate) const QUIET: Duration = Duration::from_secs(2);

    /// The longest time for which a refused row is undecided.
    pub(crate) const LONGEST: Duration = Duration::from_secs(30);

    pub(crate) fn new(now: Instant) -> Self {
        Self { rows: Vec::new(), first: now, dead_at: now + Self::LONGEST }
    }
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
