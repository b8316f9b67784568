//! The facts that the judge receives, and the faults that it may find.

use std::fmt;
use std::time::Duration;

/// The number of a row. Its event id is `e` and this number.
pub(crate) type RowNumber = u32;

/// The faults of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// Committed, but at the end neither stored nor handed to an operator.
    Lost,
    /// Stored before an earlier row of its key.
    Reordered,
    /// The slot was confirmed over a row that was neither stored nor recorded.
    ConfirmedEarly,
    /// The slot was confirmed beyond the position that the connection had received.
    ConfirmedBeyond,
    /// The slot does not reach the end of WAL although nothing prevents it.
    ConfirmedNever,
    /// A row stays in dispatch state although all faults are healed.
    ParkedForEver,
    /// A healthy key or the slot waits for a failing key.
    DelayedByOthers,
    /// Two concurrent requests of one key.
    TwoOutstanding,
    /// A request with several keys, or with too many or too large messages.
    BadRequest,
    /// The unsettled rows exceed the byte budget.
    OverBudget,
    /// The relay retains more WAL than the budget allows.
    OverWalBudget,
    /// Stored again without an event that allows a duplicate.
    Repeated,
    /// Stored with a wrong topic, key, position or payload.
    Altered,
    /// Stored but never committed.
    Unknown,
    /// A repetition without the mark of its replay, or a mark on a row of the stream.
    Unmarked,
    /// A reset or a replay is not finished although all faults are healed.
    Unfinished,
    /// A replay to another topic streams the live slot.
    TookLiveSlot,
    /// No status update for longer than the server waits.
    StatusOverdue,
    /// A database that shuts down waits for the relay.
    ShutdownBlocked,
    /// The relay ended with an error that a retry could have fixed.
    GaveUp,
    /// The relay ended the session of a holder that made progress.
    TookOverProgress,
    /// A row died although only outages refused it.
    DiedInOutage,
    /// The relay ended as caught up, but rows of its start were unfinished.
    EndedEarly,
    /// The relay did not stop although a stop was requested, or although it had caught up.
    DidNotStop,
}

/// The events of a run, for the story of a failing seed.
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

/// A WAL position, printed in Postgres' format.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Hex(pub(crate) u64);

impl fmt::Debug for Hex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

/// The status of a row in the dispatch table.
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
    /// Empty for an unordered row.
    pub(crate) key: String,
    pub(crate) payload: String,
    /// Whether the row can never be published.
    pub(crate) is_unroutable: bool,
    pub(crate) commit_lsn: u64,
    pub(crate) end_lsn: u64,
    pub(crate) tx_index: u32,
}

impl Row {
    /// Returns whether the row is at or before this position. A negative index is before the first
    /// row of its transaction.
    pub(crate) fn is_through(&self, through: (u64, i64)) -> bool {
        (self.commit_lsn, i64::from(self.tx_index)) <= through
    }
}

/// The rules of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// Whether rows behind a dead one wait for an operator.
    pub(crate) dead_rows_hold: bool,
    /// The maximum bytes of payload that may be read and not settled.
    pub(crate) unsettled_bytes_max: usize,
    /// The maximum number of messages in one request.
    pub(crate) request_messages_max: usize,
    /// The maximum bytes of one request, unless it has a single message.
    pub(crate) request_bytes_max: usize,
    /// How long the server waits for a status update.
    pub(crate) status_timeout: Duration,
    /// The silence after which another process may end a holder's session.
    pub(crate) take_over_after: Duration,
}

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// On request, with everything settled and confirmed.
    Graceful,
    /// In any other way. Unconfirmed rows are sent again.
    Broken,
}

/// The fate of an abandoned request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AbandonedFate {
    Stored,
    Lost,
}

/// The reply to a request, as the relay receives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Ok,
    /// Not stored.
    Refused(&'static str),
    /// Not stored, and never will be: the service rejects the content.
    Invalid,
    /// Stored, but the relay gets an error.
    LostReply(&'static str),
}
