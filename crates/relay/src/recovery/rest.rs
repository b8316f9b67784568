//! What is left of a lost slot's rows.

use pgoutput_parser::Lsn;
use walrelay_outbox_admin::Gap;

/// What may not have been settled, and has to be published before the slot is streamed.
#[derive(Debug, Clone)]
pub struct Rest {
    /// Where the slot begins.
    pub consistent_point: Lsn,
    /// Which rows.
    pub gap: Gap,
}

impl Rest {
    /// The position of its rows: behind everything that was settled, before everything that is streamed.
    #[must_use]
    pub fn commit_lsn(&self) -> Lsn {
        Lsn::new(self.consistent_point.as_u64() - 1)
    }
}
