//! The end of the server's WAL, measured beside the data path, and the server's WAL limit.
//!
//! The replication connection cannot provide it: a server that is blocked on sending does not
//! report its position.

use std::time::Duration;

use pgoutput_parser::Lsn;
use tokio::sync::watch;
use tokio::task::JoinSet;
use walrelay_core::WalRetentionLimit;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measured {
    pub wal_end: Lsn,
    /// The server's WAL limit for slots.
    pub retention: WalRetentionLimit,
    /// The server process that sends.
    pub sender: SenderState,
    /// How long the oldest commit has waited for a synchronous standby.
    pub commit_wait: Duration,
}

impl Measured {
    /// Returns the measurement of a server that sends and commits without waiting.
    #[must_use]
    pub const fn new(wal_end: Lsn, retention: WalRetentionLimit) -> Self {
        Self { wal_end, retention, sender: SenderState::Busy, commit_wait: Duration::ZERO }
    }
}

/// The activity of the server process that sends the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SenderState {
    /// It decodes, or its activity is not visible.
    Busy,
    /// It waits: for WAL, for a standby, for a lock or for us.
    Waiting,
}

/// The last measured end of WAL.
#[derive(Debug)]
pub struct WalEnd {
    told: watch::Receiver<Measured>,
    /// The measuring task, which ends when this is dropped.
    _measuring: JoinSet<()>,
}

pub type WalMeasurementSender = watch::Sender<Measured>;

impl WalEnd {
    /// Starts to measure. Stops when the returned value is dropped.
    pub fn measured<F>(measure: impl FnOnce(WalMeasurementSender) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        // No reader sees this value, because a receiver waits for the first change.
        let nothing = Measured::new(Lsn::ZERO, WalRetentionLimit::Unlimited);
        let (teller, told) = watch::channel(nothing);
        let mut measuring = JoinSet::new();
        measuring.spawn(measure(teller));
        Self { told, _measuring: measuring }
    }

    /// Returns the next measurement. Pends for ever once measuring has ended.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no measurement.
    pub async fn next(&mut self) -> Measured {
        match self.told.changed().await {
            Ok(()) => *self.told.borrow_and_update(),
            Err(_) => std::future::pending().await,
        }
    }
}
