//! How far a replay has come, for whoever shows it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pgoutput_parser::Lsn;

/// Counts of one replay. A copy shares them.
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
    /// Of a replay that has published so many rows before, up to there.
    #[must_use]
    pub fn resumed(published: u64, settled: Lsn) -> Self {
        let tally = Self::default();
        tally.counts.published.store(published, Ordering::Relaxed);
        tally.settled_to(settled);
        tally
    }

    pub(super) fn published_more(&self, rows: u64) {
        self.counts.published.fetch_add(rows, Ordering::Relaxed);
    }

    pub(super) fn left_out_more(&self, rows: u64) {
        self.counts.dead.fetch_add(rows, Ordering::Relaxed);
    }

    pub(super) fn settled_to(&self, lsn: Lsn) {
        self.counts.settled.fetch_max(lsn.as_u64(), Ordering::Relaxed);
    }

    /// Rows published.
    #[must_use]
    pub fn published(&self) -> u64 {
        self.counts.published.load(Ordering::Relaxed)
    }

    /// Rows left out because Pub/Sub would never take them.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.counts.dead.load(Ordering::Relaxed)
    }

    /// Everything before is published.
    #[must_use]
    pub fn settled(&self) -> Lsn {
        Lsn::new(self.counts.settled.load(Ordering::Relaxed))
    }
}
