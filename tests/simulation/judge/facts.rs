//! What the judge is told, and what it may find.

use std::fmt;
use std::time::Duration;

/// A row's number; its event id is this behind an `e`.
pub(crate) type RowNumber = u32;

/// What can be wrong with a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// Committed, and at the end neither stored nor waiting for an operator.
    Lost,
    /// Stored before an earlier row of its key.
    Reordered,
    /// The slot was confirmed over a row that was neither stored nor recorded.
    ConfirmedEarly,
    /// The slot was confirmed beyond what the connection had been told.
    ConfirmedBeyond,
    /// The slot does not reach the end of the log although nothing is in its way.
    ConfirmedNever,
    /// A row stays in dispatch state although everything is well.
    ParkedForEver,
    /// A healthy key or the slot waits for one that is sick.
    HeldUp,
    /// Two requests of a key at the same time.
    TwoOutstanding,
    /// A request of several keys, of too many or too large messages.
    BadRequest,
    /// More rows read and not settled than the budget has bytes.
    OverBudget,
    /// More log waits for the relay than the budget allows.
    OverWalBudget,
    /// Stored again although nothing had happened that allows it.
    Repeated,
    /// Stored with another topic, key, position or payload than it should have.
    Altered,
    /// Stored and never committed.
    Unknown,
    /// A repetition without the mark of its replay, or the mark on a row of the stream.
    Unmarked,
    /// A reset or a replay is not over although everything is well.
    Unfinished,
    /// A replay to another topic streams the live slot.
    TookLiveSlot,
    /// No status update for longer than the server waits.
    StatusOverdue,
    /// A database that shuts down waits for the relay.
    ShutdownBlocked,
    /// The relay ended with an error although another try could have helped.
    GaveUp,
    /// A holder of the slot was ended although it made progress.
    TookOverProgress,
    /// Given up although nothing but outages refused it.
    DiedOfAnOutage,
    /// It ended as having caught up, with something left that was there at its start.
    EndedEarly,
    /// Asked to stop, or to stop when it has caught up, and it did not.
    DidNotStop,
}

/// What happened, for the story of a failing seed.
#[derive(Debug, Clone)]
#[expect(dead_code, reason = "printed, field by field, when a seed fails")]
pub(crate) enum Event {
    Committed { rows: Vec<RowNumber>, commit_lsn: Hex, end_lsn: Hex },
    Chaos(String),
    Streaming { process: u64 },
    Opened { process: u64 },
    TookOver { from: u64 },
    ProcessGone { process: u64, end: End },
    Sent { process: u64, call: u64, topic: String, key: String, rows: Vec<RowNumber> },
    Stored { call: u64 },
    Answered { call: u64, answer: &'static str },
    Dropped { call: u64 },
    StoredLate { call: u64 },
    Recorded { row: RowNumber, status: Status },
    Claimed { rows: Vec<RowNumber> },
    TableFailed { command: &'static str, applied: bool },
    Confirmed { flush: Hex },
}

/// A position in the log, printed as such.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Hex(pub(crate) u64);

impl fmt::Debug for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

/// A row's state in the dispatch table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Retrying,
    Dead,
    Published,
    Discarded,
}

/// A committed row as its producer knows it.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) number: RowNumber,
    pub(crate) topic: String,
    /// Empty: unordered.
    pub(crate) key: String,
    pub(crate) payload: String,
    /// Whether it can never be published.
    pub(crate) is_unroutable: bool,
    pub(crate) commit_lsn: u64,
    pub(crate) end_lsn: u64,
    pub(crate) tx_index: u32,
}

impl Row {
    /// Whether it lies there or before; a negative index is before the first row of its transaction.
    pub(crate) fn is_through(&self, through: (u64, i64)) -> bool {
        (self.commit_lsn, i64::from(self.tx_index)) <= through
    }
}

/// The rules of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// Whether rows behind a dead one wait for an operator.
    pub(crate) dead_rows_hold: bool,
    /// Bytes of payload that may be read and not settled.
    pub(crate) unsettled_bytes_max: usize,
    /// Messages of one request.
    pub(crate) request_messages_max: usize,
    /// Bytes of one request, unless it holds a single message.
    pub(crate) request_bytes_max: usize,
    /// How long the server waits for a status update.
    pub(crate) status_timeout: Duration,
    /// How long a holder may be quiet before another ends its session.
    pub(crate) take_over_after: Duration,
}

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Asked to, with everything settled and confirmed.
    Graceful,
    /// Any other way: what was not confirmed comes again.
    Broken,
}

/// What becomes of a request that nobody waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Landing {
    Stored,
    Lost,
}

/// What the relay was told about a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Ok,
    /// Not stored.
    Refused(&'static str),
    /// Not stored: the service will never take what is in it.
    Invalid,
    /// Stored, and told otherwise.
    LostReply(&'static str),
}
