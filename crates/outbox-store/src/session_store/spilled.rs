//! What a session knows of spilled rows: which of them are deleted once they are stored.

use pgoutput_parser::{Lsn, Position};

/// Rows of one key read back at once: a few full round trips of work, and few enough that an
/// operator's change to the rows behind them is seen soon.
pub(super) const PER_KEY_ROWS: u32 = 500;

/// What a session knows of spilled rows.
#[derive(Debug)]
pub(super) struct Spilled {
    /// Everything before is on record as settled and confirmed, so that no session is sent it again: not one
    /// that starts anew, nor one that has read the record before this one wrote it, and streams by now.
    pub(super) past: Lsn,
    /// Spilled rows from here to there were stored before they could be deleted.
    pub(super) published_from: Option<Lsn>,
    /// Whether it was looked for those that another session has left.
    has_looked: bool,
    published_to: Lsn,
    /// Bytes of a message as they were last.
    message_bytes: u64,
}

impl Spilled {
    pub(super) const NONE: Self = Self {
        past: Lsn::ZERO,
        published_from: None,
        published_to: Lsn::ZERO,
        has_looked: false,
        message_bytes: 256,
    };

    /// So few keys are read as far as anybody would want.
    const FEW_KEYS: usize = 16;

    /// How many rows of each key to look at: what does not fit is read for nothing.
    pub(super) fn per_key_rows(&self, keys: usize, bytes_max: u64) -> u32 {
        if keys <= Self::FEW_KEYS {
            return PER_KEY_ROWS;
        }
        let fitting = bytes_max / (self.message_bytes * keys as u64).max(1);
        u32::try_from(fitting + 1).unwrap_or(PER_KEY_ROWS).min(PER_KEY_ROWS)
    }

    pub(super) fn read(&mut self, bytes: u64, rows: u64) {
        if let Some(bytes) = bytes.checked_div(rows) {
            self.message_bytes = bytes.max(1);
        }
    }

    /// So far the record says that all is settled, and the server that it is confirmed.
    pub(super) fn passed(&mut self, settled: Lsn, confirmed: Lsn) {
        self.past = self.past.max(settled.min(confirmed));
    }

    /// A spilled row was stored.
    pub(super) fn published(&mut self, position: Position) {
        let at = position.commit_lsn;
        if at >= self.past {
            self.left(at, at);
        }
    }

    /// The first time, that it is to be looked for what another session has left.
    pub(super) fn looks_for_left(&mut self) -> bool {
        !std::mem::replace(&mut self.has_looked, true)
    }

    /// Some from here to there are still to be deleted.
    pub(super) fn left(&mut self, from: Lsn, to: Lsn) {
        self.published_from = Some(self.published_from.map_or(from, |at| at.min(from)));
        self.published_to = self.published_to.max(to);
    }

    /// What lies before is deleted, all of it or up to `further`.
    pub(super) fn deleted(&mut self, further: Option<Lsn>) {
        let rest = (self.published_to >= self.past).then_some(self.past);
        self.published_from = further.or(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_row_is_kept_until_all_before_it_is_on_record_and_confirmed() {
        let mut spilled = Spilled::NONE;
        spilled.passed(Lsn::new(20), Lsn::new(10));
        // Whoever has taken the slot over by now was told of 10, and is sent this one again.
        spilled.published(Position { commit_lsn: Lsn::new(15), tx_index: 0 });
        assert_eq!((spilled.past, spilled.published_from), (Lsn::new(10), Some(Lsn::new(15))));
        spilled.passed(Lsn::new(14), Lsn::new(16));
        assert_eq!(spilled.past, Lsn::new(14));
        spilled.passed(Lsn::new(20), Lsn::new(16));
        assert_eq!(spilled.past, Lsn::new(16));
        spilled.deleted(None);
        assert_eq!(spilled.published_from, None);
    }

    #[test]
    fn what_another_session_has_left_is_looked_for_once_and_deleted_once_it_is_passed() {
        let mut spilled = Spilled::NONE;
        assert!(spilled.looks_for_left() && !spilled.looks_for_left());
        spilled.passed(Lsn::new(10), Lsn::new(10));
        spilled.left(Lsn::new(5), Lsn::new(15));
        assert_eq!(spilled.published_from, Some(Lsn::new(5)));
        spilled.deleted(None);
        assert_eq!(spilled.published_from, Some(Lsn::new(10)), "some lie further on");
        spilled.passed(Lsn::new(20), Lsn::new(20));
        spilled.deleted(None);
        assert_eq!(spilled.published_from, None);
    }
}
