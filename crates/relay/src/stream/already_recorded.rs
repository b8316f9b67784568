//! Rows that dispatch state already has, and that the slot may send again after a restart.
//!
//! There may be millions of such rows. They are read one page at a time, ahead of the stream, and
//! dropped as the stream passes them. No row is accepted before it is known whether the row is
//! recorded. The recorder does the reading.
//!
//! ```text
//!            passed          known_before
//!   ───────────┼───────────────────┼─────────────▶ positions
//!    forgotten │ rows, in memory   │ in the table
//! ```

use std::collections::VecDeque;

use pgoutput_parser::{Lsn, Position};
use walrelay_core::{Lanes, Topic};
use walrelay_outbox_store::{RecordedPage, RecordedRow};

/// Recorded rows at or after the start of the stream that the stream has not passed yet.
///
/// Among them may be rows that are neither recorded nor stored, such as a batch in flight when its
/// key was parked. The slot sends those rows again. Nothing may be claimed until the slot has
/// passed the last recorded row. Otherwise a recorded row would overtake an earlier row of its key
/// (I4).
///
/// Rows that this session records are before the next row, and so before any later page of the
/// table.
#[derive(Debug)]
pub struct AlreadyRecorded {
    /// In commit order, in which the slot sends them.
    rows: VecDeque<RecordedRow>,
    /// The memory of the rows in bytes.
    memory: usize,
    /// The slot sends no row before this position any more.
    passed: Position,
    /// All recorded rows before this position are known. `None` after the last page.
    known_before: Option<Position>,
    /// The position of the next row of the open transaction.
    next: Option<Position>,
    /// Whether a page was requested.
    is_asked: bool,
}

/// The recorded rows at the position of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// No row is recorded there.
    Nothing,
    ThisRow,
    /// Only rows with other event ids are recorded. An earlier publication had other tables, so the
    /// rows of a transaction were numbered differently.
    OtherRows,
}

impl AlreadyRecorded {
    /// The rows of a page. Reading one takes a few milliseconds, in which the stream passes a few
    /// hundred rows.
    pub const PAGE_ROWS: u32 = 2_000;

    /// Creates the state of a stream that starts here, with no page read.
    #[must_use]
    pub const fn unread(from: Lsn) -> Self {
        let from = Position { commit_lsn: from, tx_index: 0 };
        Self {
            rows: VecDeque::new(),
            memory: 0,
            passed: from,
            known_before: Some(from),
            next: None,
            is_asked: false,
        }
    }

    /// Returns the start of the next page if it should be requested now. It is requested while half
    /// a page is left, so that the stream does not wait.
    pub fn next_page(&mut self) -> Option<Position> {
        let has_enough = self.rows.len() >= Self::PAGE_ROWS as usize / 2;
        let from = self.known_before.filter(|_| !self.is_asked && !has_enough)?;
        self.is_asked = true;
        Some(from)
    }

    /// Adds the requested page.
    ///
    /// A pending row whose key is not parked was recorded by the previous session after this one
    /// had read the keys. If it counted as settled, later rows of its key would overtake it (I4).
    /// It counts as not recorded, and is also published here.
    pub fn learn(&mut self, page: RecordedPage, lanes: &Lanes) {
        self.is_asked = false;
        self.known_before = page.next;
        for mut row in page.rows {
            let is_late = row.parks.take().is_some_and(|(topic, ordering_key)| {
                !lanes.is_parked(&Topic::from(topic), &ordering_key)
            });
            if row.position >= self.passed && !is_late {
                self.memory += memory_of(&row);
                self.rows.push_back(row);
            }
        }
    }

    pub const fn begin(&mut self, commit_lsn: Lsn) {
        self.next = Some(Position { commit_lsn, tx_index: 0 });
    }

    /// Returns whether the next frame may be read: if it is a row, its record must be known.
    #[must_use]
    pub fn next_is_known(&self) -> bool {
        self.known_before.is_none_or(|known| self.next.is_none_or(|next| next < known))
    }

    /// Returns the record at a row's position. `event_id` returns the id of the row. Must be called
    /// once per row, in commit order, because the call drops the records before the position.
    ///
    /// # Panics
    ///
    /// I2: the record is not known yet.
    pub fn at<'a, E>(
        &mut self,
        position: Position,
        event_id: impl FnOnce() -> Result<&'a str, E>,
    ) -> Result<Recorded, E> {
        let is_known = self.known_before.is_none_or(|known| position < known);
        assert!(is_known, "I2: {position} was taken in before it was known whether it is recorded");
        self.next = Some(Position { tx_index: position.tx_index.saturating_add(1), ..position });
        self.pass(position);
        if self.rows.front().is_none_or(|row| row.position != position) {
            return Ok(Recorded::Nothing);
        }
        let event_id = event_id()?;
        let mut found = Recorded::OtherRows;
        while let Some(row) = self.pop_if(|at| at == position) {
            if row.is_of(event_id) {
                found = Recorded::ThisRow;
            }
        }
        Ok(found)
    }

    /// Records that the slot has sent every transaction that ends at `boundary` or before. Earlier
    /// rows that have not arrived never will, because their table is no longer published.
    pub fn reached(&mut self, boundary: Lsn) {
        self.next = None;
        self.pass(Position { commit_lsn: boundary, tx_index: 0 });
    }

    /// Returns whether the slot has passed all recorded rows, and so every row before them.
    #[must_use]
    pub fn all_passed(&self) -> bool {
        self.known_before.is_none() && self.rows.is_empty()
    }

    /// Returns the memory of the rows in bytes (I6).
    #[must_use]
    pub const fn memory(&self) -> usize {
        self.memory
    }

    fn pass(&mut self, position: Position) {
        self.passed = self.passed.max(position);
        while self.pop_if(|at| at < position).is_some() {}
    }

    fn pop_if(&mut self, is_wanted: impl Fn(Position) -> bool) -> Option<RecordedRow> {
        let row = self.rows.pop_front_if(|row| is_wanted(row.position))?;
        self.memory -= memory_of(&row);
        Some(row)
    }
}

/// Returns the memory of a row, including the allocation of its id.
const fn memory_of(row: &RecordedRow) -> usize {
    const ALLOCATION: usize = 16;
    size_of::<RecordedRow>() + ALLOCATION + row.event_id.capacity()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use std::time::{Duration, Instant};
    use walrelay_core::{Backoff, LanePolicy, OnDead};

    fn position(commit_lsn: u64, tx_index: u32) -> Position {
        Position { commit_lsn: Lsn::new(commit_lsn), tx_index }
    }

    /// Returns a finished row `id` that is recorded at this position.
    fn row(&(lsn, index, id): &(u64, u32, &str)) -> RecordedRow {
        RecordedRow { position: position(lsn, index), event_id: id.to_owned(), parks: None }
    }

    fn page(ids: &[(u64, u32, &str)], next: Option<Position>) -> RecordedPage {
        RecordedPage { rows: ids.iter().map(row).collect(), next }
    }

    /// Returns lanes in which these keys of topic `t` are parked.
    fn lanes(parked: &[&str]) -> Lanes {
        let never = Backoff { base: Duration::ZERO, cap: Duration::ZERO };
        let policy = LanePolicy {
            batch_messages: 1,
            batch_bytes: 1,
            transient: never,
            operator: never,
            redelivery: never,
            park_after: Duration::ZERO,
            max_attempts: 1,
            // The second key is a compact parked key.
            parked_lanes: 1,
            on_dead: OnDead::Continue,
        };
        let mut lanes = Lanes::new(policy, 1);
        let hour = Some(Duration::from_secs(3_600));
        let load = |key: &&str| lanes.load_parked(&Topic::from("t"), key, hour, Instant::now());
        parked.iter().for_each(load);
        lanes
    }

    /// Returns recorded rows with this single page.
    fn rows(ids: &[(u64, u32, &str)]) -> AlreadyRecorded {
        let mut recorded = AlreadyRecorded::unread(Lsn::ZERO);
        assert_eq!(recorded.next_page(), Some(position(0, 0)));
        recorded.learn(page(ids, None), &lanes(&[]));
        recorded
    }

    fn at(recorded: &mut AlreadyRecorded, position: Position, id: &str) -> Recorded {
        let Ok(found) = recorded.at(position, || Ok::<_, Infallible>(id));
        found
    }

    #[test]
    fn recorded_rows_have_come_when_the_last_of_them_has() {
        let mut recorded = rows(&[(10, 0, "a"), (20, 1, "b")]);
        assert_eq!(at(&mut recorded, position(9, 7), "z"), Recorded::Nothing);
        assert_eq!(at(&mut recorded, position(10, 0), "a"), Recorded::ThisRow);
        assert_eq!(at(&mut recorded, position(20, 0), "y"), Recorded::Nothing);
        assert!(!recorded.all_passed() && recorded.memory() > 0);
        assert_eq!(at(&mut recorded, position(20, 1), "b"), Recorded::ThisRow);
        assert!(recorded.all_passed() && recorded.memory() == 0);
    }

    #[test]
    fn recorded_rows_that_never_come_are_not_waited_for_beyond_their_place() {
        let mut recorded = rows(&[(10, 0, "a"), (20, 1, "b")]);
        recorded.reached(Lsn::new(20));
        assert!(!recorded.all_passed());
        recorded.reached(Lsn::new(21));
        assert!(recorded.all_passed());
        let mut passed = rows(&[(10, 0, "a"), (10, 1, "b"), (10, 2, "c")]);
        assert_eq!(at(&mut passed, position(10, 1), "b"), Recorded::ThisRow);
        assert_eq!(at(&mut passed, position(11, 0), "d"), Recorded::Nothing);
        assert!(passed.all_passed());
    }

    #[test]
    fn a_row_with_another_id_where_one_is_recorded_is_not_taken_for_it() {
        let mut recorded = rows(&[(10, 0, "a"), (10, 1, "b"), (10, 1, "c"), (10, 2, "d")]);
        assert_eq!(at(&mut recorded, position(10, 0), "b"), Recorded::OtherRows);
        assert_eq!(at(&mut recorded, position(10, 1), "c"), Recorded::ThisRow, "one of two");
        assert_eq!(at(&mut recorded, position(10, 2), "d"), Recorded::ThisRow);
    }

    #[test]
    fn a_row_whose_id_cannot_be_read_is_an_error_only_where_one_is_recorded() {
        let mut recorded = rows(&[(10, 1, "a")]);
        assert_eq!(recorded.at(position(10, 0), || Err("unreadable")), Ok(Recorded::Nothing));
        assert_eq!(recorded.at(position(10, 1), || Err("unreadable")), Err("unreadable"));
    }

    #[test]
    fn a_row_is_not_read_before_the_page_that_tells_of_it() {
        let mut recorded = AlreadyRecorded::unread(Lsn::new(10));
        assert!(recorded.next_is_known(), "between transactions nothing is a row");
        recorded.begin(Lsn::new(10));
        assert!(!recorded.next_is_known() && !recorded.all_passed());
        assert_eq!(recorded.next_page(), Some(position(10, 0)));
        assert_eq!(recorded.next_page(), None, "it is asked for once");

        recorded.learn(page(&[(10, 1, "b")], Some(position(10, 2))), &lanes(&[]));
        assert!(recorded.next_is_known());
        assert_eq!(at(&mut recorded, position(10, 0), "a"), Recorded::Nothing);
        assert!(recorded.next_is_known());
        assert_eq!(at(&mut recorded, position(10, 1), "b"), Recorded::ThisRow);
        assert!(!recorded.next_is_known() && !recorded.all_passed(), "there is another page");
        recorded.reached(Lsn::new(15));
        assert!(recorded.next_is_known());

        assert_eq!(recorded.next_page(), Some(position(10, 2)));
        recorded.learn(page(&[(12, 0, "never comes"), (20, 0, "c")], None), &lanes(&[]));
        assert_eq!(recorded.next_page(), None, "that was the last");
        recorded.begin(Lsn::new(20));
        assert!(recorded.next_is_known() && !recorded.all_passed());
        assert_eq!(at(&mut recorded, position(20, 0), "c"), Recorded::ThisRow);
        assert!(recorded.all_passed());
    }

    #[test]
    fn the_next_page_is_asked_for_while_half_of_one_is_left() {
        let mut recorded = AlreadyRecorded::unread(Lsn::ZERO);
        assert!(recorded.next_page().is_some());
        let half = u64::from(AlreadyRecorded::PAGE_ROWS / 2);
        let all: Vec<_> = (1..=half * 2).map(|lsn| (lsn, 0, "e")).collect();
        recorded.learn(page(&all, Some(position(half * 2, 1))), &lanes(&[]));
        recorded.reached(Lsn::new(half + 1));
        assert_eq!(recorded.next_page(), None);
        recorded.reached(Lsn::new(half + 2));
        assert_eq!(recorded.next_page(), Some(position(half * 2, 1)));
    }

    #[test]
    #[should_panic(expected = "I2: 0/A#0 was taken in before it was known")]
    fn a_row_that_is_read_before_its_page_is_found() {
        at(&mut AlreadyRecorded::unread(Lsn::new(10)), position(10, 0), "a");
    }

    #[test]
    fn a_row_that_came_into_the_table_after_its_key_was_looked_for_is_not_settled() {
        let parks = |lsn, key: &str| RecordedRow {
            parks: Some(("t".to_owned(), key.to_owned())),
            ..row(&(lsn, 0, "e"))
        };
        let mut recorded = AlreadyRecorded::unread(Lsn::ZERO);
        let rows = vec![parks(1, "parked"), parks(2, "rests"), parks(3, "live"), row(&(4, 0, "e"))];
        recorded.learn(RecordedPage { rows, next: None }, &lanes(&["parked", "rests"]));
        let found = [1, 2, 3, 4].map(|lsn| at(&mut recorded, position(lsn, 0), "e"));
        let this = Recorded::ThisRow;
        assert_eq!(found, [this, this, Recorded::Nothing, this]);
    }
}
