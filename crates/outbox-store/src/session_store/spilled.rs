//! A session's state of spilled rows: which rows to delete once they are stored. Also how many rows
//! one command reads or claims.

use pgoutput_parser::{Lsn, Position};

/// Rows of one key per read. They fill a few round trips, and are few enough that the relay soon
/// sees an operator's change to later rows.
pub(super) const PER_KEY_ROWS: u32 = 500;

/// Rows of all keys per read. The memory limit alone would allow a hundred thousand small rows.
const READ_ROWS_MAX: u64 = 20_000;

/// Rows of all keys per claim. Each is updated twice, and the commands behind a claim wait for it.
const CLAIM_ROWS_MAX: u64 = 5_000;

/// Returns how many rows of each key to claim.
pub(super) fn claimed_per_key(keys: usize) -> u32 {
    share(CLAIM_ROWS_MAX, keys)
}

/// Returns the equal share of each key, at least one row and at most [`PER_KEY_ROWS`].
fn share(rows: u64, keys: usize) -> u32 {
    let share = (rows / (keys as u64).max(1)).max(1);
    u32::try_from(share).unwrap_or(PER_KEY_ROWS).min(PER_KEY_ROWS)
}

#[derive(Debug)]
pub(super) struct Spilled {
    /// Everything before this position is recorded as settled and is confirmed, so no session
    /// receives it again. That includes new sessions, and sessions that read an older record and
    /// stream by now.
    pub(super) past: Lsn,
    /// Start of the range of spilled rows that were stored before they could be deleted.
    pub(super) published_from: Option<Lsn>,
    /// Whether this session has searched for rows that another session left.
    has_looked: bool,
    published_to: Lsn,
    /// Average bytes of a message in the last read.
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

    /// With up to this many keys, each key is read to the maximum.
    const FEW_KEYS: usize = 16;

    /// Returns how many rows of each key to read. A row that does not fit is read in vain.
    pub(super) fn per_key_rows(&self, keys: usize, bytes_max: u64) -> u32 {
        if keys <= Self::FEW_KEYS {
            return PER_KEY_ROWS;
        }
        let fitting = bytes_max / (self.message_bytes * keys as u64).max(1);
        let fitting = u32::try_from(fitting + 1).unwrap_or(PER_KEY_ROWS);
        fitting.min(share(READ_ROWS_MAX, keys))
    }

    pub(super) fn read(&mut self, bytes: u64, rows: u64) {
        if let Some(bytes) = bytes.checked_div(rows) {
            self.message_bytes = bytes.max(1);
        }
    }

    /// Records the settled position of the record and the server's confirmed position.
    pub(super) fn passed(&mut self, settled: Lsn, confirmed: Lsn) {
        self.past = self.past.max(settled.min(confirmed));
    }

    pub(super) fn published(&mut self, position: Position) {
        let at = position.commit_lsn;
        if at >= self.past {
            self.left(at, at);
        }
    }

    /// Returns true at the first call only, when the rows that another session left must be
    /// searched.
    pub(super) fn begins_leftover_search(&mut self) -> bool {
        !std::mem::replace(&mut self.has_looked, true)
    }

    /// Records that rows in this range are still to be deleted.
    pub(super) fn left(&mut self, from: Lsn, to: Lsn) {
        self.published_from = Some(self.published_from.map_or(from, |at| at.min(from)));
        self.published_to = self.published_to.max(to);
    }

    /// Records that rows before the passed position are deleted, all of them or up to `further`.
    pub(super) fn deleted(&mut self, further: Option<Lsn>) {
        let rest = (self.published_to >= self.past).then_some(self.past);
        self.published_from = further.or(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rows_of_one_command_are_bounded_however_many_keys_it_asks_for() {
        for keys in [1, 10, 50, 256, 4_000] {
            let claimed = u64::from(claimed_per_key(keys));
            assert!((1..=500).contains(&claimed) && claimed * keys as u64 <= 5_000, "{keys}");
            let read = u64::from(Spilled::NONE.per_key_rows(keys, u64::MAX));
            assert!((1..=500).contains(&read) && read * keys as u64 <= 20_000, "{keys}");
        }
    }

    #[test]
    fn a_stored_row_is_kept_until_all_before_it_is_on_record_and_confirmed() {
        let mut spilled = Spilled::NONE;
        spilled.passed(Lsn::new(20), Lsn::new(10));
        // A session that has taken the slot over by now starts at 10, and receives this row again.
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
        assert!(spilled.begins_leftover_search() && !spilled.begins_leftover_search());
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
