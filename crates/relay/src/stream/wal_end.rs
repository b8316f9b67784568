//! Where the server writes its log, told from beside the data path.
//!
//! The replication connection cannot tell: a server that may not send does not say how far it is.

use pgoutput_parser::Lsn;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// The end of the log, as it was measured last.
#[derive(Debug)]
pub struct WalEnd {
    told: watch::Receiver<Lsn>,
    /// Ends with this.
    _measuring: JoinSet<()>,
}

/// Whom the end of the log is told.
pub type Teller = watch::Sender<Lsn>;

impl WalEnd {
    /// Measures until this is dropped.
    pub fn measured<F>(measure: impl FnOnce(Teller) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (teller, told) = watch::channel(Lsn::ZERO);
        let mut measuring = JoinSet::new();
        measuring.spawn(measure(teller));
        Self { told, _measuring: measuring }
    }

    /// The next measurement; pending for ever when nobody measures any more.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no measurement.
    pub async fn next(&mut self) -> Lsn {
        match self.told.changed().await {
            Ok(()) => *self.told.borrow_and_update(),
            Err(_) => std::future::pending().await,
        }
    }
}
