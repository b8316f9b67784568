//! Which messages may be at fault themselves for what says nothing about an event.
//!
//! A missing right, a lock that is not to be had: where everything fails it is nobody's fault. Where one fails with
//! nothing beside it that passes, and others have passed since, it is that one's.

use std::collections::BTreeMap;

use crate::leases::Ticket;

#[derive(Debug, Default)]
pub(crate) struct Suspects {
    /// Batches of which something has passed, ever.
    passed: u64,
    /// What stood first in a batch of one key that failed, and how many had passed by then.
    failed: BTreeMap<Ticket, u64>,
}

impl Suspects {
    /// Something has passed.
    pub(crate) const fn others_passed(&mut self) {
        self.passed += 1;
    }

    /// It stood first in a batch of its key alone, which has failed.
    pub(crate) fn note(&mut self, first: Ticket) {
        self.failed.insert(first, self.passed);
    }

    /// It has failed by itself, and others have passed since.
    pub(crate) fn contains(&self, ticket: Ticket) -> bool {
        self.failed.get(&ticket).is_some_and(|passed_by_then| *passed_by_then < self.passed)
    }

    /// It is not held any more.
    pub(crate) fn forget(&mut self, ticket: Ticket) {
        self.failed.remove(&ticket);
    }
}
