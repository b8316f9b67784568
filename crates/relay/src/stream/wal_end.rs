//! Where the server writes its WAL, measured beside the data path, and how much of it the server keeps.
//!
//! The replication connection cannot tell: a server that may not send does not say how far it is.

use pgoutput_parser::Lsn;
use tokio::sync::watch;
use tokio::task::JoinSet;
use walrelay_core::Retention;

/// One measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measured {
    /// The end of the WAL.
    pub wal_end: Lsn,
    /// The server's bound.
    pub retention: Retention,
}

/// The end of the WAL, as it was measured last.
#[derive(Debug)]
pub struct WalEnd {
    told: watch::Receiver<Measured>,
    /// Ends with this.
    _measuring: JoinSet<()>,
}

/// Takes measurements.
pub type Teller = watch::Sender<Measured>;

impl WalEnd {
    /// Measures until this is dropped.
    pub fn measured<F>(measure: impl FnOnce(Teller) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        // Nobody reads this one: a receiver waits for the first change.
        let nothing = Measured { wal_end: Lsn::ZERO, retention: Retention::Unlimited };
        let (teller, told) = watch::channel(nothing);
        let mut measuring = JoinSet::new();
        measuring.spawn(measure(teller));
        Self { told, _measuring: measuring }
    }

    /// The next measurement; pending for ever when nobody measures any more.
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
