//! What was committed and what arrived, compared without knowing how it got there.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Versions of an aggregate start at 1 and have no gaps among committed rows, so one number an
/// aggregate says what has arrived: everything up to it.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    arrived: HashMap<String, u64>,
    sum: Sum,
}

/// The counts so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sum {
    /// Rows whose transaction committed.
    pub committed: u64,
    /// Rows whose transaction was rolled back: none of them may arrive.
    pub rolled_back: u64,
    /// Different rows that arrived.
    pub delivered: u64,
    /// Rows that arrived behind a later row of their aggregate.
    pub out_of_order: u64,
    /// Rows that arrived again.
    pub duplicates: u64,
}

impl Sum {
    /// Committed rows that have not arrived.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.committed.saturating_sub(self.delivered)
    }
}

impl Ledger {
    /// Rows were committed.
    pub fn committed(&self, rows: u64) {
        self.state().sum.committed += rows;
    }

    /// Rows were rolled back.
    pub fn rolled_back(&self, rows: u64) {
        self.state().sum.rolled_back += rows;
    }

    /// A message arrived.
    pub fn arrived(&self, aggregate: &str, version: u64) {
        let mut state = self.state();
        let State { arrived, sum } = &mut *state;
        let last = arrived.entry(aggregate.to_owned()).or_default();
        if version <= *last {
            sum.duplicates += 1;
            return;
        }
        // A version was skipped: it was overtaken, or will never come.
        if version > *last + 1 {
            sum.out_of_order += 1;
        }
        *last = version;
        sum.delivered += 1;
    }

    /// Whether everything committed has arrived.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let sum = self.sum();
        sum.delivered >= sum.committed
    }

    /// The counts so far.
    #[must_use]
    pub fn sum(&self) -> Sum {
        self.state().sum
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_a_repetition_and_a_loss_are_told_apart() {
        let ledger = Ledger::default();
        ledger.committed(4);
        ledger.arrived("a", 1);
        ledger.arrived("a", 1);
        ledger.arrived("a", 3);
        ledger.arrived("b", 1);
        let sum = ledger.sum();
        assert_eq!((sum.delivered, sum.duplicates, sum.out_of_order), (3, 1, 1));
        assert_eq!(sum.lost(), 1);
        assert!(!ledger.is_complete());
    }
}
