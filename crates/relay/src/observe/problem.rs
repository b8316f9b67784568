//! The problems that make a relay not ready.

use pgoutput_parser::Lsn;

/// A problem that makes the relay not ready. Each has one reason at a time. The order is that of
/// `/readyz`, and the first ones are in the relay's own row.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Problem {
    /// The server cannot send the row after this position of the stream. It ends when more is
    /// settled.
    Unsendable(Lsn),
    /// A command to dispatch state fails, or has no answer.
    Store(&'static str),
    /// The server does not send its WAL.
    Unsent,
    /// Commits wait for a synchronous standby.
    CommitsWait,
    /// Sessions end one after the other at this settled position. It ends when more is settled.
    BrokenOff(Lsn),
    /// The slot may be lost soon.
    SlotAtRisk,
    /// This anchor may be lost soon.
    AnchorAtRisk(String),
    /// An outbox table has rows that are never published.
    Unpublished,
    /// Rows are pending, and Pub/Sub stores nothing.
    Outage,
    /// More WAL is retained than the budget.
    WalBudget,
}

impl Problem {
    /// Whether this is a problem of the session's connections. Another session has others.
    pub(super) const fn is_of_session(&self) -> bool {
        matches!(self, Self::Store(_) | Self::Unsent | Self::CommitsWait)
    }

    /// Whether other processes read this problem in the server's catalogs themselves.
    pub(super) const fn is_in_catalogs(&self) -> bool {
        matches!(self, Self::SlotAtRisk | Self::AnchorAtRisk(_))
    }

    /// Whether this is a measurement, which is outdated while nothing streams.
    pub(super) const fn is_measured(&self) -> bool {
        self.is_of_session()
            || self.is_in_catalogs()
            || matches!(self, Self::BrokenOff(_) | Self::WalBudget)
    }

    /// Whether a settled position ends the problem.
    pub(super) fn is_passed(&self, settled: Lsn) -> bool {
        matches!(self, Self::Unsendable(after) | Self::BrokenOff(after) if settled > *after)
    }
}
