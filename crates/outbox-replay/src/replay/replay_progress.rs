//! The progress of a replay, for display.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pgoutput_parser::Lsn;

/// The counts of one replay. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    published: AtomicU64,
    dead: AtomicU64,
    settled: AtomicU64,
}

impl Tally {
    /// Creates the counts of a replay that has already published so many rows, up to `settled`.
    #[must_use]
    pub fn resumed(published: u64, settled: Lsn) -> Self {
        let tally = Self::default();
        tally.counts.published.store(published, Ordering::Relaxed);
        tally.settled_to(settled);
        tally
    }

    pub(super) fn add_published(&self, rows: u64) {
        self.counts.published.fetch_add(rows, Ordering::Relaxed);
    }

    pub(super) fn add_skipped(&self, rows: u64) {
        self.counts.dead.fetch_add(rows, Ordering::Relaxed);
    }

    pub(super) fn settled_to(&self, lsn: Lsn) {
        self.counts.settled.fetch_max(lsn.as_u64(), Ordering::Relaxed);
    }

    #[must_use]
    pub fn published(&self) -> u64 {
        self.counts.published.load(Ordering::Relaxed)
    }

    /// Returns the number of rows skipped because Pub/Sub never accepts them.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.counts.dead.load(Ordering::Relaxed)
    }

    /// Returns the position before which everything is published.
    #[must_use]
    pub fn settled(&self) -> Lsn {
        Lsn::new(self.counts.settled.load(Ordering::Relaxed))
    }
}
