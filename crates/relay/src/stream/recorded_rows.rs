//! Rows that dispatch state already has, and that the slot may send again after a restart.
//!
//! There may be millions: they are read a page at a time, ahead of the stream, and forgotten as the
//! stream comes past them. Promises that no row is taken in while it is unknown whether it is recorded.
//! Leaves the reading itself to the recorder.
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

/// Rows recorded at or after the place where the stream began, and not come yet.
///
/// Between them may lie rows that are neither recorded nor stored, such as a batch that was out when
/// the key was parked: the slot sends those again. Until it has come past the last recorded row,
/// nothing may be claimed, or a recorded row would overtake an earlier one of its key (I4).
///
/// What this session records itself lies before the next row, and so before what is read of the table.
#[derive(Debug)]
pub struct RecordedRows {
    /// In the order of the log, in which the slot sends them.
    rows: VecDeque<RecordedRow>,
    /// Bytes that they take.
    memory: usize,
    /// No row before here will come any more.
    passed: Position,
    /// All recorded rows before here are known; none is unknown, once the last page has been read.
    known_before: Option<Position>,
    /// Where the next row of the open transaction lies.
    next: Option<Position>,
    /// A page has been asked for.
    is_asked: bool,
}

/// What dispatch state holds at the position of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// Nothing.
    Nothing,
    /// This very row.
    ThisRow,
    /// Only rows with other event ids: the slot is read with a publication that leaves out tables, or
    /// has others, so that the rows of a transaction are counted in another way.
    OtherRows,
}

impl RecordedRows {
    /// Rows of a page. Reading one takes a few milliseconds, in which the stream comes past a few
    /// hundred rows.
    pub const PAGE_ROWS: u32 = 2_000;

    /// Nothing is known yet of a stream that begins here.
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

    /// Where the next page begins, if it is time to ask for it: while half of one is still to come, so
    /// that the stream does not wait.
    pub fn next_page(&mut self) -> Option<Position> {
        let has_enough = self.rows.len() >= Self::PAGE_ROWS as usize / 2;
        let from = self.known_before.filter(|_| !self.is_asked && !has_enough)?;
        self.is_asked = true;
        Some(from)
    }

    /// The page that was asked for.
    ///
    /// A row that waits in the table although its key is not parked was recorded after the keys were
    /// read, by the session before this one: to settle it would let later rows of its key overtake it
    /// (I4). It counts as not recorded, and is published by us, too.
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

    /// A transaction has begun.
    pub const fn begin(&mut self, commit_lsn: Lsn) {
        self.next = Some(Position { commit_lsn, tx_index: 0 });
    }

    /// Whether the next frame may be taken in: if it is a row, it is known whether it is recorded.
    #[must_use]
    pub fn know_the_next(&self) -> bool {
        self.known_before.is_none_or(|known| self.next.is_none_or(|next| next < known))
    }

    /// What is recorded at a row's position; `event_id` tells the row's id. Asked once a row, in the
    /// order of the log: what was recorded up to there is forgotten then.
    ///
    /// # Errors
    ///
    /// Those of `event_id`.
    ///
    /// # Panics
    ///
    /// I2: it is not known yet.
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

    /// The slot has sent every transaction that ends at `boundary` or before. Rows that have not come
    /// by then never will, because their table is not published any more.
    pub fn reached(&mut self, boundary: Lsn) {
        self.next = None;
        self.pass(Position { commit_lsn: boundary, tx_index: 0 });
    }

    /// Whether the slot has sent all of them again, and so everything that precedes them.
    #[must_use]
    pub fn have_come(&self) -> bool {
        self.known_before.is_none() && self.rows.is_empty()
    }

    /// Bytes that they take (I6).
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

/// What a row takes, and the allocation of its id.
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

    /// Row `id` is recorded there, and finished.
    fn row(&(lsn, index, id): &(u64, u32, &str)) -> RecordedRow {
        RecordedRow { position: position(lsn, index), event_id: id.to_owned(), parks: None }
    }

    fn page(ids: &[(u64, u32, &str)], next: Option<Position>) -> RecordedPage {
        RecordedPage { rows: ids.iter().map(row).collect(), next }
    }

    /// Those in which these keys of topic `t` are parked.
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
            // The second one rests.
            parked_lanes: 1,
            on_dead: OnDead::Continue,
        };
        let mut lanes = Lanes::new(policy, 1);
        let hour = Some(Duration::from_secs(3_600));
        let load = |key: &&str| lanes.load_parked(&Topic::from("t"), key, hour, Instant::now());
        parked.iter().for_each(load);
        lanes
    }

    /// These, which are all there are.
    fn rows(ids: &[(u64, u32, &str)]) -> RecordedRows {
        let mut recorded = RecordedRows::unread(Lsn::ZERO);
        assert_eq!(recorded.next_page(), Some(position(0, 0)));
        recorded.learn(page(ids, None), &lanes(&[]));
        recorded
    }

    fn at(recorded: &mut RecordedRows, position: Position, id: &str) -> Recorded {
        let Ok(found) = recorded.at(position, || Ok::<_, Infallible>(id));
        found
    }

    #[test]
    fn recorded_rows_have_come_when_the_last_of_them_has() {
        let mut recorded = rows(&[(10, 0, "a"), (20, 1, "b")]);
        assert_eq!(at(&mut recorded, position(9, 7), "z"), Recorded::Nothing);
        assert_eq!(at(&mut recorded, position(10, 0), "a"), Recorded::ThisRow);
        assert_eq!(at(&mut recorded, position(20, 0), "y"), Recorded::Nothing);
        assert!(!recorded.have_come() && recorded.memory() > 0);
        assert_eq!(at(&mut recorded, position(20, 1), "b"), Recorded::ThisRow);
        assert!(recorded.have_come() && recorded.memory() == 0);
    }

    #[test]
    fn recorded_rows_that_never_come_are_not_waited_for_beyond_their_place() {
        let mut recorded = rows(&[(10, 0, "a"), (20, 1, "b")]);
        recorded.reached(Lsn::new(20));
        assert!(!recorded.have_come());
        recorded.reached(Lsn::new(21));
        assert!(recorded.have_come());
        let mut passed = rows(&[(10, 0, "a"), (10, 1, "b"), (10, 2, "c")]);
        assert_eq!(at(&mut passed, position(10, 1), "b"), Recorded::ThisRow);
        assert_eq!(at(&mut passed, position(11, 0), "d"), Recorded::Nothing);
        assert!(passed.have_come());
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
        let mut recorded = RecordedRows::unread(Lsn::new(10));
        assert!(recorded.know_the_next(), "between transactions nothing is a row");
        recorded.begin(Lsn::new(10));
        assert!(!recorded.know_the_next() && !recorded.have_come());
        assert_eq!(recorded.next_page(), Some(position(10, 0)));
        assert_eq!(recorded.next_page(), None, "it is asked for once");

        recorded.learn(page(&[(10, 1, "b")], Some(position(10, 2))), &lanes(&[]));
        assert!(recorded.know_the_next());
        assert_eq!(at(&mut recorded, position(10, 0), "a"), Recorded::Nothing);
        assert!(recorded.know_the_next());
        assert_eq!(at(&mut recorded, position(10, 1), "b"), Recorded::ThisRow);
        assert!(!recorded.know_the_next() && !recorded.have_come(), "there is another page");
        recorded.reached(Lsn::new(15));
        assert!(recorded.know_the_next());

        assert_eq!(recorded.next_page(), Some(position(10, 2)));
        recorded.learn(page(&[(12, 0, "never comes"), (20, 0, "c")], None), &lanes(&[]));
        assert_eq!(recorded.next_page(), None, "that was the last");
        recorded.begin(Lsn::new(20));
        assert!(recorded.know_the_next() && !recorded.have_come());
        assert_eq!(at(&mut recorded, position(20, 0), "c"), Recorded::ThisRow);
        assert!(recorded.have_come());
    }

    #[test]
    fn the_next_page_is_asked_for_while_half_of_one_is_left() {
        let mut recorded = RecordedRows::unread(Lsn::ZERO);
        assert!(recorded.next_page().is_some());
        let half = u64::from(RecordedRows::PAGE_ROWS / 2);
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
        at(&mut RecordedRows::unread(Lsn::new(10)), position(10, 0), "a");
    }

    #[test]
    fn a_row_that_came_into_the_table_after_its_key_was_looked_for_is_not_settled() {
        let parks = |lsn, key: &str| RecordedRow {
            parks: Some(("t".to_owned(), key.to_owned())),
            ..row(&(lsn, 0, "e"))
        };
        let mut recorded = RecordedRows::unread(Lsn::ZERO);
        let rows = vec![parks(1, "parked"), parks(2, "rests"), parks(3, "live"), row(&(4, 0, "e"))];
        recorded.learn(RecordedPage { rows, next: None }, &lanes(&["parked", "rests"]));
        let found = [1, 2, 3, 4].map(|lsn| at(&mut recorded, position(lsn, 0), "e"));
        let this = Recorded::ThisRow;
        assert_eq!(found, [this, this, Recorded::Nothing, this]);
    }
}
