//! The place where processes of replays to a topic run, and what is on record of the one that is not over.

use std::sync::{Arc, Mutex};

use tokio::sync::Notify;
use walrelay_relay::shutdown::Shutdown;

/// Where the processes of replays run, one after the other.
#[derive(Default)]
pub(crate) struct Replayer {
    pub(crate) begun: Notify,
    pub(crate) crash: Notify,
    /// The running process is asked to stop with this.
    pub(crate) shutdown: Mutex<Shutdown>,
    pub(crate) record: Arc<Mutex<Option<Record>>>,
    pub(crate) count: Mutex<u64>,
}

/// A replay on record.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(crate) id: String,
    pub(crate) topic: String,
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// Everything before is published, with so many rows.
    pub(crate) settled: (u64, u64),
}
