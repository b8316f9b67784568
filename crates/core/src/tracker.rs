//! Which rows are in flight, and how far the slot may be confirmed.
//!
//! Owns the order of transactions. Promises I1. Knows nothing of Pub/Sub, lanes or sockets: it is
//! told "begun", "opened", "sealed", "settled". Cannot fail; a caller that lies trips an assert.

use std::collections::VecDeque;
use std::fmt;

use pgoutput_parser::{Boundary, Lsn, PgTimestamp};

/// Every boundary up to here is settled, so the slot may be confirmed this far.
///
/// Only [`Tracker`] makes these, and only these reach the standby status update (I1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Watermark(Lsn);

impl Watermark {
    /// Nothing is settled; confirms nothing.
    pub const NONE: Self = Self(Lsn::ZERO);

    /// The position itself; [`Lsn::ZERO`] until something is known, which confirms nothing.
    #[must_use]
    pub const fn lsn(self) -> Lsn {
        self.0
    }
}

impl fmt::Display for Watermark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Watermark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Proof that a row is counted; returned exactly once, to [`Tracker::settle`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a row whose ticket is dropped never settles and holds the slot for ever"]
pub struct Ticket {
    span: u64,
    committed_at: PgTimestamp,
}

impl Ticket {
    /// When the row's transaction was committed, by the server's clock.
    #[must_use]
    pub const fn committed_at(&self) -> PgTimestamp {
        self.committed_at
    }
}

/// What a transaction's own rows say about the rows before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// The server passed over none since the transaction before.
    Unbroken,
    /// Nothing: rows may have been passed over, until [`Tracker::intact`] tells otherwise.
    None,
}

/// Turns rows that settle in any order into a watermark that only moves forward.
///
/// A span is one transaction: *sealed* by its commit, *settled* when all its rows are. The
/// watermark is the end of the longest prefix of spans that are both; when no span is left, it is
/// the highest keepalive.
///
/// Postgres passes over rows that the publication did not publish, without a word. So keepalives,
/// and commits without [`Evidence`], count only as far as the publication is known to be intact.
#[derive(Debug)]
pub struct Tracker {
    /// Unconfirmed spans in commit order; only the last may be unsealed.
    spans: VecDeque<Span>,
    /// Spans begun so far, so that each has a number of its own.
    spans_begun: u64,
    /// So many spans, and settled neighbours become one: memory follows the rows in flight, not
    /// the transactions behind a row that is not settled for long (I6).
    merge_at: usize,
    /// Fewer are never merged: it would be work for nothing.
    merge_min: usize,
    watermark: Watermark,
    /// The highest keepalive seen outside a transaction.
    keepalive: Lsn,
    /// The publication is known to be intact up to here.
    intact: Lsn,
}

#[derive(Debug)]
struct Span {
    /// Counted from 0; neighbours are not consecutive once spans between them were merged.
    number: u64,
    committed_at: PgTimestamp,
    rows_unsettled: u32,
    /// The commit's `end_lsn`; none while the transaction is open.
    sealed: Option<Boundary>,
    /// Counts only once the publication is known to be intact up to here.
    wants_intact: Lsn,
}

impl Span {
    const fn is_done(&self) -> bool {
        self.rows_unsettled == 0 && self.sealed.is_some()
    }
}

impl Default for Tracker {
    fn default() -> Self {
        Self::new()
    }
}

impl Tracker {
    /// A tracker that confirms nothing until the server has told a position.
    #[must_use]
    pub const fn new() -> Self {
        Self::merging(4_096)
    }

    /// A tracker that merges settled neighbours among this many spans or more.
    #[must_use]
    pub const fn merging(merge_min: usize) -> Self {
        Self {
            spans: VecDeque::new(),
            spans_begun: 0,
            merge_at: merge_min,
            merge_min,
            watermark: Watermark(Lsn::ZERO),
            keepalive: Lsn::ZERO,
            intact: Lsn::ZERO,
        }
    }

    /// A transaction starts that was committed at this time.
    ///
    /// # Panics
    ///
    /// The one before it is still open.
    pub fn begin(&mut self, committed_at: PgTimestamp) {
        assert!(self.spans.back().is_none_or(|span| span.sealed.is_some()), "I1: begun twice");
        if self.spans.len() >= self.merge_at {
            self.merge_settled();
        }
        let number = self.spans_begun;
        self.spans_begun += 1;
        self.spans.push_back(Span {
            number,
            committed_at,
            rows_unsettled: 0,
            sealed: None,
            wants_intact: Lsn::ZERO,
        });
    }

    /// A row of the open transaction is in flight from now on.
    ///
    /// # Panics
    ///
    /// No transaction is open.
    pub fn open(&mut self) -> Ticket {
        let Some(span) = self.spans.back_mut().filter(|span| span.sealed.is_none()) else {
            panic!("I1: a row outside a transaction");
        };
        span.rows_unsettled += 1;
        Ticket { span: span.number, committed_at: span.committed_at }
    }

    /// The open transaction committed; `boundary` is its `end_lsn`.
    ///
    /// # Panics
    ///
    /// No transaction is open.
    pub fn seal(&mut self, boundary: Boundary, evidence: Evidence) {
        let open = self.spans.back_mut().filter(|span| span.sealed.is_none());
        let Some(span) = open else { panic!("I1: sealed at {boundary:?} without a transaction") };
        span.wants_intact = match evidence {
            Evidence::Unbroken => Lsn::ZERO,
            Evidence::None => boundary.lsn(),
        };
        span.sealed = Some(boundary);
        self.advance();
    }

    /// A row is stored by Pub/Sub, or durable in dispatch state (I2).
    ///
    /// # Panics
    ///
    /// The ticket is of another tracker.
    #[expect(clippy::needless_pass_by_value, reason = "a ticket is returned once, by moving it")]
    pub fn settle(&mut self, ticket: Ticket) {
        let span = self.index_of(ticket.span).and_then(|index| self.spans.get_mut(index));
        let Some(span) = span.filter(|span| span.rows_unsettled > 0) else {
            panic!("I1: {ticket:?} was settled before");
        };
        span.rows_unsettled -= 1;
        self.advance();
    }

    /// The server is at `boundary` and no transaction is open: when nothing is outstanding,
    /// everything before it is settled. Without this an idle outbox would pin the WAL of a busy
    /// database.
    pub fn observe(&mut self, boundary: Boundary) {
        self.keepalive = self.keepalive.max(boundary.lsn());
        self.advance();
    }

    /// How far the server had come when it last said so between two transactions.
    #[must_use]
    pub const fn observed(&self) -> Lsn {
        self.keepalive
    }

    /// The publication has published every outbox row that was committed before this position.
    pub fn intact(&mut self, up_to: Lsn) {
        self.intact = self.intact.max(up_to);
        self.advance();
    }

    /// Whether the watermark would be further if the publication were known to be intact.
    #[must_use]
    pub fn waits_for_intact(&self) -> bool {
        match self.spans.front() {
            Some(span) => span.is_done(),
            None => self.keepalive > self.intact,
        }
    }

    /// How far the slot may be confirmed.
    #[must_use]
    pub const fn watermark(&self) -> Watermark {
        self.watermark
    }

    /// Whether every transaction seen so far is behind the watermark and none is open.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.spans.is_empty()
    }

    /// Whether a transaction has begun and not been sealed.
    #[must_use]
    pub fn has_open_transaction(&self) -> bool {
        self.spans.back().is_some_and(|span| span.sealed.is_none())
    }

    /// Whether every row opened so far is settled, even if its transaction is still open.
    #[must_use]
    pub fn rows_are_settled(&self) -> bool {
        self.spans.iter().all(|span| span.rows_unsettled == 0)
    }

    /// Spans kept: at most two for each row that is not settled, and a few thousand.
    #[must_use]
    pub fn spans(&self) -> usize {
        self.spans.len()
    }

    fn index_of(&self, number: u64) -> Option<usize> {
        let first = self.spans.front()?.number;
        let guess = usize::try_from(number.checked_sub(first)?).ok()?;
        if self.spans.get(guess).is_some_and(|span| span.number == number) {
            return Some(guess);
        }
        // Spans were merged in between.
        self.spans.binary_search_by_key(&number, |span| span.number).ok()
    }

    /// Makes one span of done ones that are neighbours: it ends where the last of them does.
    fn merge_settled(&mut self) {
        let spans = std::mem::take(&mut self.spans);
        for span in spans {
            match self.spans.back_mut() {
                Some(last) if last.is_done() && span.is_done() => {
                    last.sealed = span.sealed;
                    last.wants_intact = last.wants_intact.max(span.wants_intact);
                }
                _ => self.spans.push_back(span),
            }
        }
        self.merge_at = (2 * self.spans.len()).max(self.merge_min);
    }

    fn advance(&mut self) {
        while let Some(Span { rows_unsettled: 0, sealed: Some(boundary), wants_intact, .. }) =
            self.spans.front()
            && *wants_intact <= self.intact
        {
            let end = boundary.lsn();
            assert!(end >= self.watermark.0, "I1: {end} is behind {}", self.watermark);
            self.watermark = Watermark(end);
            self.spans.pop_front();
        }
        if self.spans.is_empty() {
            // Everything up to the keepalive was sent and is settled; so is any position before it.
            self.watermark = self.watermark.max(Watermark(self.keepalive.min(self.intact)));
        }
    }
}
