//! How much is measured of each peer, and how the sink behaves.

use std::time::Duration;

use walrelay_bench::size::Size;

/// Production Pub/Sub answers a publish request after about this time.
pub(super) const REPLY_MILLIS: u64 = 20;

/// How much is measured of each peer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    pub(super) backlog_rows: u32,
    /// The rows of the backlog that one transaction wrote.
    pub(super) transaction_rows: u32,
    pub(super) drain_limit: Duration,
    pub(super) live_seconds: u32,
    pub(super) fault_seconds: u32,
    pub(super) kills: u32,
    /// A run ends when no message has been stored for this long.
    pub(super) stall: Duration,
    /// The time after the load in which a peer may catch up.
    pub(super) catch_up: Duration,
    pub(super) rounds: u32,
}

impl Extent {
    pub(super) const fn patience(self) -> Patience {
        Patience { stall: self.stall, limit: self.catch_up }
    }

    pub(super) fn of(size: Size) -> Self {
        let seconds = Duration::from_secs;
        match size {
            Size::Full => Self {
                backlog_rows: 300_000,
                transaction_rows: 1_000_000,
                drain_limit: seconds(90),
                live_seconds: 30,
                fault_seconds: 60,
                kills: 10,
                stall: seconds(90),
                catch_up: seconds(180),
                rounds: 3,
            },
            Size::Quick => Self {
                backlog_rows: 50_000,
                transaction_rows: 100_000,
                drain_limit: seconds(12),
                live_seconds: 8,
                fault_seconds: 20,
                kills: 10,
                stall: seconds(45),
                catch_up: seconds(60),
                rounds: 1,
            },
            Size::Tiny => Self {
                backlog_rows: 500,
                transaction_rows: 500,
                drain_limit: seconds(20),
                live_seconds: 1,
                fault_seconds: 3,
                kills: 1,
                stall: seconds(20),
                catch_up: seconds(60),
                rounds: 1,
            },
        }
    }
}

/// How long to wait for rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// Without a new row.
    pub(super) stall: Duration,
    /// In all.
    pub(super) limit: Duration,
}
