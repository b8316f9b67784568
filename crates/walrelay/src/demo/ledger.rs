//! Compares committed with delivered rows, independent of the path between them.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The committed and delivered rows of the demo.
///
/// Versions of an aggregate start at 1 and have no gaps among committed rows. Hence one number per
/// aggregate is enough: every version up to it has arrived.
#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    arrived: HashMap<String, u64>,
    sum: Sum,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub committed: u64,
    /// Rows whose transaction was rolled back. No such row may arrive.
    pub rolled_back: u64,
    /// Distinct rows that arrived.
    pub delivered: u64,
    /// Rows that arrived after a skipped version of their aggregate.
    pub out_of_order: u64,
    pub duplicates: u64,
}

impl Sum {
    /// Returns the number of committed rows that have not arrived.
    #[must_use]
    pub(crate) const fn lost(&self) -> u64 {
        self.committed.saturating_sub(self.delivered)
    }
}

impl Ledger {
    pub(crate) fn committed(&self, rows: u64) {
        self.state().sum.committed += rows;
    }

    pub(crate) fn rolled_back(&self, rows: u64) {
        self.state().sum.rolled_back += rows;
    }

    pub(crate) fn arrived(&self, aggregate: &str, version: u64) {
        let mut state = self.state();
        let State { arrived, sum } = &mut *state;
        let last = arrived.entry(aggregate.to_owned()).or_default();
        if version <= *last {
            sum.duplicates += 1;
            return;
        }
        // The skipped version was overtaken, or will never come.
        if version > *last + 1 {
            sum.out_of_order += 1;
        }
        *last = version;
        sum.delivered += 1;
    }

    /// Returns whether every committed row has arrived.
    #[must_use]
    pub(crate) fn is_complete(&self) -> bool {
        let sum = self.sum();
        sum.delivered >= sum.committed
    }

    #[must_use]
    pub(crate) fn sum(&self) -> Sum {
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
