//! Tracks the rows in flight and the position up to which the slot may be confirmed.
//!
//! Owns the order of transactions. Promises I1. Knows nothing of Pub/Sub, lanes or sockets: callers
//! report "begin", "open", "seal" and "settle". Cannot fail: a wrong call order trips an assert.

use std::collections::VecDeque;
use std::fmt;

use pgoutput_parser::{Boundary, Lsn, PgTimestamp};

/// The position up to which everything is settled, so that the slot may be confirmed this far.
///
/// Only [`Tracker`] creates watermarks, and only they reach the standby status update (I1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Watermark(Lsn);

impl Watermark {
    /// No position: confirms nothing.
    pub const NONE: Self = Self(Lsn::ZERO);

    /// The position. [`Lsn::ZERO`] until a position is known, which confirms nothing.
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

/// Proof that a row is counted. The holder returns it exactly once, to [`Tracker::settle`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a row whose ticket is dropped never settles and holds the slot for ever"]
pub struct Ticket {
    span: u64,
    committed_at: PgTimestamp,
}

impl Ticket {
    /// The commit time of the row's transaction, by the server's clock.
    #[must_use]
    pub const fn committed_at(&self) -> PgTimestamp {
        self.committed_at
    }
}

/// Whether a transaction's rows prove that the server skipped no rows before them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContinuityProof {
    /// The server skipped no rows since the previous transaction.
    Unbroken,
    /// No proof: rows may have been skipped, until [`Tracker::intact`] confirms the publication.
    None,
}

/// Turns rows that settle in any order into a watermark that only moves forward.
///
/// A span is one transaction. It is *sealed* by its commit and *settled* when all its rows are
/// settled. The watermark is the end of the longest prefix of sealed and settled spans. Without any
/// span, it is the highest keepalive.
///
/// Postgres silently skips rows that the publication does not publish. Keepalives, and commits
/// without [`ContinuityProof`], therefore count only as far as the publication is known to be intact.
#[derive(Debug)]
pub struct Tracker {
    /// Unconfirmed spans in commit order. Only the last one may be unsealed.
    spans: VecDeque<Span>,
    spans_begun: u64,
    /// The number of spans at which settled neighbours are merged. Memory then follows the rows in
    /// flight, not the transactions behind a row that stays unsettled for long (I6).
    merge_at: usize,
    /// The smallest number of spans that is worth merging.
    merge_min: usize,
    watermark: Watermark,
    /// The highest keepalive position received outside a transaction.
    keepalive: Lsn,
    /// The position up to which the publication is known to be intact.
    intact: Lsn,
}

#[derive(Debug)]
struct Span {
    /// Counted from 0. Neighbours are not consecutive once spans between them were merged.
    number: u64,
    committed_at: PgTimestamp,
    rows_unsettled: u32,
    /// The commit's `end_lsn`. `None` while the transaction is open.
    sealed: Option<Boundary>,
    /// The span counts only once the publication is known to be intact up to here.
    needs_intact_up_to: Lsn,
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
    /// Creates a tracker that confirms nothing until the server has sent a position.
    #[must_use]
    pub const fn new() -> Self {
        Self::merging(4_096)
    }

    /// Creates a tracker that merges settled neighbours from this many spans on.
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

    /// Begins a transaction that was committed at this time.
    ///
    /// # Panics
    ///
    /// The previous transaction is still open.
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
            needs_intact_up_to: Lsn::ZERO,
        });
    }

    /// Counts a row of the open transaction as in flight.
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

    /// Seals the open transaction. `boundary` is the commit's `end_lsn`.
    ///
    /// # Panics
    ///
    /// No transaction is open.
    pub fn seal(&mut self, boundary: Boundary, evidence: ContinuityProof) {
        let open = self.spans.back_mut().filter(|span| span.sealed.is_none());
        let Some(span) = open else { panic!("I1: sealed at {boundary:?} without a transaction") };
        span.needs_intact_up_to = match evidence {
            ContinuityProof::Unbroken => Lsn::ZERO,
            ContinuityProof::None => boundary.lsn(),
        };
        span.sealed = Some(boundary);
        self.advance();
    }

    /// Settles a row: Pub/Sub stored it, or it is durable in dispatch state (I2).
    ///
    /// # Panics
    ///
    /// The ticket is from another tracker.
    #[expect(clippy::needless_pass_by_value, reason = "a ticket is returned once, by moving it")]
    pub fn settle(&mut self, ticket: Ticket) {
        let span = self.index_of(ticket.span).and_then(|index| self.spans.get_mut(index));
        let Some(span) = span.filter(|span| span.rows_unsettled > 0) else {
            panic!("I1: {ticket:?} was settled before");
        };
        span.rows_unsettled -= 1;
        self.advance();
    }

    /// Notes a keepalive: the server is at `boundary` and no transaction is open.
    ///
    /// If nothing is outstanding, everything before the boundary is settled. Without keepalives, an
    /// idle outbox would pin the WAL of a busy database.
    pub fn observe(&mut self, boundary: Boundary) {
        self.keepalive = self.keepalive.max(boundary.lsn());
        self.advance();
    }

    /// The highest position that the server has reported between two transactions.
    #[must_use]
    pub const fn observed(&self) -> Lsn {
        self.keepalive
    }

    /// Notes that the publication has published every outbox row committed before this position.
    pub fn intact(&mut self, up_to: Lsn) {
        self.intact = self.intact.max(up_to);
        self.advance();
    }

    /// Whether an intact publication would move the watermark forward.
    #[must_use]
    pub fn needs_publication_check(&self) -> bool {
        match self.spans.front() {
            Some(span) => span.is_done(),
            None => self.keepalive > self.intact,
        }
    }

    /// The position up to which the slot may be confirmed.
    #[must_use]
    pub const fn watermark(&self) -> Watermark {
        self.watermark
    }

    /// Whether the watermark has passed every transaction seen so far and no transaction is open.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.spans.is_empty()
    }

    /// Whether a transaction is open.
    #[must_use]
    pub fn has_open_transaction(&self) -> bool {
        self.spans.back().is_some_and(|span| span.sealed.is_none())
    }

    /// Whether every row opened so far is settled, even if its transaction is still open.
    #[must_use]
    pub fn rows_are_settled(&self) -> bool {
        self.spans.iter().all(|span| span.rows_unsettled == 0)
    }

    /// The commit time of the oldest row that is not settled.
    #[must_use]
    pub fn oldest_unsettled(&self) -> Option<PgTimestamp> {
        let unsettled = self.spans.iter().find(|span| span.rows_unsettled > 0);
        unsettled.map(|span| span.committed_at)
    }

    /// The number of spans: at most two for each unsettled row, plus a few thousand.
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
        // Spans before this one were merged.
        self.spans.binary_search_by_key(&number, |span| span.number).ok()
    }

    /// Merges finished neighbours into one span that ends with the last of them.
    fn merge_settled(&mut self) {
        let spans = std::mem::take(&mut self.spans);
        for span in spans {
            match self.spans.back_mut() {
                Some(last) if last.is_done() && span.is_done() => {
                    last.sealed = span.sealed;
                    last.needs_intact_up_to = last.needs_intact_up_to.max(span.needs_intact_up_to);
                }
                _ => self.spans.push_back(span),
            }
        }
        self.merge_at = (2 * self.spans.len()).max(self.merge_min);
    }

    fn advance(&mut self) {
        while let Some(Span {
            rows_unsettled: 0, sealed: Some(boundary), needs_intact_up_to, ..
        }) = self.spans.front()
            && *needs_intact_up_to <= self.intact
        {
            let end = boundary.lsn();
            assert!(end >= self.watermark.0, "I1: {end} is behind {}", self.watermark);
            self.watermark = Watermark(end);
            self.spans.pop_front();
        }
        if self.spans.is_empty() {
            // The server has sent everything up to the keepalive and all of it is settled. The same
            // holds for any earlier position.
            self.watermark = self.watermark.max(Watermark(self.keepalive.min(self.intact)));
        }
    }
}
